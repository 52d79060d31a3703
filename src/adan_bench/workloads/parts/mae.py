"""Masked autoencoders: pre-training, the official first weights, the classifier that is fine-tuned."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import adan
from adan_bench.data.batching import generator
from adan_bench.data.images import ImageData, image_data
from adan_bench.data.settings import PLAIN, Setting
from adan_bench.task import Context, Settings, Task
from adan_bench.workloads.images import ImageSizes
from adan_bench.workloads.parts.classification import classification_task, without_decay
from adan_bench.workloads.parts.networks import vit_config, vit_sizes, vit_stochastic_depth
from adan_bench.workloads.parts.transformer import MaskedAutoencoder, ViT, sinusoids

#: (model, images, noise) to the mean loss; the patches of the largest noise, three quarters, are hidden.
Completion = Callable[[nn.Module, Tensor, Tensor], Tensor]


def autoencoding(model: nn.Module, error: Completion, patch: int, data: ImageData, context: Context) -> Task:
    """The task of a model that completes images of which it sees a quarter of the patches."""
    own = context.own()

    def noise(count: int, *key: int) -> Tensor:
        return torch.rand(count, (data.size // patch) ** 2, generator=generator(*key))

    def batches(position: int) -> Any:
        return data.batches(position), own(noise(context.batch_size, context.seed, position, 2))

    def prepare(batch: Any) -> tuple[Tensor, Tensor]:
        return data.gather(*batch[0])[0], batch[1]

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        total, count = torch.zeros((), device=context.device), 0
        for number, (images, _) in enumerate(data.held_out()):
            hidden = noise(len(images), number).to(context.device)
            total = total + error(model, data.normal(images.to(context.device)), hidden) * len(images)
            count += len(images)
        return {"loss": total.item() / count}

    note = f"{data.note}; a quarter of the patches is seen"
    return Task(
        model, batches, lambda model, batch: error(model, *batch), evaluate, note, groups=without_decay, prepare=prepare
    )


def with_official_start(model: Any, config: Any) -> nn.Module:
    """The official start: fixed waves as embeddings of position, tokens of deviation 0.02, the rest after Xavier.

    transformers 5.22 leaves all of these at 0, or at its usual deviation: the model could not tell places apart.
    """
    side, embeddings, decoder = config.image_size // config.patch_size, model.vit.embeddings, model.decoder
    with torch.no_grad():
        for table in (embeddings.position_embeddings, decoder.decoder_pos_embed):
            table[0, 0] = 0
            table[0, 1:] = waves(side, table.shape[-1])
        for token in (embeddings.cls_token, decoder.mask_token):
            nn.init.normal_(token, std=0.02)
        for layer in model.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
        nn.init.xavier_uniform_(embeddings.patch_embeddings.projection.weight.flatten(1))
    assert isinstance(model, nn.Module)
    return model


def waves(side: int, width: int) -> Tensor:
    """Sines and cosines of the column, then of the row, of side × side places; frequencies from 1 to 1/10,000."""
    places = torch.arange(side * side, dtype=torch.float64)
    return torch.cat([sinusoids(place, width // 2) for place in (places % side, places // side)], 1).float()


class Classifier(nn.Module):
    """A ViT whose patches are averaged, then normalized, then classified, as the official fine-tuning has it."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.vit = transformers.ViTModel(config, add_pooling_layer=False)
        self.vit.layernorm = nn.Identity()
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.num_labels)
        nn.init.trunc_normal_(self.head.weight, std=2e-5)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.vit(images).last_hidden_state[:, 1:].mean(1)))
        return logits


def cifar_mae(context: Context) -> Task:
    data, sizes = image_data(context), context.sizes
    model = MaskedAutoencoder(ViT(sizes, data.size, data.channels, classes=0), sizes.width // 2, layers=2)
    task = autoencoding(model, lambda model, images, noise: model(images, noise), sizes.patch, data, context)
    task.max_grad_norm = 1.0
    return task


def mae_config(sizes: ImageSizes, data: ImageData) -> Any:
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


def pretraining(context: Context) -> Task:
    data = image_data(context, replace(PLAIN, crop=0.2))
    config = mae_config(context.sizes, data)
    model = with_official_start(transformers.ViTMAEForPreTraining(config), config)
    return autoencoding(model, lambda m, images, noise: m(images, noise=noise).loss, config.patch_size, data, context)


def finetuning(context: Context, setting: Setting, layer_decay: float) -> Task:
    data = image_data(context, setting)
    model = Classifier(vit_config(context.sizes, data))
    if context.init is not None:
        load_encoder(model, context)
    vit_stochastic_depth(model, setting.stochastic_depth)
    task = classification_task(model, data, context, setting)
    task.note += f"; from {'random' if context.init is None else 'pre-trained'} weights"
    task.groups = partial(layer_groups, decay=layer_decay)
    return task


def load_encoder(model: Classifier, context: Context) -> None:
    """The encoder's weights of a pre-training: all but its last norm, which the classifier replaces."""
    kept = re.compile(r"vit\.(?!layernorm\.)(.+)")
    weights = {match[1]: value for name, value in context.weights().items() if (match := kept.fullmatch(name))}
    wrong = "its weights are not those of this encoder ({}); name a run of the pre-training at the same scale"
    context.load(model.vit, weights, wrong)


def layer_groups(model: nn.Module, settings: Settings, decay: float) -> list[dict[str, Any]]:
    """Learning rates that fall by the factor `decay` from each layer to the one before it; the head's stands first."""
    rates: dict[str, Any] = {"lr": settings["lr"], "layer_decay": decay}
    groups = adan.parameter_groups(model, settings.get("weight_decay", 0.0), named=False, **rates)
    return sorted(groups, key=lambda group: -float(group["lr"]))
