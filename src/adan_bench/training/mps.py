"""NVIDIA's Multi-Process Service: kernels of several processes run on one GPU at the same time, not in turns."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping


@contextlib.contextmanager
def multi_process_service() -> Iterator[bool]:
    """The service for processes that start in this context; False where it is not installed or does not start.

    A service that is already running is used and left running; one that is started here ends with the context.
    """
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None or _tell(control, "get_server_list"):
        yield control is not None
        return
    with contextlib.ExitStack() as stack:
        # Not in the folder of the records: the path of a socket must be shorter than 108 characters.
        temporary = tempfile.TemporaryDirectory(prefix="adan-mps-", ignore_cleanup_errors=True)
        folder = stack.enter_context(temporary)
        stack.enter_context(_environment({"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}))
        # Not to a pipe: the daemon would hold it open, and the call would wait for it.
        silent = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        started = subprocess.run([control, "-d"], **silent).returncode == 0
        if started:
            stack.callback(_tell, control, "quit")
        else:
            stack.close()
        yield started


def _tell(control: str, command: str) -> bool:
    """Whether a daemon took the command."""
    try:
        done = subprocess.run([control], input=f"{command}\n", text=True, capture_output=True, timeout=20)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
