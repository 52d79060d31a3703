"""A mixture of experts: Mixtral (arXiv:2401.04088) with 8 experts, 2 of them at work on a token.

The paper has three: 8 × 0.1B with 0.5B trainable parameters (1.3B elsewhere in it), 8 × 0.3B with 2B and 8 × 0.6B with
4B, on 10 to 300 billion tokens of RedPajama-v2, each seen once. It states no more. The shapes here are chosen to have
those totals, with a vocabulary of 32,000, and with one expert 122M, 372M and 680M; rows of 2,048 tokens, 256 per batch,
19,073 steps for 10 billion tokens; the released Mixtral's weight of the router's loss, 0.02.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from adan_bench.task import Context, Scale, Task
from adan_bench.workloads.parts.mixtures import BALANCE, MIXTURES, MixtureSizes
from adan_bench.workloads.registry import workload

if TYPE_CHECKING:
    from torch import Tensor, nn


def moe(context: Context) -> Task:
    """Mixtral with 8 experts on a text folder, every token once, or on the standard library's source."""
    import torch.nn.functional as F
    import transformers

    from adan_bench.data.tokens import PAD, language, language_task

    sizes: MixtureSizes = context.sizes
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

    model = transformers.MixtralForCausalLM(sizes.config(data.tokenizer.get_vocab_size()))
    return language_task(model, data, loss, context)


def _register(name: str, size: str, steps: int, adamw: float) -> None:
    """steps: for the fewest tokens that the paper gives the model; adamw: its training loss there."""
    workload(
        name,
        metric="loss",
        higher_is_better=False,
        smoke=Scale(5.3, 100, 8, eval_every=25, sizes=MixtureSizes(2, 48, 4, 2, 64, 48, 512, held_out=64)),
        small=Scale(3.5, 1000, 32, sizes=MixtureSizes(6, 256, 8, 4, 512, 256, 8192)),
        paper=Scale(adamw, steps, 256, 500, ("text",), MIXTURES[size]),
        summary=f"Mixtral of {size} on a text folder, every token once, or on the standard library's source",
    )(moe)


_register("moe", "8x0.1B", 19_073, 2.722)
_register("moe-8x0.3b", "8x0.3B", 57_220, 2.362)
_register("moe-8x0.6b", "8x0.6B", 572_205, 2.023)
