"""A small residual network on scikit-learn's handwritten digits."""

from __future__ import annotations

from adan_bench.digits import digits_task
from adan_bench.registry import workload
from adan_bench.spec import Context, Task


@workload("digits-resnet", metric="accuracy", higher_is_better=True, target=0.97, steps=300, eval_every=25)
def digits_resnet(context: Context) -> Task:
    """ResNet (three stages of 16, 32 and 64 channels) on scikit-learn's digits."""
    from torch import nn
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        num_channels=1,
        embedding_size=16,
        hidden_sizes=[16, 32, 64],
        depths=[1, 1, 1],
        layer_type="basic",
        num_labels=10,
    )
    model = ResNetForImageClassification(config)
    # The stem of ImageNet's ResNet (7×7, stride 2, then pooling) would leave 2×2 of 8×8 pixels.
    model.resnet.embedder.embedder.convolution = nn.Conv2d(1, 16, 3, padding=1, bias=False)
    model.resnet.embedder.pooler = nn.Identity()
    return digits_task(model, context)
