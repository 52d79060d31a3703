"""A word-level LSTM on Penn Treebank, or, without it, on the documentation strings of Python's standard library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adan_bench.data.words import PENN_TREEBANK, Stream, documentation_words, encode, file_words, vocabulary
from adan_bench.spec import Context, Task
from adan_bench.workloads.registry import workload

LENGTH = 20  # words through which gradients flow
WIDTH = 64
HELD_OUT = 10_000  # words; the whole of Penn Treebank's 73,760 would take longer than the training between two looks


@workload("ptb-lstm", metric="perplexity", higher_is_better=False, target=650, steps=200, eval_every=40, batch_size=20)
def ptb_lstm(context: Context) -> Task:
    """LSTM (1 layer of width 64, tied embedding) on Penn Treebank, else on the standard library's documentation."""
    if context.has(PENN_TREEBANK[0]):
        train, valid = (list(file_words(context.path(name))) for name in PENN_TREEBANK[:2])
        note = "Penn Treebank, standard split"
    else:
        words = documentation_words()
        split = len(words) * 9 // 10
        train, valid = words[:split], words[split:]
        note = "documentation strings of the standard library"
    known = vocabulary(train)
    stream = Stream(encode(train, known), context.batch_size, LENGTH)
    held_out = Stream(encode(valid[:HELD_OUT], known), 10, LENGTH)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        words, following, carry = batch
        logits, stream.carry = model(words, carry)
        return F.cross_entropy(logits.float().flatten(0, 1), following.flatten())

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        total, carry = 0.0, None
        for position in range(held_out.per_epoch):
            words, following = (t.to(context.device) for t in held_out(position)[:2])
            logits, carry = model(words, carry)
            total += F.cross_entropy(logits.float().flatten(0, 1), following.flatten()).item()
        mean = total / held_out.per_epoch
        return {"perplexity": torch.tensor(mean).exp().item(), "loss": mean}

    note += f": {len(train):,} words to train, {len(valid[:HELD_OUT]):,} held out, vocabulary of {len(known):,}"
    return Task(LSTM(len(known)), stream, loss, evaluate, note)


class LSTM(nn.Module):
    """Embedding, LSTM, and the embedding again as the output layer."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, WIDTH)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.lstm = nn.LSTM(WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.zeros(words))

    def forward(self, words: Tensor, carry: Tensor | None) -> tuple[Tensor, Tensor]:
        state = None if carry is None else (carry[0:1], carry[1:2])
        hidden, state = self.lstm(self.embedding(words), state)
        return F.linear(hidden, self.embedding.weight, self.bias), torch.cat(state).detach().float()
