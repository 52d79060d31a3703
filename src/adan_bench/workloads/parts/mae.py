"""MAE's networks: the official first weights, and the classifier that is fine-tuned."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


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
