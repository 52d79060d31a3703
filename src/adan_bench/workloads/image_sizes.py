"""How large an image model is at each scale: at smoke an eighth of the width and a fraction of the depth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adan_bench.data.files import CIFAR, IMAGENET
from adan_bench.task import SCALES, Scale

PATCHES = {"resnet": (0, 0, 0), "convnext": (1, 2, 4), "vit": (2, 4, 16), "swin": (1, 1, 4)}
WINDOWS = (2, 4, 7)
HEADS = {"vit": (16, 64, 64), "swin": (4, 32, 32)}


@dataclass(frozen=True)
class ImageSizes:
    """Width and depths of a model, pixels of its patches and windows, width of an attention head.

    deviation: of a ViT's first weights; with the usual 0.02 narrow blocks are idle for 100 steps.
    """

    width: int
    depths: tuple[int, ...]
    patch: int
    window: int
    head: int
    deviation: float


def image_sizes(family: str, width: int, depths: Sequence[int], shrink: int = 4) -> list[ImageSizes]:
    """A published model at the three scales; at smoke depths are divided by `shrink`."""
    tiny = tuple(math.ceil(depth / shrink) for depth in depths)
    return [
        ImageSizes(
            width // 8 if scale == "smoke" else width,
            tiny if scale == "smoke" else tuple(depths),
            PATCHES[family][i],
            WINDOWS[i],
            HEADS.get(family, (0, 0, 0))[i],
            0.12 if scale == "smoke" else 0.02,
        )
        for i, scale in enumerate(SCALES)
    ]


def image_scales(
    sizes: Sequence[ImageSizes],
    targets: tuple[float, float, float],
    smoke: int,
    small: tuple[int, int],
    paper: tuple[int, int, int],
) -> dict[str, Any]:
    """Digits at smoke, CIFAR-10 at small, ImageNet at paper.

    smoke: steps; small: steps and batch size; paper: steps, batch size and steps between evaluations.
    """
    return {
        "smoke": Scale(targets[0], smoke, sizes=sizes[0]),
        "small": Scale(targets[1], *small, needs=CIFAR, sizes=sizes[1]),
        "paper": Scale(targets[2], *paper, needs=IMAGENET, sizes=sizes[2]),
    }
