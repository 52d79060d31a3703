"""The sizes of the paper's mixtures of experts: training and timing build the same models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

EXPERTS = 8
BALANCE = 0.02


@dataclass(frozen=True)
class MixtureSizes:
    """key_heads: of keys and values; expert: its width; length: tokens per sequence; held_out: rows per evaluation."""

    layers: int
    width: int
    heads: int
    key_heads: int
    expert: int
    length: int
    vocabulary: int
    held_out: int = 256

    def config(self, vocabulary: int) -> Any:
        """Transformers' configuration; the tokenizer may have found fewer tokens than it was asked for."""
        import transformers

        return transformers.MixtralConfig(
            vocab_size=vocabulary,
            hidden_size=self.width,
            intermediate_size=self.expert,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.key_heads,
            head_dim=self.width // self.heads,
            max_position_embeddings=self.length,
            num_local_experts=EXPERTS,
            num_experts_per_tok=2,
            output_router_logits=True,
            router_aux_loss_coef=BALANCE,
            sliding_window=None,
            use_cache=False,
        )


#: By the paper's names.
MIXTURES = {
    "8x0.1B": MixtureSizes(12, 768, 12, 4, 1952, 2048, 32_000),
    "8x0.3B": MixtureSizes(24, 1024, 16, 8, 3136, 2048, 32_000),
    "8x0.6B": MixtureSizes(32, 1280, 20, 4, 3840, 2048, 32_000),
}
