"""Supervised image classification: the ResNets, ConvNeXts, ViTs and Swins of the paper's ImageNet tables.

smoke: digits, at an eighth of the width and a quarter of the depth. small: CIFAR-10, at the published width and depth
with smaller patches and windows. paper: ImageNet, as published.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from adan_bench.data.augment import PLAIN, SETTING_I, SETTING_II, Setting, StochasticDepth
from adan_bench.data.images import IMAGENET_SIZE, NEEDS, ImageData, Views, image_data
from adan_bench.spec import Context, Task
from adan_bench.workloads.classification import classification_task, without_decay
from adan_bench.workloads.models import (
    depth_shares,
    transformer_blocks,
    vit_sizes,
    vit_stochastic_depth,
    with_small_stem,
)
from adan_bench.workloads.registry import workload


@dataclass(frozen=True)
class Model:
    """A published model and its training.

    title: its name and the sizes that tell it from its family, for `adan-bench list`.
    stochastic_depth: the largest share of examples for which a residual branch is left out, at the last block.
    targets: accuracy to be reached at smoke, small and paper scale.
    steps: at smoke and small scale.
    decay_all: biases and norms decay too.
    centre: the share of the shorter side that evaluation looks at.
    """

    title: str
    build: Callable[[Model, ImageData, str], Any]
    depths: list[int]
    width: int
    setting: Setting
    stochastic_depth: float
    targets: tuple[float, float, float]
    steps: tuple[int, int] = (100, 3900)
    epochs: int = 300
    batch_size: int = 2048
    max_grad_norm: float | None = None
    decay_all: bool = False
    centre: float = 0.875

    def at(self, scale: str) -> tuple[int, list[int]]:
        """Width and depths."""
        if scale == "smoke":
            return self.width // 8, [math.ceil(depth / 4) for depth in self.depths]
        return self.width, self.depths


def resnet(model: Model, data: ImageData, scale: str, expansion: int = 1) -> Any:
    import transformers

    library: Any = transformers
    width, depths = model.at(scale)
    found = library.ResNetForImageClassification(
        library.ResNetConfig(
            num_channels=data.channels,
            num_labels=data.classes,
            layer_type="basic" if expansion == 1 else "bottleneck",
            depths=depths,
            embedding_size=width,
            hidden_sizes=[width * 2**i * expansion for i in range(4)],
        )
    )
    if scale != "paper":
        with_small_stem(found)
    if model.stochastic_depth:
        blocks = [block for stage in found.resnet.encoder.stages for block in stage.layers]
        for block, share in zip(blocks, depth_shares(len(blocks), model.stochastic_depth), strict=True):
            block.layer.append(StochasticDepth(share))
    return found


def convnext(model: Model, data: ImageData, scale: str) -> Any:
    import transformers

    library: Any = transformers
    width, depths = model.at(scale)
    return library.ConvNextForImageClassification(
        library.ConvNextConfig(
            num_channels=data.channels,
            num_labels=data.classes,
            image_size=data.size,
            patch_size={"smoke": 1, "small": 2, "paper": 4}[scale],
            depths=depths,
            hidden_sizes=[width * 2**i for i in range(4)],
            drop_path_rate=model.stochastic_depth,
        )
    )


def vit(model: Model, data: ImageData, scale: str) -> Any:
    import transformers

    library: Any = transformers
    width, (depth,) = model.at(scale)
    config = library.ViTConfig(num_labels=data.classes, **vit_sizes(width, depth, data, scale))
    found = library.ViTForImageClassification(config)
    vit_stochastic_depth(transformer_blocks(found), model.stochastic_depth)
    return found


def swin(model: Model, data: ImageData, scale: str) -> Any:
    import transformers

    library: Any = transformers
    # transformers wants windows no larger than the last stage: digits would have 1×1 pixels there, so it is left out.
    stages = 4 if scale != "smoke" else 3
    width, depths = model.at(scale)
    return library.SwinForImageClassification(
        library.SwinConfig(
            num_channels=data.channels,
            num_labels=data.classes,
            image_size=data.size,
            patch_size={"smoke": 1, "small": 1, "paper": 4}[scale],
            window_size={"smoke": 2, "small": 4, "paper": 7}[scale],
            embed_dim=width,
            depths=depths[:stages],
            num_heads=[model.width * 2**i // 32 for i in range(stages)],
            drop_path_rate=model.stochastic_depth,
        )
    )


def _vanilla(title: str, depths: list[int], paper: float) -> Model:
    """He et al.'s setting; the paper states 90 epochs and no batch size, 256 is theirs."""
    return Model(
        title,
        resnet,
        depths,
        64,
        PLAIN,
        0.0,
        (0.8, 0.8, paper),
        steps=(80, 1950),
        epochs=90,
        batch_size=256,
        max_grad_norm=5.0,
        decay_all=True,
    )


def _a2(title: str, depths: list[int], paper: float) -> Model:
    """Setting I; the centre of 0.95 is that of the A2 recipe."""
    return replace(
        _vanilla(title, depths, paper),
        build=partial(resnet, expansion=4),
        setting=SETTING_I,
        stochastic_depth=0.05,
        targets=(0.6, 0.7, paper),
        epochs=300,
        batch_size=2048,
        centre=0.95,
    )


# Batch sizes, epochs and clipping: "Training Setting" and "Implementation Details of Adan" in the paper. Stochastic
# depth of Setting II: the official values of DeiT, Swin and ConvNeXt. The last target: the official optimizer.
VIT_S = Model("ViT-S", vit, [12], 384, SETTING_II, 0.1, (0.7, 0.5, 0.799))
MODELS = {
    "resnet18": _vanilla("ResNet-18", [2, 2, 2, 2], 0.7023),
    "resnet34": _vanilla("ResNet-34", [3, 4, 6, 3], 0.733),  # not in the paper; torchvision's figure
    "resnet50": _a2("ResNet-50", [3, 4, 6, 3], 0.798),
    "resnet101": _a2("ResNet-101", [3, 4, 23, 3], 0.813),
    "convnext-t": Model("ConvNeXt-T", convnext, [3, 3, 9, 3], 96, SETTING_II, 0.1, (0.8, 0.6, 0.821)),
    "convnext-s": Model("ConvNeXt-S", convnext, [3, 3, 27, 3], 96, SETTING_II, 0.4, (0.8, 0.6, 0.831)),
    "vit-s": VIT_S,
    "vit-s-setting-i": replace(VIT_S, setting=SETTING_I, stochastic_depth=0.05, targets=(0.5, 0.5, 0.779)),
    "vit-b": replace(VIT_S, title="ViT-B", width=768, targets=(0.7, 0.5, 0.818)),
    "swin-t": Model("Swin-T", swin, [2, 2, 6, 2], 96, SETTING_II, 0.2, (0.7, 0.5, 0.812)),
    "swin-s": Model("Swin-S", swin, [2, 2, 18, 2], 96, SETTING_II, 0.3, (0.7, 0.5, 0.832)),
    "swin-b": Model("Swin-B", swin, [2, 2, 18, 2], 128, SETTING_II, 0.5, (0.7, 0.5, 0.835)),
}


def _register(name: str, model: Model) -> None:
    per_epoch = IMAGENET_SIZE // model.batch_size

    def build(context: Context) -> Task:
        data = image_data(context, Views(magnitude=model.setting.magnitude, centre=model.centre))
        task = classification_task(model.build(model, data, context.scale), data, context, model.setting)
        task.max_grad_norm = model.max_grad_norm
        task.groups = None if model.decay_all else without_decay
        return task

    build.__doc__ = f"{model.title} under {model.setting.name}."
    small = {"target": model.targets[1], "steps": model.steps[1], "batch_size": 128, "needs": NEEDS["small"]}
    paper = {
        "target": model.targets[2],
        "steps": model.epochs * per_epoch,
        "eval_every": 10 * per_epoch,
        "batch_size": model.batch_size,
        "needs": NEEDS["paper"],
    }
    workload(
        name,
        metric="accuracy",
        higher_is_better=True,
        target=model.targets[0],
        steps=model.steps[0],
        scales={"small": small, "paper": paper},
    )(build)


for _name, _model in MODELS.items():
    _register(_name, _model)
