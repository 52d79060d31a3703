"""LSTMs of one, two and three layers on Penn Treebank, in the setting of AdaBelief (arXiv:2010.07468).

The paper follows that setting and states none of its own. From AdaBelief's published scripts: AWD-LSTM
(arXiv:1708.02182) with a tied embedding of 400 and hidden layers of 1,150; dropout 0.4, 0.25, 0.4 and 0.1 on output,
hidden layers, input and words, 0.5 on the recurrent weights; activation penalties 2 and 1; batch 20, 70 words, clipping
at 0.25, 200 epochs. Left out: the random length of a row, with which the learning rate of its update is scaled. That
code looks at the test split after every epoch and reports the best; the perplexity here is the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adan_bench.data.words import (
    PENN_TREEBANK,
    Stream,
    documentation_words,
    encode,
    penn_treebank,
    perplexity,
    vocabulary,
)
from adan_bench.spec import Context, Task
from adan_bench.workloads.registry import workload

EPOCH = 663  # rows of 70 words in 20 columns of 929,589 words
SMOKE_WORDS = 2_000  # with Penn Treebank's 10,000 the output layer alone would take 20 s


@dataclass(frozen=True)
class Sizes:
    """What differs between the scales: widths, words in a row, dropout."""

    embedding: int = 400
    hidden: int = 1150
    length: int = 70
    output: float = 0.4
    between: float = 0.25
    input: float = 0.4
    words: float = 0.1
    recurrent: float = 0.5


SMOKE = Sizes(embedding=48, hidden=64, length=20, output=0.1, between=0.1, input=0.1, words=0.0, recurrent=0.1)


class LSTM(nn.Module):
    """AWD-LSTM: dropout with one mask for all times, dropped recurrent weights, the embedding as output layer."""

    def __init__(self, words: int, layers: int, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        widths = [sizes.embedding, *[sizes.hidden] * (layers - 1), sizes.embedding]
        self.embedding = nn.Embedding(words, sizes.embedding)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.layers = nn.ModuleList(nn.LSTM(*pair) for pair in pairwise(widths))
        self.bias = nn.Parameter(torch.zeros(words))

    def forward(self, words: Tensor, carry: list[Tensor] | None) -> tuple[Tensor, list[Tensor], Tensor]:
        """Logits, the state to carry on, and the penalties of the last layer's activations."""
        sizes, following = self.sizes, []
        kept = F.dropout(torch.ones_like(self.embedding.weight[:, :1]), sizes.words, self.training)
        hidden = self._locked(F.embedding(words, self.embedding.weight * kept), sizes.input)
        for i, layer in enumerate(self.layers):
            width: Any = layer.hidden_size
            state = hidden.new_zeros(2, words.shape[1], width) if carry is None else carry[i].to(hidden.dtype)
            hidden, last, cell = self._run(layer, hidden, state)
            following.append(torch.cat([last, cell]).detach().float())
            if i < len(self.layers) - 1:
                hidden = self._locked(hidden, sizes.between)
        output = self._locked(hidden, sizes.output)
        penalty = 2 * output.float().square().mean() + (hidden[1:] - hidden[:-1]).float().square().mean()
        return F.linear(output, self.embedding.weight, self.bias), following, penalty

    def _run(self, layer: Any, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """nn.LSTM with dropped recurrent weights. Its own forward() keeps a list of weights that cannot be swapped."""
        dropped = F.dropout(layer.weight_hh_l0, self.sizes.recurrent, self.training)
        weights = [layer.weight_ih_l0, dropped, layer.bias_ih_l0, layer.bias_hh_l0]
        out: tuple[Tensor, Tensor, Tensor] = torch.lstm(
            hidden,
            (state[0:1].contiguous(), state[1:2].contiguous()),
            weights,
            True,
            1,
            0.0,
            self.training,
            False,
            False,
        )
        return out

    def _locked(self, hidden: Tensor, share: float) -> Tensor:
        return hidden * F.dropout(torch.ones_like(hidden[:1]), share, self.training)


def build(context: Context, layers: int) -> Task:
    sizes = SMOKE if context.scale == "smoke" else Sizes()
    if context.scale != "smoke":
        (train, valid, test), known = penn_treebank(context)
        note = "Penn Treebank, standard split"
    else:
        text = documentation_words()
        cut = len(text) // 40
        numbers = vocabulary(text[: -2 * cut], SMOKE_WORDS)
        train, valid, test = (encode(part, numbers) for part in (text[: -2 * cut], text[-2 * cut : -cut], text[-cut:]))
        known, note = len(numbers), "documentation strings of the standard library"
    stream = Stream(train, context.batch_size, sizes.length)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        words, following, carry = batch
        logits, stream.carry, penalty = model(words, carry)
        total: Tensor = F.cross_entropy(logits.float().flatten(0, 1), following.flatten()) + penalty
        return total

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        def step(words: Tensor, carry: Any) -> tuple[Tensor, Any]:
            logits, carry, _ = model(words, carry)
            return logits, carry

        return {
            "perplexity": perplexity(step, test, 10, sizes.length, context.device),
            "valid_perplexity": perplexity(step, valid, 10, sizes.length, context.device),
        }

    note += f": {len(train):,} words to train, {len(valid):,} and {len(test):,} held out, vocabulary of {known:,}"
    return Task(LSTM(known, layers, sizes), stream, loss, evaluate, note, max_grad_norm=0.25)


def register(layers: int, adamw: float) -> None:
    """One workload for each depth; `adamw` is the paper's test perplexity of AdamW."""

    def builder(context: Context) -> Task:
        return build(context, layers)

    plural = "s" if layers > 1 else ""
    builder.__doc__ = f"AWD-LSTM ({layers} layer{plural}) on Penn Treebank, test perplexity."
    workload(
        f"lstm-{layers}",
        metric="perplexity",
        higher_is_better=False,
        target=250,
        steps=120,
        eval_every=40,
        batch_size=20,
        scales={
            "small": {"target": 150, "steps": 6 * EPOCH, "eval_every": EPOCH, "needs": PENN_TREEBANK},
            "paper": {"target": adamw, "steps": 200 * EPOCH, "eval_every": EPOCH, "needs": PENN_TREEBANK},
        },
    )(builder)


for layers, adamw in ((1, 84.7), (2, 72.8), (3, 69.9)):
    register(layers, adamw)
