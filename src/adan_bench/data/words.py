"""Word-level language modeling: files of words, columns of text whose state is carried along, perplexity."""

from __future__ import annotations

import ast
import math
import re
import warnings
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from adan_bench.data.batching import generator, library_sources
from adan_bench.data.cache import decoded
from adan_bench.errors import UsageError, reading


class Stream:
    """The text in `batch_size` parallel columns, `length` words at a time; the model's state is carried along.

    A batch is where its row begins and how long it is; `gather` reads its words, and the state that precedes them, on
    the device. The state that follows is kept where the last one was: one CUDA graph reads and writes it. What was
    gathered is a copy, so that SAM's second pass starts where its first one did.

    carry: the state before the first words, zeros in any structure; it is written to, and its device is the text's.
        The last dimension but one of its tensors is that of the columns; those with fewer are for all of them.
    random_rows: a seed; the rows have AWD-LSTM's random lengths instead (arXiv:1708.02182), and `rate` is not 1.
    own: picks the columns of this rank (`Context.own`).
    """

    def __init__(
        self,
        words: Tensor,
        batch_size: int,
        length: int,
        carry: Any = None,
        random_rows: int | None = None,
        own: Callable[[Tensor], Tensor] = lambda rows: rows,
    ) -> None:
        self.carry, self.places = carry, own(torch.arange(batch_size))
        states = tree_leaves(carry)
        self.device = states[0].device if states and isinstance(states[0], Tensor) else torch.device("cpu")
        self.columns = columns(words, batch_size)[:, self.places].to(self.device)
        self.length = length
        self.per_epoch = (len(self.columns) - 1) // length
        if self.per_epoch < 1:
            raise UsageError(f"batch_size={batch_size}: {len(words):,} words are too few for rows of {length} words")
        self.seed = random_rows
        self._rows: list[tuple[int, int]] = []  # start and length of those of the epochs that were cut so far
        self._epochs = 0

    def __call__(self, position: int) -> tuple[Tensor, int]:
        start, length = self.row(position)
        return torch.tensor(start), min(length, len(self.columns) - 1 - start)

    def gather(self, batch: tuple[Tensor, int]) -> tuple[Any, ...]:
        """Words, the words that follow them, and the state; an epoch begins with none."""
        start, length = batch
        rows = self.columns.index_select(0, start + torch.arange(length + 1, device=self.device)).long()
        return rows[:-1], rows[1:], tree_map_only(Tensor, lambda state: torch.where(start > 0, state, 0), self.carry)

    def keep(self, carry: Any) -> None:
        for place, state in zip(tree_leaves(self.carry), tree_leaves(carry), strict=True):
            place.copy_(state.detach())

    def row(self, position: int) -> tuple[int, int]:
        """The first word of a row and its length; the last row of an epoch may end before that."""
        if self.seed is None:
            return position % self.per_epoch * self.length, self.length
        while position >= len(self._rows):
            self._cut()
        return self._rows[position]

    def rate(self, position: int) -> float:
        """The factor of the learning rate: a row's length over the usual one."""
        return self.row(position)[1] / self.length

    def _cut(self) -> None:
        """Another epoch: normal lengths around the usual one, or around half of it in one row of twenty."""
        assert self.seed is not None
        source, start = generator(self.seed, self._epochs), 0
        while start < len(self.columns) - 2:
            half = torch.rand((), generator=source).item() >= 0.95
            drawn = self.length / (2 if half else 1) + 5 * torch.randn((), generator=source).item()
            self._rows.append((start, max(5, int(drawn))))
            start += self._rows[-1][1]
        self._epochs += 1

    def state_dict(self) -> dict[str, Any]:
        return {"carry": self.carry, "places": self.places}

    def joined(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The state of all columns, from those of all ranks."""
        order = torch.cat([state["places"] for state in states]).argsort()

        def whole(*parts: Tensor) -> Tensor:
            if parts[0].dim() < 2:
                return parts[0]
            return torch.cat([part.cpu() for part in parts], -2).index_select(-2, order)

        return {"carry": tree_map(whole, *(state["carry"] for state in states))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        def own(whole: Tensor) -> Tensor:
            return whole.index_select(-2, self.places.to(whole.device)) if whole.dim() > 1 else whole

        self.keep(tree_map_only(Tensor, own, state["carry"]))


def columns(words: Tensor, count: int) -> Tensor:
    """The text as `count` columns of equal height, read downward."""
    return words[: len(words) // count * count].view(count, -1).t().contiguous()


def perplexity(
    step: Callable[[Tensor, Tensor, Any], tuple[Tensor, Any]], words: Tensor, batch_size: int, length: int, device: str
) -> float:
    """The exponential of the mean loss over the whole text.

    step: (words, following words, state) to their mean loss and the next state; the first state is None.
    """
    text, carry, count = columns(words, batch_size).to(device), None, 0
    total = torch.zeros((), dtype=torch.float64, device=device)
    for start in range(0, len(text) - 1, length):
        part = text[start : start + length + 1].long()
        loss, carry = step(part[:-1], part[1:], carry)
        total += loss * part[1:].numel()
        count += part[1:].numel()
    return math.exp(min(total.item() / count, 700.0))  # exp(710) overflows


def file_words(path: Path) -> Iterator[str]:
    """The words of a file, line by line; "<eos>" ends each."""
    empty = True
    with reading(path, "not a text file in UTF-8"), path.open(encoding="utf-8") as file:
        for line in file:
            empty = False
            yield from line.split()
            yield "<eos>"
    if empty:
        raise UsageError(f"{path} is empty; get it again")


def vocabulary(words: Iterable[str], size: int | None = 10_000) -> dict[str, int]:
    """The most frequent words, numbered; "<unk>" stands for all others."""
    counts = Counter(words)
    counts["<unk>"] += 0
    common = sorted(counts, key=lambda word: (word != "<unk>", -counts[word], word))
    return {word: i for i, word in enumerate(common[:size])}


def encode(words: Iterable[str], vocabulary: Mapping[str, int]) -> Tensor:
    """The numbers of the words, four bytes each: WikiText-103 has 103 million."""
    unknown = vocabulary["<unk>"]
    return torch.frombuffer(array("i", (vocabulary.get(word, unknown) for word in words)), dtype=torch.int32)


@lru_cache(maxsize=2)  # a worker process makes many runs
def word_files(*paths: Path) -> tuple[list[Tensor], int]:
    """The splits that these files are, encoded, and how many words the first has."""

    def encoded() -> dict[str, Tensor]:
        known = vocabulary(file_words(paths[0]), size=None)
        splits = {str(i): encode(file_words(path), known) for i, path in enumerate(paths)}
        return {**splits, "vocabulary": torch.tensor(len(known))}

    tensors = decoded("words", paths, encoded)
    return [tensors[str(i)] for i in range(len(paths))], int(tensors["vocabulary"])


@lru_cache(maxsize=1)
def documentation() -> list[str]:
    """The documentation strings of the standard library, in the order of the files; "" where there is none."""
    texts = []
    for source in library_sources():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in old files
            tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                texts.append(ast.get_docstring(node) or "")
    return texts


def documentation_splits(share: int, size: int = 10_000) -> tuple[list[Tensor], int, str]:
    """The words of the documentation strings, lower case: what trains, and one part of `share` for each other split.

    With the size of their vocabulary, at most `size`, and a note.
    """
    words: list[str] = []
    for text in documentation():
        words += re.findall(r"[a-z0-9_]+|[^\sa-z0-9_]", text.lower())
        words.append("<eos>")
    cut = len(words) // share
    known = vocabulary(words[: -2 * cut], size)
    splits = words[: -2 * cut], words[-2 * cut : -cut], words[-cut:]
    return [encode(part, known) for part in splits], len(known), "documentation strings of the standard library"
