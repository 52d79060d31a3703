"""A word-level LSTM on Penn Treebank, or, without it, on the documentation strings of Python's standard library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adan_bench.registry import workload
from adan_bench.spec import Context, Task

LENGTH = 20  # words through which gradients flow
WIDTH = 64
HELD_OUT = 10_000  # words; the whole of Penn Treebank's 73,760 would take longer than the training between two looks
FILES = ("ptb/ptb.train.txt", "ptb/ptb.valid.txt")


@workload("ptb-lstm", metric="perplexity", higher_is_better=False, target=650, steps=200, eval_every=40, batch_size=20)
def ptb_lstm(context: Context) -> Task:
    """LSTM (1 layer of width 64, tied embedding) on Penn Treebank, else on the standard library's documentation."""
    if context.has(FILES[0]):
        train, valid = (context.path(name).read_text().replace("\n", " <eos> ").split() for name in FILES)
        note = "Penn Treebank, standard split"
    else:
        words = _documentation()
        split = len(words) * 9 // 10
        train, valid = words[:split], words[split:]
        note = "documentation strings of the standard library"
    vocabulary = _vocabulary(train)
    stream = Stream(_encode(train, vocabulary), context.batch_size)
    held_out = Stream(_encode(valid[:HELD_OUT], vocabulary), 10)

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

    note += f": {len(train):,} words to train, {len(valid[:HELD_OUT]):,} held out, vocabulary of {len(vocabulary):,}"
    return Task(LSTM(len(vocabulary)), stream, loss, evaluate, note)


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


class Stream:
    """The text in `batch_size` parallel columns, `LENGTH` words at a time; the LSTM's state is carried along.

    The batch holds the state that precedes it, so that SAM's second pass starts where its first one did.
    """

    def __init__(self, words: Tensor, batch_size: int) -> None:
        self.columns = words[: len(words) // batch_size * batch_size].view(batch_size, -1).t().contiguous()
        self.per_epoch = (len(self.columns) - 1) // LENGTH
        self.carry: Tensor | None = None

    def __call__(self, position: int) -> tuple[Tensor, Tensor, Tensor | None]:
        start = position % self.per_epoch * LENGTH
        carry = self.carry if start > 0 else None
        return self.columns[start : start + LENGTH], self.columns[start + 1 : start + LENGTH + 1], carry

    def state_dict(self) -> dict[str, Any]:
        return {"carry": self.carry}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.carry = state["carry"]


def _vocabulary(words: Sequence[str], size: int = 10_000) -> dict[str, int]:
    """The most frequent words, numbered; "<unk>" stands for all others."""
    from collections import Counter

    counts = Counter(words)
    counts["<unk>"] += 0
    common = sorted(counts, key=lambda word: (word != "<unk>", -counts[word], word))
    return {word: i for i, word in enumerate(common[:size])}


def _encode(words: Sequence[str], vocabulary: Mapping[str, int]) -> Tensor:
    unknown = vocabulary["<unk>"]
    return torch.tensor([vocabulary.get(word, unknown) for word in words])


def _documentation() -> list[str]:
    """The words of the documentation strings, lower case, in the order of the files."""
    import ast
    import re
    import warnings

    from adan_bench.data import library_sources

    words: list[str] = []
    for source in library_sources():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in old files
            tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                words += re.findall(r"[a-z0-9_]+|[^\sa-z0-9_]", (ast.get_docstring(node) or "").lower())
                words.append("<eos>")
    return words
