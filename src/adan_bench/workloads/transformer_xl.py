"""Transformer-XL (arXiv:1901.02860) on WikiText-103, by x-transformers.

At paper scale the base model of its authors' script: 16 layers of width 410, 10 heads of 41, feed-forward 2,100,
dropout 0.1, 150 words with a memory of 150, batch 60, clipping at 0.25; the test split is read 64 words at a time with
a memory of 640. What differs in x-transformers: distances enter as learnt biases (T5's) rather than as sines with two
learnt vectors, and there is no adaptive softmax. The output layer is the tied embedding of all 267,735 words. The
adaptive one of the base model has no fewer parameters, since it keeps the width for rare words, but here every step has
9,000 × 267,735 logits: 10 GB in fp32, and as much again for their gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adan_bench.data.files import PENN_TREEBANK, SHAKESPEARE, WIKITEXT
from adan_bench.spec import Context, Scale, Task
from adan_bench.workloads.registry import workload

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Sizes:
    """The model, the words and the memory of a training step, and those of a test step."""

    layers: int
    width: int
    heads: int
    inner: int
    dropout: float
    length: int
    memory: int
    test_length: int
    test_memory: int


@workload(
    "transformer-xl",
    metric="perplexity",
    higher_is_better=False,
    smoke=Scale(30, 120, 16, eval_every=40, sizes=Sizes(2, 48, 4, 96, 0.0, 32, 32, 32, 64)),
    small=Scale(250, 4000, 20, needs=PENN_TREEBANK, sizes=Sizes(6, 256, 8, 1024, 0.2, 70, 70, 64, 140)),
    paper=Scale(24.2, 200_000, 60, 4000, WIKITEXT, Sizes(16, 410, 10, 2100, 0.1, 150, 150, 64, 640)),
)
def transformer_xl(context: Context) -> Task:
    """Transformer-XL with memory between batches, on WikiText-103, Penn Treebank, or characters; test perplexity."""
    import torch.nn.functional as F

    from adan_bench.data.words import Stream, penn_treebank, perplexity, wikitext
    from adan_bench.workloads.parts.transformer_xl import TransformerXL

    sizes: Sizes = context.sizes
    if context.scale == "smoke":
        (train, valid, test), known, note = _characters(context)
    elif context.scale == "small":
        (train, valid, test), known = penn_treebank(context)
        note = "Penn Treebank, words"
    else:
        (train, valid, test), known = wikitext(context)
        note = "WikiText-103, words"
    stream = Stream(train, context.batch_size, sizes.length, context.device)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        words, following, memories = batch
        logits, memories = model(words, memories)
        stream.keep(memories)
        return F.cross_entropy(logits.float().flatten(0, 1), following.flatten())

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        return {
            "perplexity": perplexity(model, test, 10, sizes.test_length, context.device),
            "valid_perplexity": perplexity(model, valid, 10, sizes.test_length, context.device),
        }

    note += f": {len(train):,} to train, {len(valid):,} and {len(test):,} held out, {known:,} different"
    return Task(TransformerXL(known, sizes), stream, loss, evaluate, note, max_grad_norm=0.25, prepare=stream.gather)


def _characters(context: Context) -> tuple[list[Tensor], int, str]:
    from adan_bench.data.words import documentation, encode, vocabulary

    if context.has(SHAKESPEARE):
        text, note = context.path(SHAKESPEARE).read_text(encoding="utf-8"), "tiny Shakespeare, characters"
    else:
        text, note = "\n".join(documentation()), "documentation strings of the standard library, characters"
    numbers = vocabulary(text, size=128)
    splits = text[:-10_000], text[-10_000:-5_000], text[-5_000:]
    return [encode(part, numbers) for part in splits], len(numbers), note
