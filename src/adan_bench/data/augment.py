"""The paper's Training Settings I and II: what is done to a batch of images and labels, and the loss that fits to it.

RandAugment sees single images and stands in `images.py`; here is what works on whole batches. What is random is drawn
on the host as a few small tensors; the rest has no branch and reads nothing back, so that a CUDA graph can hold it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adan_bench.data.settings import Setting

NOISE = 1 << 20  # different places at which an erased rectangle's noise may begin
PAIRS = 128  # that are mixed in the same way: timm draws once per GPU, which has 256 images in the authors' runs


def drawn(
    setting: Setting,
    count: int,
    size: int,
    key: tuple[int, int],
    own: Callable[[Tensor], Tensor] = lambda rows: rows,
) -> dict[str, Tensor]:
    """What is random about a batch of `count` images of size × size pixels, as the key (seed, position) says.

    own: picks what is for the images of this rank (`Context.own`).
    """
    draw = random.Random(repr(key))
    draws = erasing(count, size, setting.erasing, draw) if setting.erasing else {}
    draws |= mixing(count, size, setting, draw) if setting.mixup else {}
    return {name: own(value) for name, value in draws.items()}


def applied(
    images: Tensor, labels: Tensor, classes: int, setting: Setting, draws: Mapping[str, Tensor], noise: Tensor
) -> tuple[Tensor, Tensor]:
    """Images erased and mixed, labels as probabilities, as was drawn; noise: what erased boxes show, `box_noise`."""
    is_label = labels.unsqueeze(1) == torch.arange(classes, device=labels.device)
    targets = setting.smoothing / classes + is_label * (1 - setting.smoothing)
    if setting.erasing:
        images = erased(images, draws, noise)
    if setting.mixup:
        images, targets = mixed(images, targets, draws)
    return images, targets


def mixing(count: int, size: int, setting: Setting, draw: random.Random) -> dict[str, Tensor]:
    """For every 128 pairs by a fair coin: the share of each image in a weighted sum, or the box that its partner fills.

    weights: an image's share of the sum, and of the labels.
    """
    drawn = [_mixing(size, setting, draw) for _ in range(0, count, 2 * PAIRS)]
    groups = torch.arange(count).minimum(torch.arange(count).flip(0)) // PAIRS  # the same for both of a pair
    names = ("weights", "partner_boxes")
    return {name: torch.tensor(values)[groups] for name, values in zip(names, zip(*drawn, strict=True), strict=True)}


def _mixing(size: int, setting: Setting, draw: random.Random) -> tuple[list[float], list[int]]:
    if draw.random() < 0.5:
        share = draw.betavariate(setting.mixup, setting.mixup)
        return [share, share], [0, 0, 0, 0]
    side = math.sqrt(1 - draw.betavariate(setting.cutmix, setting.cutmix))
    box = [*_interval(size, side, draw), *_interval(size, side, draw)]
    top, bottom, left, right = box
    return [1.0, 1 - (bottom - top) * (right - left) / size**2], box


def mixed(images: Tensor, targets: Tensor, draws: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Every image with its partner, the same place counted from the end: a weighted sum, or a rectangle of it."""
    others, (blend, share) = images.flip(0), draws["weights"].to(images.dtype).unsqueeze(2).unbind(1)
    boxes = inside(draws["partner_boxes"], *images.shape[-2:]).unsqueeze(1)
    images = torch.where(boxes, others, others.lerp(images, blend[..., None, None]))
    return images, targets.flip(0).lerp(targets, share)


def _interval(length: int, share: float, draw: random.Random) -> tuple[int, int]:
    """A part of `length` around a random center, cut off at the ends."""
    half, center = int(length * share) // 2, draw.randrange(length)
    return max(0, center - half), min(length, center + half)


def erasing(count: int, size: int, share: float, draw: random.Random) -> dict[str, Tensor]:
    """Boxes in a share of the images: 2% to a third of the area, sides of 3:10 to 10:3; an empty one in the others."""
    key = torch.Generator().manual_seed(draw.getrandbits(62))
    chance, area, ratio, y, x = torch.rand(5, count, generator=key)
    area = (0.02 + area * (1 / 3 - 0.02)) * size**2
    ratio = torch.exp((2 * ratio - 1) * math.log(10 / 3))
    h = (area * ratio).sqrt().round().clamp(max=size - 1)  # 1.05 × the side at the extreme of both draws
    w = (area / ratio).sqrt().round().clamp(max=size - 1)
    top, left = (y * (size - h + 1)).floor(), (x * (size - w + 1)).floor()
    boxes = torch.stack([top, top + h * (chance < share), left, left + w], 1).long()
    return {"erased_boxes": boxes, "noise_starts": torch.randint(NOISE, (count,), generator=key)}


def erased(images: Tensor, draws: Mapping[str, Tensor], noise: Tensor) -> Tensor:
    parts = noise.unfold(0, images[0].numel(), 1)[draws["noise_starts"]].view_as(images)
    return torch.where(inside(draws["erased_boxes"], *images.shape[-2:]).unsqueeze(1), parts, images)


def box_noise(setting: Setting, pixels: int, device: torch.device | str) -> Tensor:
    """Normal noise from which every erased box takes a random part, the same on every device; empty without erasing.

    It is made once, before the first step: a compiled or captured one would draw or copy it again at every step.
    """
    size = NOISE + pixels if setting.erasing else 0
    return torch.randn(size, generator=torch.Generator().manual_seed(0)).to(device)


def inside(boxes: Tensor, height: int, width: int) -> Tensor:
    """Which of height × width pixels lie in boxes, whose last dimension is (top, bottom, left, right)."""
    top, bottom, left, right = boxes[..., None, None].unbind(-3)
    rows, columns = torch.arange(height, device=boxes.device).view(-1, 1), torch.arange(width, device=boxes.device)
    return (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)


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
        mask = torch.rand(len(branch), *[1] * (branch.dim() - 1), device=branch.device) >= self.share
        return branch * (mask / (1 - self.share)).to(branch.dtype)
