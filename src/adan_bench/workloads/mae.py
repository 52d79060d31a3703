"""MAE (arXiv 2111.06377): a ViT learns to complete images of which it sees a quarter, then to classify them.

smoke: digits, at an eighth of the width and a sixth of the depth. small: CIFAR-10 with patches of 4×4 pixels. paper:
ImageNet, as published.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adan_bench.data.files import IMAGENET_SIZE
from adan_bench.data.settings import SETTING_II
from adan_bench.errors import UsageError
from adan_bench.task import Context, Settings, Task
from adan_bench.workloads.image_sizes import ImageSizes, image_scales, image_sizes
from adan_bench.workloads.registry import workload

if TYPE_CHECKING:
    from torch import nn

    from adan_bench.data.images import ImageData
    from adan_bench.workloads.parts.mae import Classifier


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


def mae_config(sizes: ImageSizes, data: ImageData) -> Any:
    import transformers

    from adan_bench.workloads.parts.networks import vit_sizes

    width, depth, head = (512, 8, 32) if data.size >= 32 else (64, 2, 16)
    return transformers.ViTMAEConfig(
        mask_ratio=0.75,
        norm_pix_loss=True,
        decoder_hidden_size=width,
        decoder_num_hidden_layers=depth,
        decoder_num_attention_heads=width // head,
        decoder_intermediate_size=4 * width,
        **{**vit_sizes(sizes, data), "initializer_range": 0.02},
    )


def vit_config(sizes: ImageSizes, data: ImageData) -> Any:
    import transformers

    from adan_bench.workloads.parts.networks import vit_sizes

    return transformers.ViTConfig(num_labels=data.classes, **vit_sizes(sizes, data))


def pretraining_task(context: Context) -> Task:
    import transformers

    from adan_bench.data.images import Augmentation, image_data
    from adan_bench.workloads.parts.mae import autoencoding, with_official_start

    data = image_data(context, Augmentation(crop=0.2))
    config = mae_config(context.sizes, data)
    model = with_official_start(transformers.ViTMAEForPreTraining(config), config)
    return autoencoding(
        model, lambda model, images, noise: model(images, noise=noise).loss, config.patch_size, data, context
    )


def finetuning_task(encoder: Encoder, context: Context) -> Task:
    from adan_bench.data.images import Augmentation, image_data
    from adan_bench.workloads.parts.classification import classification_task
    from adan_bench.workloads.parts.mae import Classifier
    from adan_bench.workloads.parts.networks import transformer_blocks, vit_stochastic_depth

    data = image_data(context, Augmentation(magnitude=SETTING_II.magnitude))
    model = Classifier(vit_config(context.sizes, data))
    begins = "from random weights"
    if context.init is not None:
        load_encoder(model, context)
        begins = "from pre-trained weights"
    blocks = transformer_blocks(model)
    vit_stochastic_depth(blocks, encoder.stochastic_depth)

    def groups(model: nn.Module, settings: Settings) -> list[dict[str, Any]]:
        return layer_groups(model, settings, encoder.layer_decay)

    task = classification_task(model, data, context, SETTING_II)
    task.note += f"; {begins}"
    task.groups = groups
    return task


def load_encoder(model: Classifier, context: Context) -> None:
    """The encoder's weights of a pre-training: all but its last norm, which the classifier replaces."""
    prefix = "vit."
    weights = {
        name[len(prefix) :]: value
        for name, value in context.weights().items()
        if name.startswith(prefix) and not name.startswith("vit.layernorm.")
    }
    try:
        model.vit.load_state_dict(weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise UsageError(
            f"--init {context.init}: its weights are not those of this encoder ({reason}); "
            "name a run of the pre-training at the same scale"
        ) from error


def layer_groups(model: nn.Module, settings: Settings, decay: float) -> list[dict[str, Any]]:
    """Learning rates that fall by the factor `decay` from each layer to the one before it; the head's stands first."""
    from adan_bench.workloads.parts.classification import without_decay
    from adan_bench.workloads.parts.networks import transformer_blocks

    blocks = transformer_blocks(model)
    layers = {p: number for number, block in enumerate(blocks, 1) for p in block.parameters()}
    layers |= {p: 0 for name, p in model.named_parameters() if ".embeddings." in name}
    last = len(blocks) + 1
    groups = []
    for group in without_decay(model, settings):
        parts: defaultdict[int, list[nn.Parameter]] = defaultdict(list)
        for p in group["params"]:
            parts[layers.get(p, last)].append(p)
        groups += [
            {**group, "params": params, "lr": settings["lr"] * decay ** (last - layer)}
            for layer, params in parts.items()
        ]
    return sorted(groups, key=lambda group: -float(group["lr"]))


def _register(name: str, encoder: Encoder) -> None:
    def finetune(context: Context) -> Task:
        return finetuning_task(encoder, context)

    sizes = image_sizes("vit", encoder.width, [encoder.depth], shrink=6)
    epoch = IMAGENET_SIZE // 4096
    workload(
        f"mae-pretrain-{name}",
        metric="loss",
        higher_is_better=False,
        summary=f"MAE: {encoder.title} completes images of which it sees a quarter",
        **image_scales(sizes, encoder.losses, 80, (3900, 256), (800 * epoch, 4096, 10 * epoch)),
    )(pretraining_task)
    epoch = IMAGENET_SIZE // 2048
    workload(
        f"mae-finetune-{name}",
        metric="accuracy",
        higher_is_better=True,
        after=f"mae-pretrain-{name}",
        summary=f"MAE: {encoder.title} is fine-tuned under {SETTING_II.name}; at random weights without --init",
        **image_scales(sizes, encoder.accuracies, 80, (1950, 128), (encoder.epochs * epoch, 2048, 5 * epoch)),
    )(finetune)


for _name, _encoder in ENCODERS.items():
    _register(_name, _encoder)
