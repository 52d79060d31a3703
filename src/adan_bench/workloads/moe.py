"""A mixture of experts: Mixtral (arXiv:2401.04088) with 8 experts, 2 of them at work on a token.

The paper's smallest is "8 × 0.1B, 0.5B trainable parameters" (1.3B elsewhere in it) on 10 to 100 billion tokens of
RedPajama-v2, each seen once. It states no more. Chosen here to fit the first two: 12 layers of width 768, experts of
2,048, a vocabulary of 32,000 (521M parameters, 125M with one expert); rows of 2,048 tokens, 256 a batch, 19,073 steps
for 10 billion tokens; the released Mixtral's weight of the router's loss, 0.02.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from adan_bench.spec import Context, Task
from adan_bench.workloads.registry import workload

EXPERTS = 8
BALANCE = 0.02
SIZES = {  # layers, width, heads, heads of keys and values, width of an expert, tokens in a row, vocabulary
    "smoke": (2, 48, 4, 2, 64, 48, 512),
    "small": (6, 256, 8, 4, 512, 256, 8192),
    "paper": (12, 768, 12, 4, 2048, 2048, 32_000),
}


def config(scale: str, vocabulary: int) -> Any:
    import transformers

    layers, width, heads, shared, inner, length, _ = SIZES[scale]
    library: Any = transformers
    return library.MixtralConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=shared,
        head_dim=width // heads,
        max_position_embeddings=length,
        num_local_experts=EXPERTS,
        num_experts_per_tok=2,
        output_router_logits=True,
        router_aux_loss_coef=BALANCE,
        sliding_window=None,
        use_cache=False,
    )


@workload(
    "moe",
    metric="loss",
    higher_is_better=False,
    target=5.3,
    steps=100,
    eval_every=25,
    batch_size=8,
    scales={
        "small": {"target": 3.5, "steps": 1000, "batch_size": 32},
        "paper": {"target": 2.722, "steps": 19_073, "eval_every": 500, "batch_size": 256, "needs": ("text",)},
    },
)
def moe(context: Context) -> Task:
    """Mixtral with 8 experts on a text folder, every token once, or on the standard library's source."""
    import torch.nn.functional as F
    import transformers

    from adan_bench.data.tokens import PAD, LanguageTask, held_out_loss, language

    library: Any = transformers
    length, vocabulary = SIZES[context.scale][-2:]
    rows = 64 if context.scale == "smoke" else 256
    data = language(
        context, folder="text", kind="source", length=length + 1, vocabulary=vocabulary, once=True, rows=rows
    )

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        out = model(batch[:, :-1])
        logits = out.logits.float().flatten(0, 1)
        balance: Tensor = BALANCE * out.aux_loss
        return F.cross_entropy(logits, batch[:, 1:].flatten(), ignore_index=PAD) + balance

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        return {"loss": held_out_loss(model, data.held_out, context.batch_size, context.device)}

    model = library.MixtralForCausalLM(config(context.scale, data.tokenizer.get_vocab_size()))
    return LanguageTask(model, data.batches, loss, evaluate, data.note, max_grad_norm=1.0, tokenizer=data.tokenizer)
