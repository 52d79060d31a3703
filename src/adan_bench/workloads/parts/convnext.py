"""ConvNeXt (arXiv:2201.03545) for small images: a convolution of stride 2 before each stage, and no norm around it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adan_bench.workloads.images import ImageSizes
from adan_bench.workloads.parts.transformer import initialize


class SmallConvNeXt(nn.Module):
    """Stages of doubling width, mean pooling, a norm, a linear layer."""

    def __init__(self, sizes: ImageSizes, channels: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for stage, depth in enumerate(sizes.depths):
            width = sizes.width << stage
            layers += [nn.Conv2d(channels, width, 2, 2), *(ConvNeXtBlock(width) for _ in range(depth))]
            channels = width
        self.body = nn.Sequential(*layers)
        self.norm, self.head = nn.LayerNorm(channels, eps=1e-6), nn.Linear(channels, classes)
        initialize(self, sizes.deviation)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.body(images).mean((2, 3))))
        return logits


class ConvNeXtBlock(nn.Module):
    """A convolution of each channel, then an MLP over the channels of a pixel, scaled by 1e-6 at first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.scale = nn.Parameter(1e-6 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.scale * self.mlp(self.norm(self.conv(x).permute(0, 2, 3, 1)))
        return x + y.permute(0, 3, 1, 2)
