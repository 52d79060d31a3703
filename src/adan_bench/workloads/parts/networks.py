"""Models, and parts of models, that more than one workload trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import transformers
from torch import nn

from adan_bench.data.augment import StochasticDepth
from adan_bench.data.images import ImageData
from adan_bench.data.settings import Setting
from adan_bench.workloads.images import ImageSizes


def resnet(
    widths: Sequence[int], depths: Sequence[int], data: ImageData, layer: str = "basic", small_stem: bool = True
) -> Any:
    """A ResNet from transformers.

    small_stem: for images of 32×32 pixels or fewer. ImageNet's stem (7×7 with stride 2, then pooling) would leave 8×8
        of 32×32 pixels, so it is a 3×3 convolution here, as is usual for CIFAR.
    """
    config = transformers.ResNetConfig(
        num_channels=data.channels,
        embedding_size=widths[0] if layer == "basic" else widths[0] // 4,
        hidden_sizes=list(widths),
        depths=list(depths),
        layer_type=layer,
        num_labels=data.classes,
    )
    model = transformers.ResNetForImageClassification(config)
    if small_stem:
        stem = model.resnet.embedder
        old = stem.embedder.convolution
        stem.embedder.convolution = nn.Conv2d(old.in_channels, old.out_channels, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(stem.embedder.convolution.weight, mode="fan_out", nonlinearity="relu")  # as the others
        stem.pooler = nn.Identity()
    return model


def without_mask() -> str:
    """The attention for rows without padding, causal or not, by the name that transformers is to know it by.

    It is torch's, without the mask that transformers makes. For text, making that mask checks for packed sequences,
    which synchronizes with the device at every step. In a CUDA graph the mask is a tensor, which rules out the fastest
    kernels.
    """
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register("sdpa_without_mask", sdpa_attention_forward)
    return "sdpa_without_mask"


def vit_sizes(sizes: ImageSizes, data: ImageData) -> dict[str, Any]:
    """What ViT and ViT-MAE have in common."""
    (depth,) = sizes.depths
    return {
        "image_size": data.size,
        "num_channels": data.channels,
        "patch_size": sizes.patch,
        "hidden_size": sizes.width,
        "num_hidden_layers": depth,
        "num_attention_heads": sizes.width // sizes.head,
        "intermediate_size": 4 * sizes.width,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": 1e-6,
        "initializer_range": sizes.deviation,
        "attn_implementation": without_mask(),
    }


def vit_config(sizes: ImageSizes, data: ImageData) -> Any:
    return transformers.ViTConfig(num_labels=data.classes, **vit_sizes(sizes, data))


def depth_shares(depth: int, largest: float) -> list[float]:
    """Stochastic depth of the blocks: from 0 at the first to the largest at the last.

    >>> depth_shares(3, 0.1)
    [0.0, 0.05, 0.1]
    """
    return [largest * i / max(1, depth - 1) for i in range(depth)]


def vit_stochastic_depth(model: nn.Module, largest: float) -> None:
    """In place of a ViT's dropout, which stands at the end of both residual branches of a block."""
    # transformers' versions call the blocks encoder.layer or layers
    blocks = next(module for module in model.modules() if isinstance(module, nn.ModuleList))
    for block, share in zip(blocks, depth_shares(len(blocks), largest), strict=True):
        for name, module in list(block.named_modules()):
            if isinstance(module, nn.Dropout):
                block.set_submodule(name, StochasticDepth(share))


# The published models


def published_resnet(setting: Setting, sizes: ImageSizes, data: ImageData, layer: str = "basic") -> Any:
    widths = [sizes.width * 2**i * (4 if layer == "bottleneck" else 1) for i in range(4)]
    network = resnet(widths, sizes.depths, data, layer, small_stem=data.size <= 32)
    if layer == "bottleneck" and data.size > 32:  # as in timm, by which the published ones were trained
        for stage in network.resnet.encoder.stages:
            for block in stage.layers:
                nn.init.zeros_(block.layer[-1].normalization.weight)
    if setting.stochastic_depth:
        blocks = [block for stage in network.resnet.encoder.stages for block in stage.layers]
        for block, share in zip(blocks, depth_shares(len(blocks), setting.stochastic_depth), strict=True):
            block.layer.append(StochasticDepth(share))
    return network


def staged(setting: Setting, sizes: ImageSizes, data: ImageData, stages: int = 4) -> dict[str, Any]:
    """What ConvNeXt and Swin have in common."""
    images = {"num_channels": data.channels, "num_labels": data.classes, "image_size": data.size}
    shape = {"patch_size": sizes.patch, "depths": list(sizes.depths[:stages])}
    return {**images, **shape, "drop_path_rate": setting.stochastic_depth}


def convnext(setting: Setting, sizes: ImageSizes, data: ImageData) -> Any:
    widths = [sizes.width * 2**i for i in range(4)]
    config = transformers.ConvNextConfig(hidden_sizes=widths, **staged(setting, sizes, data))
    return transformers.ConvNextForImageClassification(config)


def vit(setting: Setting, sizes: ImageSizes, data: ImageData) -> Any:
    network = transformers.ViTForImageClassification(vit_config(sizes, data))
    vit_stochastic_depth(network, setting.stochastic_depth)
    return network


def swin(setting: Setting, sizes: ImageSizes, data: ImageData) -> Any:
    # transformers wants windows no larger than the last stage: digits would have 1×1 pixels there, so it is left out.
    shape = staged(setting, sizes, data, 4 if data.size >= 32 else 3)
    heads = [sizes.width * 2**i // sizes.head for i in range(len(shape["depths"]))]
    config = transformers.SwinConfig(window_size=sizes.window, embed_dim=sizes.width, num_heads=heads, **shape)
    network = transformers.SwinForImageClassification(config)
    if setting.stochastic_depth:  # transformers leaves out the attention of a block alone, Swin's authors its MLP too
        blocks = [block for stage in network.swin.encoder.layers for block in stage.blocks]
        for block, share in zip(blocks, depth_shares(len(blocks), setting.stochastic_depth), strict=True):
            name = "mlp" if hasattr(block, "mlp") else "output"  # by transformers' version
            setattr(block, name, nn.Sequential(getattr(block, name), StochasticDepth(share)))
    return network


BUILDERS: dict[str, Callable[[Setting, ImageSizes, ImageData], Any]] = {
    "resnet": published_resnet,
    "bottleneck": partial(published_resnet, layer="bottleneck"),
    "convnext": convnext,
    "vit": vit,
    "swin": swin,
}
