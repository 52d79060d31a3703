"""AWD-LSTM (arXiv:1708.02182); without its dropout, a plain LSTM with a tied embedding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adan_bench.data.files import PENN_TREEBANK
from adan_bench.data.words import Stream, documentation_splits, perplexity, word_files
from adan_bench.task import Context, Task
from adan_bench.workloads.words import LstmSizes

SMOKE_WORDS = 2_000  # with Penn Treebank's 10,000 the output layer alone would take 20 s
HELD_OUT = 10_000  # words; the whole of Penn Treebank's 82,430 would take longer than the training between two looks


class LSTM(nn.Module):
    """Dropout with one mask for all times, dropped recurrent weights, the embedding as output layer."""

    def __init__(self, words: int, layers: int, sizes: LstmSizes) -> None:
        super().__init__()
        self.sizes = sizes
        widths = [sizes.embedding, *[sizes.hidden] * (layers - 1), sizes.embedding]
        self.embedding = nn.Embedding(words, sizes.embedding)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.layers = nn.ModuleList(nn.LSTM(*pair) for pair in pairwise(widths))
        self.bias = nn.Parameter(torch.zeros(words))

    def initial(self, columns: int, device: torch.device | str | None = None) -> list[Tensor]:
        """The state before the first word: hidden layers and cells of zeros."""
        widths: Any = [layer.hidden_size for layer in self.layers]
        return [torch.zeros(2, columns, width, device=device) for width in widths]

    def forward(self, words: Tensor, carry: list[Tensor] | None) -> tuple[Tensor, list[Tensor], Tensor]:
        """Logits, the state to carry on, and the penalties of the last layer's activations."""
        sizes, following = self.sizes, []
        mask = F.dropout(torch.ones_like(self.embedding.weight[:, :1]), sizes.words, self.training)
        hidden = self._locked(F.embedding(words, self.embedding.weight * mask), sizes.input)
        carry = self.initial(words.shape[1], words.device) if carry is None else carry
        for i, layer in enumerate(self.layers):
            hidden, last, cell = self._run(layer, hidden, carry[i].to(hidden.dtype))
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
        start = state[0:1].contiguous(), state[1:2].contiguous()
        out: tuple[Tensor, Tensor, Tensor] = torch.lstm(  # with biases, one layer, no dropout, in one direction
            hidden, start, weights, True, 1, 0.0, self.training, False, False
        )
        return out

    def _locked(self, hidden: Tensor, share: float) -> Tensor:
        return hidden * F.dropout(torch.ones_like(hidden[:1]), share, self.training)


def lstm(context: Context, layers: int, splits: Sequence[Tensor], known: int, note: str, plain: bool) -> Task:
    """splits: to train, for trials, for results; plain: without activation penalties and clipping."""
    length, network = context.sizes.length, LSTM(known, layers, context.sizes)
    for layer in network.layers if context.training.get("fixed_recurrent") else ():
        layer.weight_hh_l0.requires_grad_(False)
    random_rows = context.seed if context.training.get("random_rows") else None
    train, held_out = splits[0], splits[1 if context.tuning else 2]
    carry = network.initial(context.batch_size // context.ranks, context.device)
    stream = Stream(train, context.batch_size, length, carry, random_rows, context.own())

    def following_loss(logits: Tensor, following: Tensor) -> Tensor:
        return F.cross_entropy(logits.float().flatten(0, 1), following.flatten())

    def loss(model: nn.Module, batch: Any) -> Tensor:
        words, following, carry = batch
        logits, carry, penalty = model(words, carry)
        stream.keep(carry)
        total = following_loss(logits, following)
        return total if plain else total + penalty

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        def step(words: Tensor, following: Tensor, carry: Any) -> tuple[Tensor, Any]:
            logits, carry, _ = model(words, carry)
            return following_loss(logits, following), carry

        columns = 1 if context.scale == "paper" and not context.tuning else 10
        return {"perplexity": perplexity(step, held_out, columns, length, context.device)}

    note += f": {len(train):,} words to train, {len(held_out):,} held out, vocabulary of {known:,}"
    clip = None if plain else 0.25
    rate = None if random_rows is None else stream.rate
    return Task(network, stream, loss, evaluate, note, max_grad_norm=clip, prepare=stream.gather, rate=rate)


def ptb_lstm(context: Context) -> Task:
    splits, known, note = _text(context.has(PENN_TREEBANK[0]), context, 20)
    splits = [splits[0], *(split[:HELD_OUT] for split in splits[1:])]
    return lstm(context, 1, splits, known, note, plain=True)


def awd_lstm(context: Context, layers: int) -> Task:
    return lstm(context, layers, *_text(context.scale != "smoke", context, 40, SMOKE_WORDS), plain=False)


def _text(published: bool, context: Context, *generated: int) -> tuple[list[Tensor], int, str]:
    """Three splits, the size of their vocabulary and a note: Penn Treebank, or the standard library's documentation."""
    if published:
        return *word_files(*map(context.path, PENN_TREEBANK)), "Penn Treebank, standard split"
    return documentation_splits(*generated)
