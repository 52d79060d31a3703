"""ResNet-34 on CIFAR-10, the setting in which AdaBelief and Adan are compared on small images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from adan_bench.registry import workload
from adan_bench.spec import Context, Task, UsageError

NEEDS = ("cifar10/train.parquet", "cifar10/test.parquet")


@workload(
    "cifar-resnet34",
    metric="accuracy",
    higher_is_better=True,
    target=0.8,
    steps=1950,  # 5 epochs: under a minute on a recent GPU, hours on two cores, where --steps is for you
    eval_every=195,
    batch_size=128,
    needs=NEEDS,
)
def cifar_resnet34(context: Context) -> Task:
    """ResNet-34 on CIFAR-10 (parquet files as on the Hugging Face hub), random crops and flips."""
    import torch
    import torch.nn.functional as F

    from adan_bench.models import small_image_resnet

    images, labels = _read(context.path(NEEDS[0]))
    held_out, answers = (tensor.to(context.device) for tensor in _read(context.path(NEEDS[1])))
    batches = _augmented(images.to(context.device), labels.to(context.device), context)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(_normal(batch[0])).logits.float(), batch[1])

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        logits = torch.cat([model(_normal(part)).logits.float() for part in torch.split(held_out, 500)])
        return {
            "accuracy": (logits.argmax(1) == answers).float().mean().item(),
            "loss": F.cross_entropy(logits, answers).item(),
        }

    model = small_image_resnet(3, [64, 128, 256, 512], [3, 4, 6, 3])
    return Task(model, batches, loss, evaluate, note=f"CIFAR-10: {len(images):,} to train, {len(held_out):,} held out")


@lru_cache(maxsize=2)  # decoding takes about 10 s, and a worker process makes many runs
def _read(path: Path) -> tuple[Tensor, Tensor]:
    """All images as N×3×32×32 bytes, and their labels."""
    import io

    import numpy as np
    import pyarrow.parquet as parquet
    import torch
    from PIL import Image

    try:
        table = parquet.read_table(path, columns=["img", "label"])
        pixels = [
            np.asarray(Image.open(io.BytesIO(image["bytes"])).convert("RGB")) for image in table["img"].to_pylist()
        ]
        images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous()
        return images, torch.tensor(table["label"].to_pylist())
    except (OSError, KeyError, ValueError) as error:  # pyarrow's errors are ValueErrors and KeyErrors
        raise UsageError(f"{path}: not CIFAR-10 as parquet with columns img and label ({error})") from error


def _normal(images: Tensor) -> Tensor:
    """Bytes to numbers of about zero mean and unit variance (CIFAR-10: mean 0.47, deviation 0.25)."""
    return (images.float() / 255 - 0.47) / 0.25


def _augmented(images: Tensor, labels: Tensor, context: Context) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Batches whose images are shifted by up to 4 pixels and flipped half of the time, as the position says."""
    import torch
    import torch.nn.functional as F

    from adan_bench.data import generator, shuffled

    padded = F.pad(images, (4, 4, 4, 4))
    size = images.shape[-1]
    order = shuffled([torch.arange(len(images), device=images.device)], context.batch_size, context.seed)

    def batch(position: int) -> tuple[Tensor, Tensor]:
        (chosen,) = order(position)
        draws = torch.randint(0, 9, (3, len(chosen)), generator=generator(context.seed, position, 1)).to(images.device)
        pixels = torch.arange(size, device=images.device)
        rows = draws[0, :, None] + pixels
        columns = draws[1, :, None] + torch.where(draws[2, :, None] % 2 == 0, pixels, size - 1 - pixels)
        part = padded[chosen[:, None, None], :, rows[:, :, None], columns[:, None, :]]
        return part.permute(0, 3, 1, 2).contiguous(), labels[chosen]

    return batch
