"""Decoded data on disk, decoded once: every process that needs it maps the same files into its memory.

A cache entry is a folder of .npy files under a key of what was decoded: the content of the source files and how. It is
written aside by the first process, while the others wait, and appears at once under its name.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from adan_bench.locking import locked


def folder() -> Path:
    """ADAN_CACHE, or adan-bench in the user's cache folder."""
    own = os.environ.get("ADAN_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "adan-bench"


def decoded(
    how: str, sources: Sequence[Path], decode: Callable[[], dict[str, Tensor]], by_stamp: bool = False
) -> dict[str, Tensor]:
    """What `decode` returns, from the cache where it is there. Change `how` when what it does changes.

    by_stamp: sources are known by their names, sizes and times of change; to read thousands of them takes too long.

    Tensors share memory among processes; writing to one makes a private copy of the page. Where the cache cannot be
    written, every process decodes for itself.
    """
    import numpy as np

    entry, tensors = folder() / f"{how}-{_stamps(sources) if by_stamp else _key(sources)}", None
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with locked(entry.with_name(f"{entry.name}.lock")):  # without locks several decode, and one result stays
            if not entry.is_dir():
                tensors, prefix = decode(), f"{entry.name}-"
                with tempfile.TemporaryDirectory("", prefix, entry.parent, ignore_cleanup_errors=True) as aside:
                    for name, tensor in tensors.items():
                        np.save(Path(aside) / f"{name}.npy", tensor.numpy())
                    Path(aside).rename(entry)
        return {path.stem: torch.from_numpy(np.load(path, mmap_mode="c")) for path in sorted(entry.glob("*.npy"))}
    except OSError:  # a read-only or full disk
        return tensors or decode()


def _key(sources: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in sources:
        digest.update(b"%d:" % path.stat().st_size)
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                digest.update(part)
    return digest.hexdigest()[:16]


def _stamps(sources: Sequence[Path]) -> str:
    there = [(path, path.stat()) for path in sources if os.path.exists(path)]  # no broken link
    facts = [(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in there]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
