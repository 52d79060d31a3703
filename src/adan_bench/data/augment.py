"""The paper's Training Settings I and II: what is done to a batch of images and labels, and the loss that fits to it.

RandAugment sees single images and stands in `images.py`; here is what works on whole batches, on the device.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adan_bench.data.settings import Setting


def applied(
    images: Tensor, labels: Tensor, classes: int, setting: Setting, key: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Images erased and mixed, labels as probabilities, as the key (seed, position) says."""
    targets = torch.full((len(labels), classes), setting.smoothing / classes, device=labels.device)
    targets[torch.arange(len(labels), device=labels.device), labels] += 1 - setting.smoothing
    draw = random.Random(repr(key))
    if setting.erasing:
        images = erased(images, setting.erasing, draw)
    if setting.mixup:
        images, targets = mixed(images, targets, setting, draw)
    return images, targets


def mixed(images: Tensor, targets: Tensor, setting: Setting, draw: random.Random) -> tuple[Tensor, Tensor]:
    """Every image with its partner, the same place counted from the end: a weighted sum, or a rectangle of it."""
    others = images.flip(0)
    if draw.random() < 0.5:
        share = draw.betavariate(setting.mixup, setting.mixup)
        images = others.lerp(images, share)
    else:
        height, width = images.shape[-2:]
        side = math.sqrt(1 - draw.betavariate(setting.cutmix, setting.cutmix))
        top, bottom = _interval(height, side, draw)
        left, right = _interval(width, side, draw)
        images = images.clone()
        images[..., top:bottom, left:right] = others[..., top:bottom, left:right]
        share = 1 - (bottom - top) * (right - left) / (height * width)
    return images, targets.flip(0).lerp(targets, share)


def _interval(length: int, share: float, draw: random.Random) -> tuple[int, int]:
    """A part of `length` around a random centre, cut off at the ends."""
    half, centre = int(length * share) // 2, draw.randrange(length)
    return max(0, centre - half), min(length, centre + half)


def erased(images: Tensor, share: float, draw: random.Random) -> Tensor:
    """In a share of the images one rectangle is noise: 2% to a third of the area, sides of 3:10 to 10:3."""
    count, (height, width) = len(images), images.shape[-2:]
    key = torch.Generator().manual_seed(draw.getrandbits(62))
    chance, area, ratio, y, x = torch.rand(5, count, 1, 1, 1, generator=key)
    area = (0.02 + area * (1 / 3 - 0.02)) * height * width
    ratio = torch.exp((2 * ratio - 1) * math.log(10 / 3))
    h = (area * ratio).sqrt().round().clamp(max=height - 1)  # 1.05 × the side at the extreme of both draws
    w = (area / ratio).sqrt().round().clamp(max=width - 1)
    top, left = (y * (height - h + 1)).floor(), (x * (width - w + 1)).floor()
    rows, columns = torch.arange(height).view(-1, 1), torch.arange(width)
    inside = (chance < share) & (rows >= top) & (rows < top + h) & (columns >= left) & (columns < left + w)
    there = torch.Generator(images.device).manual_seed(draw.getrandbits(62))
    noise = torch.randn(images.shape, generator=there, device=images.device)
    return torch.where(inside.to(images.device), noise, images)


def loss_of(setting: Setting) -> Callable[[Tensor, Tensor], Tensor]:
    """(logits, probabilities) -> the mean loss."""
    return F.cross_entropy if setting.loss == "ce" else F.binary_cross_entropy_with_logits


class StochasticDepth(nn.Module):
    """A residual branch that is left out for a share of the examples, while training (arXiv 1603.09382)."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, branch: Tensor) -> Tensor:
        if not self.training or self.share == 0:
            return branch
        kept = torch.rand(len(branch), *[1] * (branch.dim() - 1), device=branch.device) >= self.share
        return branch * (kept / (1 - self.share)).to(branch.dtype)

    def extra_repr(self) -> str:
        return f"share={self.share:.3g}"
