"""A command under way: what the user typed, and the folder of its records.

`app.main` makes one and hands it to typer, which gives it to every command as `context.obj`.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from adan_bench.errors import UsageError


class Invocation:
    """Words after the program's name; where records go, and the folder that was created for them.

    out, resume, until: flags of a command that makes runs; until: the Unix time at which its time limit ends.
    """

    out: Path | None = None
    resume = False
    until: float | None = None

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self.records: Path | None = None
        self._new: Path | None = None

    def __str__(self) -> str:
        return " ".join(["adan-bench", *self.words])

    def value_of(self, option: str) -> str | None:
        """The word after an option; None where it is not among the words, or the last."""
        return self.words[self.words.index(option) + 1] if option in self.words[:-1] else None

    def new_folder(self) -> Path:
        """Create a folder under runs/, named after the time; of several in one second, the later ones have a number."""
        runs, now, number = Path("runs"), datetime.now().strftime("%Y-%m-%d-%H%M%S"), 1
        runs.mkdir(exist_ok=True)
        while True:
            folder = runs / (now if number == 1 else f"{now}-{number}")
            try:
                folder.mkdir()
            except FileExistsError:
                number += 1
            else:
                self._new = folder
                return folder

    def remove_unused(self) -> None:
        """Remove the folder that was created where nothing was written into it."""
        if self._new is not None:
            with contextlib.suppress(OSError):  # it holds something, or is gone
                self._new.rmdir()
                self._new.parent.rmdir()

    def records_in(self, *parts: str) -> Path:
        """The folder of the records of a command that can be resumed: the one that was given, else a new one."""
        if self.resume and self.out is None:
            raise UsageError("--resume: name the folder of what was interrupted with --out")
        self.records = self.out or self.new_folder().joinpath(*parts)
        return self.records

    def how_to_continue(self) -> str:
        """The command that goes on from what is recorded, for the end of a message."""
        if self.records is None or not any(self.records.rglob("*")):
            return "nothing was recorded"
        words = [word for word in self.words if word != "--resume"]
        if not any(word == "--out" or word.startswith("--out=") for word in words):
            words += ["--out", str(self.records)]
        return f"continue with: {shlex.join(['adan-bench', *words, '--resume'])}"
