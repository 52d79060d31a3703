"""Image models: the paper's ImageNet tables, masked autoencoders, small ones on CIFAR-10 and digits.

smoke: digits, at an eighth of the width and a fraction of the depth. small: CIFAR-10, at the published width and depth
with smaller patches and windows. paper: ImageNet, as published. mae-*: a ViT learns to complete images of which it
sees a quarter (arXiv:2111.06377), then to classify them. cifar-*: small models with which optimizers are compared in
minutes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from adan_bench.data.files import CIFAR, IMAGENET, IMAGENET_SIZE
from adan_bench.data.settings import PLAIN, SETTING_I, SETTING_II, Setting
from adan_bench.task import SCALES, Scale
from adan_bench.workloads.registry import built_by, workload

by_loss = partial(workload, metric="loss", higher_is_better=False)
by_accuracy = partial(workload, metric="accuracy", higher_is_better=True)

PATCHES = {"convnext": (1, 2, 4), "vit": (2, 4, 16), "swin": (1, 1, 4)}
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
            PATCHES.get(family, (0, 0, 0))[i],
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


# The ImageNet tables


@dataclass(frozen=True)
class Model:
    """A published model and how it is trained.

    family: "resnet" (basic blocks), "bottleneck", "convnext", "vit" or "swin".
    imagenet: whether ImageNet is the data at paper scale; else CIFAR-10.
    """

    family: str
    setting: Setting
    imagenet: bool = True


#: Fields of the training setting that a run may set otherwise.
OPTIONS = ("stochastic_depth", "decay_all", "center", "repeats", "magnitude", "mixup", "smoothing", "loss")
MODELS: dict[str, Model] = {}


def register(name: str, title: str, model: Model, scales: dict[str, Any]) -> None:
    MODELS[name] = model
    summary, build = f"{title} under {model.setting.name}", built_by("classification", "published", model)
    by_accuracy(name, summary=summary, options=OPTIONS, **scales)(build)


# Batch sizes, epochs and clipping: "Training Setting" and "Implementation Details of Adan" in the paper, which states
# no batch size for ResNet-18: 256 is He et al.'s. Stochastic depth of Setting II: the official values of DeiT, Swin and
# ConvNeXt. The last target: the official optimizer. Centers: 0.95 for ResNet by the A2 recipe and the authors'
# configurations; those of ViT and ConvNeXt-T have `crop_pct: null`, for which timm of July 2022 takes the model's own,
# 0.9 for DeiT's and 0.95 for convnext_tiny_hnf (timm/models/vision_transformer.py and convnext.py).
for _name, _title, _family, _setting, _dropped, _center, _width, _depths, _targets in (
    ("resnet18", "ResNet-18", "resnet", PLAIN, 0.0, 0.875, 64, [2, 2, 2, 2], (0.8, 0.8, 0.7023)),
    ("resnet50", "ResNet-50", "bottleneck", SETTING_I, 0.05, 0.95, 64, [3, 4, 6, 3], (0.6, 0.7, 0.798)),
    ("resnet101", "ResNet-101", "bottleneck", SETTING_I, 0.05, 0.95, 64, [3, 4, 23, 3], (0.6, 0.7, 0.813)),
    ("convnext-t", "ConvNeXt-T", "convnext", SETTING_II, 0.1, 0.95, 96, [3, 3, 9, 3], (0.8, 0.6, 0.821)),
    ("convnext-s", "ConvNeXt-S", "convnext", SETTING_II, 0.4, 0.875, 96, [3, 3, 27, 3], (0.8, 0.6, 0.831)),
    ("vit-s", "ViT-S", "vit", SETTING_II, 0.1, 0.9, 384, [12], (0.7, 0.5, 0.799)),
    ("vit-s-setting-i", "ViT-S", "vit", SETTING_I, 0.05, 0.9, 384, [12], (0.5, 0.5, 0.779)),
    ("vit-b", "ViT-B", "vit", SETTING_II, 0.1, 0.9, 768, [12], (0.7, 0.5, 0.818)),
    ("swin-t", "Swin-T", "swin", SETTING_II, 0.2, 0.875, 96, [2, 2, 6, 2], (0.7, 0.5, 0.812)),
    ("swin-s", "Swin-S", "swin", SETTING_II, 0.3, 0.875, 96, [2, 2, 18, 2], (0.7, 0.5, 0.832)),
    ("swin-b", "Swin-B", "swin", SETTING_II, 0.5, 0.875, 128, [2, 2, 18, 2], (0.7, 0.5, 0.835)),
):
    _smoke, _small = (80, 1950) if _name.startswith("resnet") else (100, 3900)
    _epochs, _batch = (90, 256) if _setting is PLAIN else (300, 2048)
    _paper = _epochs * (IMAGENET_SIZE // _batch), _batch, 10 * (IMAGENET_SIZE // _batch)
    _sizes = image_sizes(_family, _width, _depths)
    _setting = replace(_setting, stochastic_depth=_dropped, center=_center)
    if _name.startswith("resnet"):
        _setting = replace(_setting, max_grad_norm=5.0, decay_all=True)
    register(_name, _title, Model(_family, _setting), image_scales(_sizes, _targets, _smoke, (_small, 128), _paper))

# ResNet-34 on CIFAR-10, as AdaBelief's code has it, which the paper refers to: 200 epochs of 390 steps, the rate
# divided by 10 at epoch 150 (--schedule step --warmup 0). small is 5 epochs: under a minute on a recent GPU.
_tiny, _whole, _ = image_sizes("resnet", 64, [3, 4, 6, 3], shrink=1)
_scales = {
    "smoke": Scale(0.65, 80, sizes=_tiny),
    "small": Scale(0.8, 1950, 128, needs=CIFAR, sizes=_whole),
    "paper": Scale(0.9428, 78_000, 128, eval_every=390, needs=CIFAR, sizes=_whole),
}
_model = Model("resnet", replace(PLAIN, decay_all=True), imagenet=False)
register("cifar-resnet34", "ResNet-34 on CIFAR-10", _model, _scales)


# Small models on CIFAR-10

SMOOTHED = replace(PLAIN, smoothing=0.1, cutout=8)
SMALL_VIT = ImageSizes(256, (6,), patch=4, window=0, head=64, deviation=0.02)
_SMOKE = image_sizes("vit", 256, [6])[0]

by_accuracy(
    "cifar-vit",
    smoke=Scale(0.6, 100, sizes=_SMOKE),
    small=Scale(0.7, 3900, 256, needs=CIFAR, sizes=SMALL_VIT),
    summary="ViT of 6 layers on CIFAR-10; with --init a run of cifar-mae, its encoder fine-tuned",
)(built_by("classification", "cifar_vit"))

by_accuracy(
    "cifar-convnext",
    smoke=Scale(0.8, 100, sizes=ImageSizes(16, (1, 1), patch=0, window=0, head=0, deviation=0.12)),
    small=Scale(0.8, 4875, 256, needs=CIFAR, sizes=ImageSizes(64, (2, 2, 6, 2), 0, 0, 0, deviation=0.02)),
    summary="ConvNeXt of 12 blocks on CIFAR-10",
)(built_by("classification", "cifar_convnext"))

by_loss(
    "cifar-mae",
    smoke=Scale(0.5, 100, sizes=_SMOKE),
    small=Scale(0.55, 9750, 256, needs=CIFAR, sizes=SMALL_VIT),
    summary="Masked autoencoder on CIFAR-10: a ViT of 6 layers sees a quarter of an image, "
    "a decoder of 2 draws the rest",
)(built_by("mae", "cifar_mae"))

# scikit-learn's handwritten digits

by_accuracy(
    "digits-resnet",
    smoke=Scale(target=0.93, steps=150),
    summary="ResNet (three stages of 16, 32 and 64 channels) on scikit-learn's digits",
)(built_by("classification", "digits_resnet"))

by_accuracy(
    "digits-vit",
    smoke=Scale(target=0.85, steps=240, eval_every=20),
    summary="ViT (3 layers of width 48, patches of 2×2) on scikit-learn's digits",
)(built_by("classification", "digits_vit"))

# Masked autoencoders


# From the official code and its fine-tuning recipe: epochs, layer decay, stochastic depth. Targets at smoke, small and
# paper scale: the last loss is that of the training images in the Adan authors' published logs after 800 epochs, the
# last accuracy is the official one with AdamW.
for _name, _title, _width, _depth, _epochs, _decay, _dropped, _losses, _accuracies in (
    ("vit-b", "ViT-B", 768, 12, 100, 0.65, 0.1, (0.48, 0.6, 0.41), (0.7, 0.6, 0.836)),
    ("vit-l", "ViT-L", 1024, 24, 50, 0.75, 0.2, (0.48, 0.6, 0.40), (0.7, 0.6, 0.859)),
):
    _sizes = image_sizes("vit", _width, [_depth], shrink=6)
    _epoch = IMAGENET_SIZE // 4096
    by_loss(
        f"mae-pretrain-{_name}",
        summary=f"MAE: {_title} completes images of which it sees a quarter",
        **image_scales(_sizes, _losses, 80, (3900, 256), (800 * _epoch, 4096, 10 * _epoch)),
    )(built_by("mae", "pretraining"))
    _epoch = IMAGENET_SIZE // 2048
    by_accuracy(
        f"mae-finetune-{_name}",
        after=f"mae-pretrain-{_name}",
        summary=f"MAE: {_title} is fine-tuned under {SETTING_II.name}; at random weights without --init",
        **image_scales(_sizes, _accuracies, 80, (1950, 128), (_epochs * _epoch, 2048, 5 * _epoch)),
    )(built_by("mae", "finetuning", replace(SETTING_II, stochastic_depth=_dropped), _decay))
