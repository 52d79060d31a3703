"""Batches as pure functions of their position: resuming needs no more than the number of the next batch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from adan_bench.errors import UsageError, short

T = TypeVar("T")


def generator(*key: int) -> torch.Generator:
    """A generator that depends on all numbers of the key and on nothing else."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def shuffled(tensors: Sequence[Tensor], batch_size: int, seed: int) -> Callable[[int], tuple[Tensor, ...]]:
    """Batches over tensors of equal length, in a new order each epoch; the incomplete last batch is left out.

    >>> batches = shuffled([torch.arange(6)], batch_size=3, seed=0)
    >>> sorted(torch.cat([batches(0)[0], batches(1)[0]]).tolist())
    [0, 1, 2, 3, 4, 5]
    """
    if not isinstance(tensors, (list, tuple)) or not tensors or not all(isinstance(t, Tensor) for t in tensors):
        raise UsageError(f"shuffled: tensors must be a list of tensors, got {short(tensors)}; write [x, y]")
    lengths = [len(tensor) for tensor in tensors]
    if len(set(lengths)) > 1:
        got = " and ".join(map(str, lengths))
        raise UsageError(f"shuffled: tensors must be of one length, got {got}; select the same examples of each")
    order = epoch_order(lengths[0], batch_size, seed)

    def batch(position: int) -> tuple[Tensor, ...]:
        chosen = order(position).to(tensors[0].device)
        return tuple(tensor[chosen] for tensor in tensors)

    return batch


def epoch_order(size: int, batch_size: int, seed: int, repeats: int = 1) -> Callable[[int], Tensor]:
    """Which of `size` examples the batch at a position holds.

    repeats: how often each example comes, one after the other, in an epoch as long as otherwise, which therefore sees
        so many times fewer different ones: repeated augmentation (arXiv:1901.09335).
    """
    per_epoch = size // batch_size
    if per_epoch == 0:
        remedy = f"use at most {size}" if size else "look at what selects them"
        raise UsageError(f"batch_size={batch_size} is more than the {size} examples; {remedy}")

    @lru_cache(maxsize=2)
    def order(epoch: int) -> Tensor:
        return torch.randperm(size, generator=generator(seed, epoch)).repeat_interleave(repeats)[:size]

    def chosen(position: int) -> Tensor:
        epoch, index = divmod(position, per_epoch)
        return order(epoch)[index * batch_size : (index + 1) * batch_size]

    return chosen


class Windows:
    """Random windows of `length` tokens, `batch_size` of them a batch, drawn anew at each position.

    own: picks those of this rank (`Context.own`).

    >>> windows = Windows(torch.arange(100), length=3, batch_size=2, seed=0)
    >>> rows = windows.gather(windows(0))
    >>> (rows[:, 2] - rows[:, 0]).tolist()
    [2, 2]
    """

    def __init__(
        self,
        tokens: Tensor,
        length: int,
        batch_size: int,
        seed: int,
        own: Callable[[Tensor], Tensor] = lambda rows: rows,
    ) -> None:
        self.tokens, self.last, self.batch_size, self.seed = tokens, len(tokens) - length, batch_size, seed
        self.own = own
        self.offsets = torch.arange(length, device=tokens.device)

    def __call__(self, position: int) -> Tensor:
        """Where the windows of a batch begin."""
        return self.own(torch.randint(0, self.last, (self.batch_size, 1), generator=generator(self.seed, position)))

    def gather(self, starts: Tensor) -> Tensor:
        """The windows, wherever the tokens lie."""
        return self.tokens[starts + self.offsets]


def moved(batch: Any, device: torch.device | str) -> Any:
    return mapped(batch, lambda tensor: tensor.to(device, non_blocking=True))


def mapped(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Change every tensor of a batch, and keep its structure.

    >>> mapped({"x": (torch.ones(2), "name")}, lambda x: 2 * x)
    {'x': (tensor([2., 2.]), 'name')}
    """
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {key: mapped(item, change) for key, item in batch.items()}
    if isinstance(batch, (list, tuple)):
        items = [mapped(item, change) for item in batch]
        return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)
    return batch


def prefetch(batches: Callable[[int], T], ahead: int = 4, threads: int = 1) -> Callable[[int], T]:
    """Let threads make batches before they are asked for, as long as positions follow each other."""
    pool = ThreadPoolExecutor(threads)
    coming: dict[int, Future[T]] = {}

    def batch(position: int) -> T:
        wanted = range(position, position + ahead)
        for old in [p for p in coming if p not in wanted]:
            coming.pop(old).cancel()
        for p in wanted:
            if p not in coming:
                coming[p] = pool.submit(batches, p)
        return coming[position].result()

    return batch


def decoders() -> int:
    """Processes or threads that decode images: as many as the run has threads (`--threads`), at most 64."""
    return min(64, torch.get_num_threads())


def fingerprint(*blobs: bytes) -> str:
    """Twelve hexadecimal digits that tell two versions of the data apart."""
    return hashlib.sha256(b"".join(blobs)).hexdigest()[:12]


def library_sources() -> list[str]:
    """Source files of Python's own standard library, in the order of their names.

    Top-level modules only: they are on every installation, and are about 5 MB of real code and prose.
    """
    return [path.read_text(encoding="utf-8", errors="replace") for path in library_files()]


def library_files() -> list[Path]:
    return sorted(Path(hashlib.__file__).parent.glob("*.py"))
