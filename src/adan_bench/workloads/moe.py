"""A mixture of experts: Mixtral (arXiv:2401.04088) with 8 experts, 2 of them at work on a token.

The paper has three: 8 × 0.1B with 0.5B trainable parameters (1.3B elsewhere in it), 8 × 0.3B with 2B and 8 × 0.6B with
4B, on 10 to 300 billion tokens of RedPajama-v2, each seen once. It states no more. The shapes here are chosen to have
those totals, with a vocabulary of 32,000, and with one expert 122M, 372M and 680M; rows of 2,048 tokens, 256 per batch,
19,073 steps for 10 billion tokens; the released Mixtral's weight of the router's loss, 0.02.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adan_bench.spec import Context, Scale, Task
from adan_bench.workloads.registry import workload

if TYPE_CHECKING:
    from torch import Tensor, nn

EXPERTS = 8
BALANCE = 0.02


@dataclass(frozen=True)
class Sizes:
    """key_heads: of keys and values; expert: its width; length: tokens in a row; held_out: rows of an evaluation."""

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


#: By the paper's names; training and timing build the same models.
MIXTURES = {
    "8x0.1B": Sizes(12, 768, 12, 4, 1952, 2048, 32_000),
    "8x0.3B": Sizes(24, 1024, 16, 8, 3136, 2048, 32_000),
    "8x0.6B": Sizes(32, 1280, 20, 4, 3840, 2048, 32_000),
}


def moe(context: Context) -> Task:
    """Mixtral with 8 experts on a text folder, every token once, or on the standard library's source."""
    import torch.nn.functional as F
    import transformers

    from adan_bench.data.tokens import PAD, LanguageTask, held_out_loss, language

    sizes: Sizes = context.sizes
    data = language(
        context,
        folder="text",
        kind="source",
        length=sizes.length + 1,
        vocabulary=sizes.vocabulary,
        once=True,
        rows=sizes.held_out,
    )

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        out = model(batch[:, :-1])
        logits = out.logits.float().flatten(0, 1)
        balance: Tensor = BALANCE * out.aux_loss
        return F.cross_entropy(logits, batch[:, 1:].flatten(), ignore_index=PAD) + balance

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        return {"loss": held_out_loss(model, data.held_out, context.batch_size, context.device)}

    model = transformers.MixtralForCausalLM(sizes.config(data.tokenizer.get_vocab_size()))
    return LanguageTask(model, data.batches, loss, evaluate, data.note, max_grad_norm=1.0, tokenizer=data.tokenizer)


def _register(name: str, size: str, steps: int, adamw: float) -> None:
    """steps: for the fewest tokens that the paper gives the model; adamw: its training loss there."""
    workload(
        name,
        metric="loss",
        higher_is_better=False,
        smoke=Scale(5.3, 100, 8, eval_every=25, sizes=Sizes(2, 48, 4, 2, 64, 48, 512, held_out=64)),
        small=Scale(3.5, 1000, 32, sizes=Sizes(6, 256, 8, 4, 512, 256, 8192)),
        paper=Scale(adamw, steps, 256, 500, ("text",), MIXTURES[size]),
        summary=f"Mixtral of {size} on a text folder, every token once, or on the standard library's source",
    )(moe)


_register("moe", "8x0.1B", 19_073, 2.722)
_register("moe-8x0.3b", "8x0.3B", 57_220, 2.362)
_register("moe-8x0.6b", "8x0.6B", 572_205, 2.023)
