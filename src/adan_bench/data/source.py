"""Python source of the packages installed here, as bytes in three splits."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from adan_bench.data.batching import library_files
from adan_bench.data.cache import decoded
from adan_bench.data.files import SPLITS

MOST_BYTES = 400_000_000
LARGEST_FILE = 1_000_000


def installed(suffixes: tuple[str, ...]) -> list[Path]:
    """The files of Python's library and of the installed packages with these endings, in the order of their names."""
    folders = {sysconfig.get_path(name) for name in ("stdlib", "purelib")}
    walks = (walk for folder in folders for walk in os.walk(folder))
    return sorted({Path(base, name) for base, _, names in walks for name in names if name.endswith(suffixes)})


@lru_cache(maxsize=2)  # a worker process makes many runs
def python_source(whole: bool) -> tuple[dict[str, Tensor], str]:
    """The bytes of each split, and how much that is; whole: of all packages, else of the library's own top folder."""
    paths = installed((".py",)) if whole else library_files()
    tensors = decoded("python", paths, lambda: _bytes(paths, 100 if whole else 10), by_stamp=True)
    splits = {split: tensors[split] for split in SPLITS}
    name, size = bytes(tensors["digest"].tolist()).hex(), sum(map(len, splits.values()))
    return splits, f"{int(tensors['files']):,} files of Python source, {size:,} bytes, sha256 {name}"


def _bytes(paths: Iterable[Path], count: int) -> dict[str, Tensor]:
    """All different files, one after the other with a zero byte between."""
    texts: dict[bytes, bytes] = {}
    for path in paths:
        content = content_of(path)
        if content:
            texts[hashlib.sha256(content).digest()] = content
    parts: dict[str, list[bytes]] = {split: [] for split in SPLITS}
    size = 0
    for digest in sorted(texts):
        parts[split_of(digest, count)].append(texts[digest])
        size += len(texts[digest])
        if size > MOST_BYTES:
            break
    joined = {split: b"\0".join(files) for split, files in parts.items()}
    name = hashlib.sha256(b"".join(joined.values())).digest()[:6]
    tensors = {split: torch.frombuffer(bytearray(content), dtype=torch.uint8) for split, content in joined.items()}
    return {**tensors, "files": torch.tensor(sum(map(len, parts.values()))), "digest": torch.tensor([*name])}


def content_of(path: Path) -> bytes:
    """A file's bytes; none of a broken link or of one that is larger than a megabyte."""
    try:
        return path.read_bytes() if path.stat().st_size <= LARGEST_FILE else b""
    except OSError:
        return b""


def split_of(digest: bytes, count: int = 100) -> str:
    """The split of a document, which its content decides: one of `count` is for validation and one for the test."""
    return {0: "valid", 1: "test"}.get(int.from_bytes(digest[-4:], "big") % count, "train")
