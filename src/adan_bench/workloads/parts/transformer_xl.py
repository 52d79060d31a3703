"""Transformer-XL by x-transformers."""

from __future__ import annotations

import warnings

from torch import Tensor, nn

from adan_bench.workloads.transformer_xl import Sizes


class TransformerXL(nn.Module):
    """x-transformers' decoder: (words × columns, memories) to logits and the memories that follow."""

    def __init__(self, words: int, sizes: Sizes) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # importing it calls torch.jit.script
            from x_transformers import Decoder, TransformerWrapper

        decoder = Decoder(
            dim=sizes.width,
            depth=sizes.layers,
            heads=sizes.heads,
            attn_dim_head=sizes.width // sizes.heads,
            ff_mult=sizes.inner / sizes.width,
            ff_dropout=sizes.dropout,
            pre_norm=False,
            rel_pos_bias=True,
            rel_pos_max_distance=sizes.test_memory + sizes.test_length,
        )
        self.decoder = TransformerWrapper(
            num_tokens=words,
            max_seq_len=max(sizes.length, sizes.test_length),
            max_mem_len=sizes.test_memory,
            emb_dropout=sizes.dropout,
            tie_embedding=True,
            attn_layers=decoder,
        )
        self.memory = sizes.memory

    def forward(self, words: Tensor, memories: list[Tensor] | None) -> tuple[Tensor, list[Tensor]]:
        logits, memories = self.decoder(words.t(), mems=memories, return_mems=True)
        if self.training:
            memories = [memory[:, -self.memory :] for memory in memories]
        return logits.transpose(0, 1), memories
