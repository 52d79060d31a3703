"""Which GPUs of this machine a run has: as many as it has ranks, and those that the fewest other runs use."""

from __future__ import annotations

import itertools
import os
import threading
from collections import Counter


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
        self._runs: Counter[str] = Counter()  # under way, by GPU

    @property
    def crowded(self) -> list[str]:
        """The GPUs of more than one place."""
        places = Counter(gpu for gpus in self.gpus for gpu in gpus)
        return [gpu for gpu, count in places.items() if count > 1]

    def take(self) -> int:
        """The free place whose GPUs have the fewest runs. There is one for every thread of a pool."""
        with self._lock:
            place = min(self._free, key=lambda i: (max((self._runs[gpu] for gpu in self.gpus[i]), default=0), i))
            self._free.remove(place)
            self._runs.update(self.gpus[place])
            return place

    def give(self, place: int) -> None:
        with self._lock:
            self._free.add(place)
            self._runs.subtract(self.gpus[place])
