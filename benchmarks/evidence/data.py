"""Data as arrays that worker processes map: CIFAR-10 decoded once, Python source and its English gathered once.

`pack` makes one small file of the data folder's CIFAR-10, for machines without pyarrow. `prepare` writes the arrays;
workers read them by `array`.
"""

from __future__ import annotations

import hashlib
import io
import json
import sysconfig
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import cache as cached
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evidence import documentation, english

PACKED = "cifar10.npz"
VALIDATION = 5_000  # of CIFAR-10's training images, the last ones: what tuning looks at
MOST_BYTES = 400_000_000  # of Python source
LARGEST_FILE = 1_000_000
SPLITS = ("train", "valid", "test")


def pack(data: Path, target: Path) -> None:
    """CIFAR-10 from the Hugging Face hub's parquet files to one file of JPEG bytes, their lengths and labels."""
    import pyarrow.parquet as parquet

    arrays: dict[str, Any] = {}
    for split in ("train", "test"):
        table = parquet.read_table(data / "cifar10" / f"{split}.parquet", columns=["img", "label"])
        images = [image["bytes"] for image in table["img"].to_pylist()]
        arrays[f"{split}_bytes"] = np.frombuffer(b"".join(images), dtype=np.uint8)
        arrays[f"{split}_lengths"] = np.array([len(image) for image in images], dtype=np.int32)
        arrays[f"{split}_labels"] = np.array(table["label"].to_pylist(), dtype=np.uint8)
    target.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(target / PACKED, **arrays)


def prepare(data: Path, cache: Path, sources: Sequence[Path] | None = None, processes: int = 8) -> dict[str, Any]:
    """Write what the problems need into `cache`; the facts about it, which every record repeats.

    sources: folders of Python source, of which there may be none; the interpreter's own library and packages unless
    given.
    """
    cache.mkdir(parents=True, exist_ok=True)
    facts: dict[str, Any] = {}
    if (data / PACKED).exists():
        facts["cifar10"] = _decode_cifar(data / PACKED, cache, processes)
    if folders := _installed() if sources is None else sources:
        facts["python"] = _gather_python(cache, folders)
        if (data / "glue").exists():
            facts["english"] = english.prepare("english", english.gather(folders, processes), data, cache, processes)
    if (data / documentation.PACKED).exists():
        facts["debian"] = english.prepare("debian", documentation.unpack(data), data, cache, processes)
    (cache / "facts.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return facts


def _decode_cifar(packed: Path, cache: Path, processes: int) -> str:
    digest = hashlib.sha256()
    with np.load(packed) as arrays, ProcessPoolExecutor(processes) as pool:
        for split in ("train", "test"):
            cuts = np.cumsum(arrays[f"{split}_lengths"])[:-1]
            images = [part.tobytes() for part in np.split(arrays[f"{split}_bytes"], cuts)]
            pixels = np.stack(list(pool.map(_pixels, images, chunksize=500)))
            digest.update(pixels.tobytes())
            np.save(cache / f"cifar-{split}-images.npy", pixels)
            np.save(cache / f"cifar-{split}-labels.npy", arrays[f"{split}_labels"].astype(np.int64))
    return f"JPEG copy, pixels sha256 {digest.hexdigest()[:12]}"


def _pixels(image: bytes) -> Any:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(image)).convert("RGB")).transpose(2, 0, 1)


def _installed() -> list[Path]:
    return [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")]


def _gather_python(cache: Path, folders: Iterable[Path]) -> str:
    """All different Python files of the folders, one after the other with a zero byte between, in three splits.

    A file's content decides its split: 1% each for validation and test.
    """
    paths = sorted({path for folder in folders for path in folder.rglob("*.py")})
    with ThreadPoolExecutor(16) as pool:
        texts = {
            hashlib.sha256(text).digest(): text for text in pool.map(_text, paths) if 0 < len(text) <= LARGEST_FILE
        }
    parts: dict[str, list[bytes]] = {split: [] for split in SPLITS}
    size = 0
    for digest in sorted(texts):
        split = {0: "valid", 1: "test"}.get(int.from_bytes(digest[-4:], "big") % 100, "train")
        parts[split].append(texts[digest])
        size += len(texts[digest])
        if size > MOST_BYTES:
            break
    joined = {split: b"\0".join(files) for split, files in parts.items()}
    for split, content in joined.items():
        np.save(cache / f"python-{split}.npy", np.frombuffer(content, dtype=np.uint8))
    name = hashlib.sha256(b"".join(joined.values())).hexdigest()[:12]
    return f"{sum(map(len, parts.values())):,} Python files of installed packages, {size:,} bytes, sha256 {name}"


def _text(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # a broken link
        return b""


@cached
def array(cache: Path, name: str, device: str) -> Tensor:
    """An array of the cache on the device; a worker process makes many runs on it."""
    return torch.from_numpy(np.load(cache / f"{name}.npy")).to(device)
