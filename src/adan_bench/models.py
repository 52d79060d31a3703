"""Models that more than one workload trains."""

from __future__ import annotations

from typing import Any

from torch import nn


def small_image_resnet(channels: int, widths: list[int], depths: list[int]) -> nn.Module:
    """A ResNet of basic blocks from transformers, for ten classes of images of 32×32 pixels or fewer.

    ImageNet's stem (7×7 with stride 2, then pooling) would leave 8×8 of 32×32 pixels, so it is a 3×3 convolution here,
    as is usual for CIFAR.
    """
    import transformers

    library: Any = transformers
    config = library.ResNetConfig(
        num_channels=channels,
        embedding_size=widths[0],
        hidden_sizes=widths,
        depths=depths,
        layer_type="basic",
        num_labels=10,
    )
    model = library.ResNetForImageClassification(config)
    model.resnet.embedder.embedder.convolution = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
    model.resnet.embedder.pooler = nn.Identity()
    assert isinstance(model, nn.Module)
    return model
