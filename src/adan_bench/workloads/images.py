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
from adan_bench.task import SCALES, Scale, Settings
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
    """How a model is trained.

    family: "resnet" (basic blocks), "bottleneck", "convnext", "vit" or "swin".
    stochastic_depth: the largest share of examples for which a residual branch is left out, at the last block.
    decay_all: biases and norms decay too.
    center: the share of the shorter side that evaluation looks at.
    repeats: how often each image comes in an epoch: repeated augmentation.
    imagenet: whether ImageNet is the data at paper scale; else CIFAR-10.
    """

    family: str
    setting: Setting
    stochastic_depth: float = 0.0
    max_grad_norm: float | None = None
    decay_all: bool = False
    center: float = 0.875
    repeats: int = 1
    imagenet: bool = True

    def trained(self, options: Settings) -> Model:
        """With options of a run in place of its own: fields of the model or of its training setting."""
        own = {key: value for key, value in options.items() if key in MODEL_OPTIONS}
        rest = {key: value for key, value in options.items() if key not in MODEL_OPTIONS}
        return replace(self, setting=replace(self.setting, **rest), **own)


MODEL_OPTIONS = ("stochastic_depth", "decay_all", "center", "repeats")
OPTIONS = (*MODEL_OPTIONS, "magnitude", "mixup", "smoothing", "loss")  # the latter of the training setting


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
_BASIC = Model("resnet", PLAIN, max_grad_norm=5.0, decay_all=True)
_BOTTLENECK = Model("bottleneck", SETTING_I, 0.05, 5.0, decay_all=True, center=0.95)
for _name, _title, _model, _width, _depths, _targets in (
    ("resnet18", "ResNet-18", _BASIC, 64, [2, 2, 2, 2], (0.8, 0.8, 0.7023)),
    ("resnet50", "ResNet-50", _BOTTLENECK, 64, [3, 4, 6, 3], (0.6, 0.7, 0.798)),
    ("resnet101", "ResNet-101", _BOTTLENECK, 64, [3, 4, 23, 3], (0.6, 0.7, 0.813)),
    ("convnext-t", "ConvNeXt-T", Model("convnext", SETTING_II, 0.1, center=0.95), 96, [3, 3, 9, 3], (0.8, 0.6, 0.821)),
    ("convnext-s", "ConvNeXt-S", Model("convnext", SETTING_II, 0.4), 96, [3, 3, 27, 3], (0.8, 0.6, 0.831)),
    ("vit-s", "ViT-S", Model("vit", SETTING_II, 0.1, center=0.9), 384, [12], (0.7, 0.5, 0.799)),
    ("vit-s-setting-i", "ViT-S", Model("vit", SETTING_I, 0.05, center=0.9), 384, [12], (0.5, 0.5, 0.779)),
    ("vit-b", "ViT-B", Model("vit", SETTING_II, 0.1, center=0.9), 768, [12], (0.7, 0.5, 0.818)),
    ("swin-t", "Swin-T", Model("swin", SETTING_II, 0.2), 96, [2, 2, 6, 2], (0.7, 0.5, 0.812)),
    ("swin-s", "Swin-S", Model("swin", SETTING_II, 0.3), 96, [2, 2, 18, 2], (0.7, 0.5, 0.832)),
    ("swin-b", "Swin-B", Model("swin", SETTING_II, 0.5), 128, [2, 2, 18, 2], (0.7, 0.5, 0.835)),
):
    _smoke, _small = (80, 1950) if _name.startswith("resnet") else (100, 3900)
    _epochs, _batch = (90, 256) if _model is _BASIC else (300, 2048)
    _paper = _epochs * (IMAGENET_SIZE // _batch), _batch, 10 * (IMAGENET_SIZE // _batch)
    _sizes = image_sizes(_model.family, _width, _depths)
    register(_name, _title, _model, image_scales(_sizes, _targets, _smoke, (_small, 128), _paper))

# ResNet-34 on CIFAR-10, as AdaBelief's code has it, which the paper refers to: 200 epochs of 390 steps, the rate
# divided by 10 at epoch 150 (--schedule step --warmup 0). small is 5 epochs: under a minute on a recent GPU.
_tiny, _whole, _ = image_sizes("resnet", 64, [3, 4, 6, 3], shrink=1)
_scales = {
    "smoke": Scale(0.65, 80, sizes=_tiny),
    "small": Scale(0.8, 1950, 128, needs=CIFAR, sizes=_whole),
    "paper": Scale(0.9428, 78_000, 128, eval_every=390, needs=CIFAR, sizes=_whole),
}
register("cifar-resnet34", "ResNet-34 on CIFAR-10", Model("resnet", PLAIN, decay_all=True, imagenet=False), _scales)


# Small models on CIFAR-10

CUTOUT = 8  # pixels
SMOOTHED = replace(PLAIN, smoothing=0.1)
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


@dataclass(frozen=True)
class Encoder:
    """A ViT and what its trainings have of their own, from the official code and its fine-tuning recipe.

    losses, accuracies: the targets at smoke, small and paper scale. The last loss is that of the training images in the
        Adan authors' published logs after 800 epochs; the last accuracy is the official one with AdamW.
    """

    title: str
    width: int
    depth: int
    epochs: int
    layer_decay: float
    stochastic_depth: float
    losses: tuple[float, float, float]
    accuracies: tuple[float, float, float]


ENCODERS = {
    "vit-b": Encoder("ViT-B", 768, 12, 100, 0.65, 0.1, (0.48, 0.6, 0.41), (0.7, 0.6, 0.836)),
    "vit-l": Encoder("ViT-L", 1024, 24, 50, 0.75, 0.2, (0.48, 0.6, 0.40), (0.7, 0.6, 0.859)),
}

for _name, _encoder in ENCODERS.items():
    _sizes = image_sizes("vit", _encoder.width, [_encoder.depth], shrink=6)
    _epoch = IMAGENET_SIZE // 4096
    by_loss(
        f"mae-pretrain-{_name}",
        summary=f"MAE: {_encoder.title} completes images of which it sees a quarter",
        **image_scales(_sizes, _encoder.losses, 80, (3900, 256), (800 * _epoch, 4096, 10 * _epoch)),
    )(built_by("mae", "pretraining"))
    _epoch = IMAGENET_SIZE // 2048
    by_accuracy(
        f"mae-finetune-{_name}",
        after=f"mae-pretrain-{_name}",
        summary=f"MAE: {_encoder.title} is fine-tuned under {SETTING_II.name}; at random weights without --init",
        **image_scales(_sizes, _encoder.accuracies, 80, (1950, 128), (_encoder.epochs * _epoch, 2048, 5 * _epoch)),
    )(built_by("mae", "finetuning", _encoder))
