"""CIFAR-10 from its own files (https://www.cs.toronto.edu/~kriz/cifar.html), or as the Hugging Face hub's parquet."""

from __future__ import annotations

import io
import pickle
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adan_bench.data.cache import decoded
from adan_bench.data.files import CIFAR_FOLDER
from adan_bench.errors import reading
from adan_bench.task import Context

FILES = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}


def read_cifar(context: Context, split: str) -> tuple[Tensor, Tensor]:
    """All images of a split as N×3×32×32 bytes, and their labels."""
    if context.has(CIFAR_FOLDER):
        return _read(tuple(context.path(f"{CIFAR_FOLDER}/{name}") for name in FILES[split]))
    return _read((context.path(f"cifar10/{split}.parquet"),))


@lru_cache(maxsize=2)  # a worker process makes many runs
def _read(paths: tuple[Path, ...]) -> tuple[Tensor, Tensor]:
    """To decode parquet takes about 10 s, the cache no time."""
    if paths[0].suffix != ".parquet":
        parts = [_unpickled(path) for path in paths]
        return torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts])
    arrays = decoded("cifar10", paths, lambda: dict(zip(("images", "labels"), _decoded(paths[0]), strict=True)))
    return arrays["images"], arrays["labels"]


def _decoded(path: Path) -> tuple[Tensor, Tensor]:
    import numpy as np
    import pyarrow.parquet as parquet
    from PIL import Image

    with reading(path, "not CIFAR-10 as parquet with columns img and label"):
        table = parquet.read_table(path, columns=["img", "label"])
        pixels = [
            np.asarray(Image.open(io.BytesIO(image["bytes"])).convert("RGB")) for image in table["img"].to_pylist()
        ]
        images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous()
        return images, torch.tensor(table["label"].to_pylist())


class ArrayUnpickler(pickle.Unpickler):
    """Reads arrays, lists and strings; a pickle that names anything else could run code."""

    def find_class(self, module: str, name: str) -> Any:
        import numpy as np

        known = {"ndarray": np.ndarray, "dtype": np.dtype, "_reconstruct": np.zeros(0).__reduce__()[0]}
        if module.split(".")[0] == "numpy" and name in known:
            return known[name]
        if (module, name) == ("_codecs", "encode"):  # bytes that Python 3 wrote
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _unpickled(path: Path) -> tuple[Tensor, Tensor]:
    with reading(path, "not a batch of CIFAR-10's own python version"), path.open("rb") as file:
        content = ArrayUnpickler(file, encoding="bytes").load()
        images = torch.from_numpy(content[b"data"].reshape(-1, 3, 32, 32))
        return images, torch.tensor(content[b"labels"])
