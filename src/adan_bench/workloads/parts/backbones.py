"""ImageNet weights of ResNets and ConvNeXts, whoever published the file, under the names that transformers has."""

from __future__ import annotations

import re
from collections.abc import Callable

from torch import nn

from adan_bench.errors import UsageError
from adan_bench.task import Context

LAYERS = {"conv": "convolution", "bn": "normalization"}
#: Parts of a block of ConvNeXt: the authors' names, timm's, MMPretrain's, torchvision's.
PARTS = {
    "dwconv": ("dwconv", "conv_dw", "depthwise_conv", "block.0"),
    "layernorm": ("norm", "block.2"),
    "pwconv1": ("pwconv1", "mlp.fc1", "pointwise_conv1", "block.3"),
    "pwconv2": ("pwconv2", "mlp.fc2", "pointwise_conv2", "block.5"),
    "layer_scale_parameter": ("gamma", "layer_scale"),
}
BLOCK = {name: ours for ours, names in PARTS.items() for name in names}


def resnet_name(name: str) -> str | None:
    """By the name in torchvision's and timm's files.

    >>> resnet_name("layer2.0.downsample.1.bias")
    'encoder.stages.1.layers.0.shortcut.normalization.bias'
    """
    if stem := re.fullmatch(r"(conv|bn)1\.(\w+)", name):
        return f"embedder.embedder.{LAYERS[stem[1]]}.{stem[2]}"
    match = re.fullmatch(r"layer(\d)\.(\d+)\.(?:(conv|bn)(\d)|downsample\.([01]))\.(\w+)", name)
    if match is None:
        return None
    stage, block, kind, number, shortcut, leaf = match.groups()
    place = f"layer.{int(number) - 1}.{LAYERS[kind]}" if kind else f"shortcut.{tuple(LAYERS.values())[int(shortcut)]}"
    return f"encoder.stages.{int(stage) - 1}.layers.{block}.{place}.{leaf}"


def convnext_name(name: str) -> str | None:
    """By the name in the files of its authors, timm, MMPretrain or torchvision.

    >>> convnext_name("stages.2.blocks.8.mlp.fc1.bias"), convnext_name("features.7.2.layer_scale")
    ('encoder.stages.2.layers.8.pwconv1.bias', 'encoder.stages.3.layers.2.layer_scale_parameter')
    """
    if stem := re.fullmatch(r"(?:stem|downsample_layers\.0|features\.0)\.([01])\.(\w+)", name):
        return f"embeddings.{('patch_embeddings', 'layernorm')[int(stem[1])]}.{stem[2]}"
    if down := re.fullmatch(
        r"(?:stages\.(\d)\.downsample|downsample_layers\.(\d)|features\.([246]))\.([01]\.\w+)", name
    ):
        stage = int(down[1] or down[2] or int(down[3]) // 2)
        return f"encoder.stages.{stage}.downsampling_layer.{down[4]}"
    block = re.fullmatch(r"(?:stages\.(\d)\.(?:blocks\.)?|features\.([1357])\.)(\d+)\.(.+?)(\.weight|\.bias|)", name)
    if block is None or block[4] not in BLOCK:
        return None
    stage = int(block[1] or int(block[2]) // 2)
    return f"encoder.stages.{stage}.layers.{block[3]}.{BLOCK[block[4]]}{block[5]}"


def load_backbone(backbone: nn.Module, context: Context, kind: str, absent: str = "no such part") -> None:
    """The weights of `context.init` without their classifier.

    kind: "ResNet" or "ConvNeXt"; absent: what the names of parts hold that a classifier does not have.
    """
    translate: Callable[[str], str | None] = {"ResNet": resnet_name, "ConvNeXt": convnext_name}[kind]
    own, weights = set(backbone.state_dict()), {}
    for name, value in context.weights().items():
        bare = name.removeprefix("module.").removeprefix("backbone.").removeprefix(f"{kind.lower()}.")
        bare = bare if bare in own else translate(bare) or ""
        if bare in own:
            weights[bare] = value.flatten() if bare.endswith("layer_scale_parameter") else value
    missing = [name for name in own if name not in weights and absent not in name and not name.endswith("_tracked")]
    wrong = [name for name, value in weights.items() if value.shape != backbone.state_dict()[name].shape]
    if missing or wrong:
        why = f"{missing[0]} is missing" if missing else f"{wrong[0]} has another shape"
        raise UsageError(f"--init {context.init}: these are not the weights of a {kind} of this size ({why})")
    backbone.load_state_dict(weights, strict=False)


def begins(context: Context, network: str) -> str:
    """For the note of a run: how the backbone starts."""
    if context.init is None:
        return f"the backbone starts at random (published: {network} of ImageNet, see --init)"
    return "the backbone starts from the weights of --init"
