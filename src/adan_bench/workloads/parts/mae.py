"""Masked autoencoders: the task of pre-training, the official first weights, the classifier that is fine-tuned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from adan_bench.data.batching import generator
from adan_bench.data.images import ImageData
from adan_bench.task import Context, Task
from adan_bench.workloads.parts.classification import without_decay


def autoencoding(
    model: nn.Module,
    error: Callable[[nn.Module, Tensor, Tensor], Tensor],
    patch: int,
    data: ImageData,
    context: Context,
) -> Task:
    """The task of a model that completes images of which it sees a quarter of the patches.

    error: (model, images, noise) to the mean loss; the patches of the largest noise, three quarters, are hidden.
    """

    def noise(count: int, *key: int) -> Tensor:
        return torch.rand(count, (data.size // patch) ** 2, generator=generator(*key))

    def batches(position: int) -> Any:
        return data.batches(position), noise(context.batch_size, context.seed, position, 2)

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
    frequencies = 10_000 ** -(torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    angles = [torch.outer(place, frequencies) for place in (places % side, places // side)]
    return torch.cat([wave for angle in angles for wave in (angle.sin(), angle.cos())], 1).float()


class Classifier(nn.Module):
    """A ViT whose patches are averaged, then normalized, then classified, as the official fine-tuning has it."""

    def __init__(self, config: Any) -> None:
        import transformers

        super().__init__()
        self.vit = transformers.ViTModel(config, add_pooling_layer=False)
        self.vit.layernorm = nn.Identity()
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.num_labels)
        nn.init.trunc_normal_(self.head.weight, std=2e-5)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Any:
        from transformers.modeling_outputs import ImageClassifierOutput

        tokens = self.vit(images).last_hidden_state
        return ImageClassifierOutput(logits=self.head(self.norm(tokens[:, 1:].mean(1))))
