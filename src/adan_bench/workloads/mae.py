"""MAE (arXiv 2111.06377): a ViT learns to complete images of which it sees a quarter, then to classify them.

smoke: digits, at an eighth of the width and a sixth of the depth. small: CIFAR-10 with patches of 4×4 pixels. paper:
ImageNet, as published.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from adan_bench.data.augment import SETTING_II
from adan_bench.data.batching import generator
from adan_bench.data.images import IMAGENET_SIZE, NEEDS, ImageData, Views, image_data
from adan_bench.spec import Context, Settings, Task, UsageError
from adan_bench.workloads.classification import classification_task, without_decay
from adan_bench.workloads.models import transformer_blocks, vit_sizes, vit_stochastic_depth
from adan_bench.workloads.registry import workload


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

    def sizes(self, data: ImageData, scale: str) -> dict[str, Any]:
        if scale == "smoke":
            return vit_sizes(self.width // 8, self.depth // 6, data, scale)
        return vit_sizes(self.width, self.depth, data, scale)


ENCODERS = {
    "vit-b": Encoder("ViT-B", 768, 12, 100, 0.65, 0.1, (0.48, 0.6, 0.41), (0.7, 0.6, 0.836)),
    "vit-l": Encoder("ViT-L", 1024, 24, 50, 0.75, 0.2, (0.48, 0.6, 0.40), (0.7, 0.6, 0.859)),
}


def mae_config(encoder: Encoder, data: ImageData, scale: str) -> Any:
    import transformers

    library: Any = transformers
    width, depth, head = (512, 8, 32) if scale != "smoke" else (64, 2, 16)
    return library.ViTMAEConfig(
        mask_ratio=0.75,
        norm_pix_loss=True,
        decoder_hidden_size=width,
        decoder_num_hidden_layers=depth,
        decoder_num_attention_heads=width // head,
        decoder_intermediate_size=4 * width,
        **{**encoder.sizes(data, scale), "initializer_range": 0.02},
    )


def vit_config(encoder: Encoder, data: ImageData, scale: str) -> Any:
    import transformers

    library: Any = transformers
    return library.ViTConfig(num_labels=data.classes, **encoder.sizes(data, scale))


def begun(model: Any, config: Any) -> nn.Module:
    """The official start: fixed waves as embeddings of position, tokens of deviation 0.02, Xavier's patches.

    transformers 5.22 leaves all of these at 0, or at its usual deviation: the model could not tell places apart.
    """
    side, embeddings, decoder = config.image_size // config.patch_size, model.vit.embeddings, model.decoder
    with torch.no_grad():
        for table in (embeddings.position_embeddings, decoder.decoder_pos_embed):
            table[0, 0] = 0
            table[0, 1:] = waves(side, table.shape[-1])
        for token in (embeddings.cls_token, decoder.mask_token):
            nn.init.normal_(token, std=0.02)
        nn.init.xavier_uniform_(embeddings.patch_embeddings.projection.weight.flatten(1))
    assert isinstance(model, nn.Module)
    return model


def waves(side: int, width: int) -> Tensor:
    """Sines and cosines of the column, then of the row, of side × side places; frequencies from 1 to 1/10,000."""
    places = torch.arange(side * side, dtype=torch.float64)
    frequencies = 10_000 ** -(torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    angles = [torch.outer(place, frequencies) for place in (places % side, places // side)]
    return torch.cat([wave for angle in angles for wave in (angle.sin(), angle.cos())], 1).float()


def pretraining_task(encoder: Encoder, context: Context) -> Task:
    import transformers

    library: Any = transformers
    data = image_data(context, Views(crop=0.2))
    config = mae_config(encoder, data, context.scale)
    patches = (config.image_size // config.patch_size) ** 2

    def noise(count: int, *key: int) -> Tensor:
        """What decides which patches are hidden: the three quarters of largest noise."""
        return torch.rand(count, patches, generator=generator(*key)).to(context.device)

    def batches(position: int) -> tuple[Tensor, Tensor]:
        images, _ = data.batches(position)
        return data.normal(images.to(context.device)), noise(len(images), context.seed, position, 2)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        found: Tensor = model(batch[0], noise=batch[1]).loss
        return found

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        total, count = torch.zeros((), device=context.device), 0
        for number, (images, _) in enumerate(data.held_out()):
            hidden = noise(len(images), number)
            total = total + loss(model, (data.normal(images.to(context.device)), hidden)) * len(images)
            count += len(images)
        return {"loss": total.item() / count}

    model = begun(library.ViTMAEForPreTraining(config), config)
    note = f"{data.note}; a quarter of the patches is seen"
    return Task(model, batches, loss, evaluate, note=note, groups=without_decay)


class Classifier(nn.Module):
    """A ViT whose patches are averaged, then normalised, then classified, as the official fine-tuning has it."""

    def __init__(self, config: Any) -> None:
        import transformers

        super().__init__()
        library: Any = transformers
        self.vit = library.ViTModel(config, add_pooling_layer=False)
        self.vit.layernorm = nn.Identity()
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.num_labels)
        nn.init.trunc_normal_(self.head.weight, std=2e-5)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Any:
        from transformers.modeling_outputs import ImageClassifierOutput

        tokens = self.vit(images).last_hidden_state
        return ImageClassifierOutput(logits=self.head(self.norm(tokens[:, 1:].mean(1))))


def finetuning_task(encoder: Encoder, context: Context) -> Task:
    data = image_data(context, Views(magnitude=SETTING_II.magnitude))
    model = Classifier(vit_config(encoder, data, context.scale))
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
    found = {
        name[len(prefix) :]: value
        for name, value in context.weights().items()
        if name.startswith(prefix) and not name.startswith("vit.layernorm.")
    }
    try:
        model.vit.load_state_dict(found)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise UsageError(
            f"--init {context.init}: its weights are not those of this encoder ({reason}); "
            "name a run of the pre-training at the same scale"
        ) from error


def layer_groups(model: nn.Module, settings: Settings, decay: float) -> list[dict[str, Any]]:
    """Learning rates that fall by the factor `decay` from each layer to the one before it; the head's stands first."""
    blocks = transformer_blocks(model)
    layers = {p: number for number, block in enumerate(blocks, 1) for p in block.parameters()}
    layers |= {p: 0 for name, p in model.named_parameters() if ".embeddings." in name}
    last = len(blocks) + 1
    found = []
    for group in without_decay(model, settings):
        parts: defaultdict[int, list[nn.Parameter]] = defaultdict(list)
        for p in group["params"]:
            parts[layers.get(p, last)].append(p)
        found += [
            {**group, "params": params, "lr": settings["lr"] * decay ** (last - layer)}
            for layer, params in parts.items()
        ]
    return sorted(found, key=lambda group: -float(group["lr"]))


def _register(name: str, encoder: Encoder) -> None:
    def pretrain(context: Context) -> Task:
        return pretraining_task(encoder, context)

    def finetune(context: Context) -> Task:
        return finetuning_task(encoder, context)

    pretrain.__doc__ = f"MAE: {encoder.title} completes images of which it sees a quarter."
    finetune.__doc__ = f"MAE: {encoder.title} is fine-tuned under {SETTING_II.name}; at random weights without --init."
    per_epoch = IMAGENET_SIZE // 4096
    workload(
        f"mae-pretrain-{name}",
        metric="loss",
        higher_is_better=False,
        target=encoder.losses[0],
        steps=80,
        scales={
            "small": {"target": encoder.losses[1], "steps": 3900, "batch_size": 256, "needs": NEEDS["small"]},
            "paper": {
                "target": encoder.losses[2],
                "steps": 800 * per_epoch,
                "batch_size": 4096,
                "eval_every": 10 * per_epoch,
                "needs": NEEDS["paper"],
            },
        },
    )(pretrain)
    per_epoch = IMAGENET_SIZE // 2048
    workload(
        f"mae-finetune-{name}",
        metric="accuracy",
        higher_is_better=True,
        target=encoder.accuracies[0],
        steps=80,
        after=f"mae-pretrain-{name}",
        scales={
            "small": {"target": encoder.accuracies[1], "steps": 1950, "batch_size": 128, "needs": NEEDS["small"]},
            "paper": {
                "target": encoder.accuracies[2],
                "steps": encoder.epochs * per_epoch,
                "batch_size": 2048,
                "eval_every": 5 * per_epoch,
                "needs": NEEDS["paper"],
            },
        },
    )(finetune)


for _name, _encoder in ENCODERS.items():
    _register(_name, _encoder)
