"""NVIDIA's Multi-Process Service: kernels of several processes run on one GPU at the same time, not in turns."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any


@contextlib.contextmanager
def multi_process_service(gpu: str = "") -> Iterator[dict[str, str] | None]:
    """The service for one GPU: the environment of processes that use it; None where it cannot be had.

    A service that is already running is used and left running; one that is started here ends with the context. Each
    GPU has one of its own: a fault of one process ends all processes of its service.

    gpu: its name in CUDA_VISIBLE_DEVICES; empty: the only one.
    """
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None or _tell(control, "get_server_list"):
        yield None if control is None else {}
        return
    with contextlib.ExitStack() as stack:
        # Not in the folder of the records: the path of a socket must be shorter than 108 characters.
        temporary = tempfile.TemporaryDirectory(prefix="adan-mps-", ignore_cleanup_errors=True)
        folder = stack.enter_context(temporary)
        values = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        # Its output not to a pipe: the daemon would hold that open, and the call would wait for it.
        silent = subprocess.DEVNULL
        there = {**os.environ, **values} | ({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})
        if subprocess.run([control, "-d"], stdin=silent, stdout=silent, stderr=silent, env=there).returncode:
            yield None
            return
        stack.callback(_tell, control, "quit", values)
        # The service numbers its GPUs anew; an identifier stays.
        yield values | ({"CUDA_VISIBLE_DEVICES": "0" if gpu.isdecimal() else gpu} if gpu else {})


def _tell(control: str, command: str, values: Mapping[str, str] | None = None) -> bool:
    """Whether a daemon took the command. values: of the environment, which name its folder."""
    options: dict[str, Any] = {"text": True, "capture_output": True, "timeout": 20}
    try:
        done = subprocess.run([control], input=f"{command}\n", env={**os.environ, **(values or {})}, **options)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
