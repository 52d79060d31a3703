"""Which GPUs of this machine a run has: as many as it has ranks, and those that the fewest other runs use.

Where several runs share one, NVIDIA's Multi-Process Service lets their kernels run at the same time, not in turns.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any


def gpu_names(device: str) -> list[str]:
    """The GPUs among which runs on a device are placed, as CUDA_VISIBLE_DEVICES names them; none: no choice to make."""
    if device != "cuda":
        return []
    import torch

    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [name.strip() for name in visible.split(",")] if visible else [str(i) for i in range(count)]
    return names[:count] if count > 1 else []


class Places:
    """Places of `jobs` workers with `ranks` GPUs each; where there are too few GPUs, places share them.

    >>> places = Places(jobs=3, ranks=1, gpus=["0", "1"])
    >>> first, second = places.take(), places.take()
    >>> places.gpus[first], places.gpus[second], places.crowded
    (('0',), ('1',), ['0'])
    """

    def __init__(self, jobs: int, ranks: int, gpus: list[str]) -> None:
        turn = itertools.cycle(gpus)
        self.gpus = [tuple(itertools.islice(turn, ranks)) for _ in range(jobs)]
        self._free, self._lock = set(range(jobs)), threading.Lock()

    @property
    def crowded(self) -> list[str]:
        """The GPUs of more than one place."""
        places = Counter(gpu for gpus in self.gpus for gpu in gpus)
        return [gpu for gpu, count in places.items() if count > 1]

    def take(self) -> int:
        """The free place whose GPUs have the fewest runs. There is one for every thread of a pool."""
        with self._lock:
            runs = Counter(gpu for i, gpus in enumerate(self.gpus) if i not in self._free for gpu in gpus)
            place = min(self._free, key=lambda i: (max((runs[gpu] for gpu in self.gpus[i]), default=0), i))
            self._free.remove(place)
            return place

    def give(self, place: int) -> None:
        with self._lock:
            self._free.add(place)


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
