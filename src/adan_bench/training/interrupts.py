"""Ctrl-C: the first ends runs between two steps, with a checkpoint; the second ends the command at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

FINISHING = b"adan-bench: interrupted; finishing the step and writing a checkpoint; Ctrl-C again ends at once\n"


class Pause:
    """Tells a run when to stop for now, with a checkpoint to continue from: at a Unix time, or after Ctrl-C.

    Until the run has made a step here (`stepped`), there is nothing to save.
    """

    stepped = pressed = False

    def __init__(self, until: float | None = None) -> None:
        self.until = until

    def due(self, step: int) -> bool:
        self.stepped = True
        return self.pressed or (self.until is not None and time.time() >= self.until)


@contextmanager
def on_ctrl_c(press: Callable[[], None]) -> Iterator[None]:
    """Call `press` at each Ctrl-C. A command that ignores Ctrl-C, in the background of a shell, goes on ignoring it."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: press())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def say_finishing() -> None:
    """Tell the user what the first Ctrl-C does; not by print, which may have been interrupted itself."""
    os.write(2, FINISHING)
