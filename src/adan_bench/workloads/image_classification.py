"""Supervised image classification: the ResNets, ConvNeXts, ViTs and Swins of the paper's ImageNet tables.

smoke: digits, at an eighth of the width and a quarter of the depth. small: CIFAR-10, at the published width and depth
with smaller patches and windows. paper: ImageNet, as published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from adan_bench.data.files import CIFAR, IMAGENET_SIZE
from adan_bench.data.settings import PLAIN, SETTING_I, SETTING_II, Setting
from adan_bench.task import Context, Scale, Settings, Task
from adan_bench.workloads.image_sizes import ImageSizes, image_scales, image_sizes
from adan_bench.workloads.registry import workload

if TYPE_CHECKING:
    from adan_bench.data.images import ImageData


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


def resnet(model: Model, sizes: ImageSizes, data: ImageData) -> Any:
    from adan_bench.data.augment import StochasticDepth
    from adan_bench.workloads.parts.networks import depth_shares
    from adan_bench.workloads.parts.networks import resnet as build

    expansion, layer = (4, "bottleneck") if model.family == "bottleneck" else (1, "basic")
    widths = [sizes.width * 2**i * expansion for i in range(4)]
    network = build(widths, sizes.depths, data, layer, small_stem=data.size <= 32)
    if model.stochastic_depth:
        blocks = [block for stage in network.resnet.encoder.stages for block in stage.layers]
        for block, share in zip(blocks, depth_shares(len(blocks), model.stochastic_depth), strict=True):
            block.layer.append(StochasticDepth(share))
    return network


def convnext(model: Model, sizes: ImageSizes, data: ImageData) -> Any:
    import transformers

    return transformers.ConvNextForImageClassification(
        transformers.ConvNextConfig(
            num_channels=data.channels,
            num_labels=data.classes,
            image_size=data.size,
            patch_size=sizes.patch,
            depths=list(sizes.depths),
            hidden_sizes=[sizes.width * 2**i for i in range(4)],
            drop_path_rate=model.stochastic_depth,
        )
    )


def vit(model: Model, sizes: ImageSizes, data: ImageData) -> Any:
    import transformers

    from adan_bench.workloads.parts.networks import transformer_blocks, vit_sizes, vit_stochastic_depth

    config = transformers.ViTConfig(num_labels=data.classes, **vit_sizes(sizes, data))
    network = transformers.ViTForImageClassification(config)
    vit_stochastic_depth(transformer_blocks(network), model.stochastic_depth)
    return network


def swin(model: Model, sizes: ImageSizes, data: ImageData) -> Any:
    import transformers
    from torch import nn

    from adan_bench.data.augment import StochasticDepth
    from adan_bench.workloads.parts.networks import depth_shares

    # transformers wants windows no larger than the last stage: digits would have 1×1 pixels there, so it is left out.
    stages = 4 if data.size >= 32 else 3
    network = transformers.SwinForImageClassification(
        transformers.SwinConfig(
            num_channels=data.channels,
            num_labels=data.classes,
            image_size=data.size,
            patch_size=sizes.patch,
            window_size=sizes.window,
            embed_dim=sizes.width,
            depths=list(sizes.depths[:stages]),
            num_heads=[sizes.width * 2**i // sizes.head for i in range(stages)],
            drop_path_rate=model.stochastic_depth,
        )
    )
    if model.stochastic_depth:  # transformers leaves out the attention of a block alone, Swin's authors its MLP too
        blocks = [block for stage in network.swin.encoder.layers for block in stage.blocks]
        for block, share in zip(blocks, depth_shares(len(blocks), model.stochastic_depth), strict=True):
            name = "mlp" if hasattr(block, "mlp") else "output"  # by transformers' version
            setattr(block, name, nn.Sequential(getattr(block, name), StochasticDepth(share)))
    return network


MODELS: dict[str, Model] = {}
BUILDERS = {"resnet": resnet, "bottleneck": resnet, "convnext": convnext, "vit": vit, "swin": swin}


def register(name: str, title: str, model: Model, scales: dict[str, Any]) -> None:
    def build(context: Context) -> Task:
        from adan_bench.data.images import Augmentation, cifar10, image_data
        from adan_bench.workloads.parts.classification import classification_task, without_decay

        trained = model.trained(context.training)
        augmentation = Augmentation(magnitude=trained.setting.magnitude, center=trained.center, repeats=trained.repeats)
        on_cifar = context.scale == "paper" and not trained.imagenet
        data = cifar10(context, augmentation) if on_cifar else image_data(context, augmentation)
        network = BUILDERS[trained.family](trained, context.sizes, data)
        task = classification_task(network, data, context, trained.setting)
        task.max_grad_norm = trained.max_grad_norm
        task.groups = None if trained.decay_all else without_decay
        return task

    MODELS[name] = model
    summary = f"{title} under {model.setting.name}"
    workload(name, metric="accuracy", higher_is_better=True, summary=summary, options=OPTIONS, **scales)(build)


# Batch sizes, epochs and clipping: "Training Setting" and "Implementation Details of Adan" in the paper. Stochastic
# depth of Setting II: the official values of DeiT, Swin and ConvNeXt. The last target: the official optimizer.


def _resnet(name: str, title: str, depths: Sequence[int], target: float) -> None:
    """Basic blocks in He et al.'s setting: the paper states 90 epochs and no batch size, 256 is theirs."""
    epoch = IMAGENET_SIZE // 256
    sizes = image_sizes("resnet", 64, depths)
    scales = image_scales(sizes, (0.8, 0.8, target), 80, (1950, 128), (90 * epoch, 256, 10 * epoch))
    register(name, title, Model("resnet", PLAIN, max_grad_norm=5.0, decay_all=True), scales)


def _bottleneck(name: str, title: str, depths: Sequence[int], target: float) -> None:
    """Setting I; the center of 0.95 is that of the A2 recipe."""
    epoch = IMAGENET_SIZE // 2048
    sizes = image_sizes("resnet", 64, depths)
    scales = image_scales(sizes, (0.6, 0.7, target), 80, (1950, 128), (300 * epoch, 2048, 10 * epoch))
    register(name, title, Model("bottleneck", SETTING_I, 0.05, 5.0, decay_all=True, center=0.95), scales)


def _modern(
    name: str,
    title: str,
    family: str,
    width: int,
    depths: Sequence[int],
    depth: float,
    targets: tuple[float, float, float],
    setting: Setting = SETTING_II,
) -> None:
    epoch = IMAGENET_SIZE // 2048
    scales = image_scales(
        image_sizes(family, width, depths), targets, 100, (3900, 128), (300 * epoch, 2048, 10 * epoch)
    )
    register(name, title, Model(family, setting, depth), scales)


_resnet("resnet18", "ResNet-18", [2, 2, 2, 2], 0.7023)
_bottleneck("resnet50", "ResNet-50", [3, 4, 6, 3], 0.798)
_bottleneck("resnet101", "ResNet-101", [3, 4, 23, 3], 0.813)
_modern("convnext-t", "ConvNeXt-T", "convnext", 96, [3, 3, 9, 3], 0.1, (0.8, 0.6, 0.821))
_modern("convnext-s", "ConvNeXt-S", "convnext", 96, [3, 3, 27, 3], 0.4, (0.8, 0.6, 0.831))
_modern("vit-s", "ViT-S", "vit", 384, [12], 0.1, (0.7, 0.5, 0.799))
_modern("vit-s-setting-i", "ViT-S", "vit", 384, [12], 0.05, (0.5, 0.5, 0.779), SETTING_I)
_modern("vit-b", "ViT-B", "vit", 768, [12], 0.1, (0.7, 0.5, 0.818))
_modern("swin-t", "Swin-T", "swin", 96, [2, 2, 6, 2], 0.2, (0.7, 0.5, 0.812))
_modern("swin-s", "Swin-S", "swin", 96, [2, 2, 18, 2], 0.3, (0.7, 0.5, 0.832))
_modern("swin-b", "Swin-B", "swin", 128, [2, 2, 18, 2], 0.5, (0.7, 0.5, 0.835))

# ResNet-34 on CIFAR-10, as AdaBelief's code has it, which the paper refers to: 200 epochs of 390 steps, the rate
# divided by 10 at epoch 150 (--schedule step --warmup 0). small is 5 epochs: under a minute on a recent GPU.
_smoke, _whole, _ = image_sizes("resnet", 64, [3, 4, 6, 3], shrink=1)
register(
    "cifar-resnet34",
    "ResNet-34 on CIFAR-10",
    Model("resnet", PLAIN, decay_all=True, imagenet=False),
    {
        "smoke": Scale(0.65, 80, sizes=_smoke),
        "small": Scale(0.8, 1950, 128, needs=CIFAR, sizes=_whole),
        "paper": Scale(0.9428, 78_000, 128, eval_every=390, needs=CIFAR, sizes=_whole),
    },
)
