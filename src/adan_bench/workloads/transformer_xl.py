"""Transformer-XL (arXiv:1901.02860) on WikiText-103.

At paper scale the base model of its authors' script (https://github.com/kimiyoung/transformer-xl, run_wt103_base.sh):
16 layers of width 410, 10 heads of 41, feed-forward 2,100, dropout 0.1, an adaptive softmax over 267,735 words, rows of
150 words with a memory of 150 in training and evaluation, batch 60, clipping at 0.25. An epoch's last row is left out
where it is shorter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from adan_bench.data.files import PENN_TREEBANK, SHAKESPEARE, WIKITEXT
from adan_bench.task import Context, Scale, Task
from adan_bench.workloads.parts.sizes import XLSizes
from adan_bench.workloads.registry import workload

if TYPE_CHECKING:
    from torch import Tensor, nn


CUTOFFS = (20_000, 40_000, 200_000)


@workload(
    "transformer-xl",
    metric="perplexity",
    higher_is_better=False,
    smoke=Scale(30, 120, 16, eval_every=40, sizes=XLSizes(2, 48, 2, 96, 0.0, 32, 32, (32, 48))),
    small=Scale(250, 4000, 20, needs=PENN_TREEBANK, sizes=XLSizes(6, 256, 8, 1024, 0.2, 70, 70, (2000, 5000))),
    paper=Scale(
        24.2, 200_000, 60, 4000, WIKITEXT, XLSizes(16, 410, 10, 2100, 0.1, 150, 150, (20_000, 40_000, 200_000))
    ),
)
def transformer_xl(context: Context) -> Task:
    """Transformer-XL with memory between batches, on WikiText-103, Penn Treebank, or characters; test perplexity."""
    from adan_bench.data.words import penn_treebank, perplexity, wikitext
    from adan_bench.workloads.parts.transformer_xl import ClusteredStream, TransformerXL

    sizes: XLSizes = context.sizes
    if context.scale == "smoke":
        (train, valid, test), known, note = _characters(context)
    elif context.scale == "small":
        (train, valid, test), known = penn_treebank(context)
        note = "Penn Treebank, words"
    else:
        (train, valid, test), known = wikitext(context)
        note = "WikiText-103, words"
    network = TransformerXL(known, sizes)
    stream = ClusteredStream(train, context.batch_size, sizes.length, network, context.device)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        value: Tensor
        value, carry = model(*batch)
        stream.keep(carry)
        return value

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        def step(words: Tensor, following: Tensor, memories: Any) -> Any:
            return model(words, following, memories=memories)

        held_out = {"perplexity": valid if context.tuning else test}
        if context.scale == "paper":  # the published score is that of the evaluation with the best validation
            held_out["valid_perplexity"] = valid
        return {name: perplexity(step, text, 10, sizes.length, context.device) for name, text in held_out.items()}

    note += f": {len(train):,} to train, {len(valid):,} and {len(test):,} held out, {known:,} different"
    return Task(network, stream, loss, evaluate, note, max_grad_norm=0.25, prepare=stream.gather)


def _characters(context: Context) -> tuple[list[Tensor], int, str]:
    from adan_bench.data.words import documentation, encode, vocabulary

    if context.has(SHAKESPEARE):
        text, note = context.path(SHAKESPEARE).read_text(encoding="utf-8"), "tiny Shakespeare, characters"
    else:
        text, note = "\n".join(documentation()), "documentation strings of the standard library, characters"
    numbers = vocabulary(text, size=128)
    splits = text[:-10_000], text[-10_000:-5_000], text[-5_000:]
    return [encode(part, numbers) for part in splits], len(numbers), note
