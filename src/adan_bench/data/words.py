"""Word-level language modelling: files of words, columns of text whose state is carried along, perplexity."""

from __future__ import annotations

import ast
import math
import re
import warnings
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from adan_bench.data.batching import library_sources
from adan_bench.data.cache import decoded
from adan_bench.data.files import PENN_TREEBANK, WIKITEXT
from adan_bench.spec import Context, UsageError


class Stream:
    """The text in `batch_size` parallel columns, `length` words at a time; the model's state is carried along.

    The batch holds the state that precedes it, so that SAM's second pass starts where its first one did. The state that
    follows is kept in the same memory as the last one, where a CUDA graph writes it.
    """

    def __init__(self, words: Tensor, batch_size: int, length: int, device: str = "cpu") -> None:
        self.columns = columns(words, batch_size).to(device)
        self.rows = torch.arange(length + 1, device=device)
        self.length = length
        self.per_epoch = (len(self.columns) - 1) // length
        if self.per_epoch < 1:
            raise UsageError(f"batch_size={batch_size}: {len(words):,} words are too few for rows of {length} words")
        self.carry: list[Tensor] | None = None

    def __call__(self, position: int) -> tuple[Tensor, list[Tensor] | None]:
        """The first row of the batch, and the state before it: none where the text begins."""
        start = position % self.per_epoch * self.length
        carry = None if start == 0 or self.carry is None else [state.clone() for state in self.carry]
        return torch.tensor(start), carry

    def gather(self, batch: tuple[Tensor, list[Tensor] | None]) -> tuple[Tensor, Tensor, list[Tensor] | None]:
        """The words, those that follow each, and the state."""
        words = self.columns[batch[0] + self.rows].long()
        return words[:-1], words[1:], batch[1]

    def keep(self, carry: list[Tensor]) -> None:
        """The state after a batch."""
        if self.carry is None or _places(self.carry) != _places(carry):
            self.carry = [state.detach().clone() for state in carry]
        else:
            for kept, state in zip(self.carry, carry, strict=True):
                kept.copy_(state.detach())

    def state_dict(self) -> dict[str, Any]:
        return {"carry": self.carry}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.carry = state["carry"]


def _places(tensors: list[Tensor]) -> list[Any]:
    return [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors]


def columns(words: Tensor, count: int) -> Tensor:
    """The text as `count` columns of equal height, read downward."""
    return words[: len(words) // count * count].view(count, -1).t().contiguous()


def perplexity(
    step: Callable[[Tensor, Any], tuple[Tensor, Any]], words: Tensor, batch_size: int, length: int, device: str
) -> float:
    """The exponential of the mean loss over the whole text; `step` maps (words, state) to (logits, next state)."""
    text, carry, total, count = columns(words, batch_size), None, 0.0, 0
    for start in range(0, len(text) - 1, length):
        part = text[start : start + length + 1].long().to(device)
        logits, carry = step(part[:-1], carry)
        total += F.cross_entropy(logits.float().flatten(0, 1), part[1:].flatten(), reduction="sum").item()
        count += part[1:].numel()
    return math.exp(min(total / count, 700.0))  # exp(710) overflows


def file_words(path: Path) -> Iterator[str]:
    """The words of a file, line by line; "<eos>" ends each."""
    empty = True
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                empty = False
                yield from line.split()
                yield "<eos>"
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not a text file in UTF-8 ({error}); get it again") from error
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


def penn_treebank(context: Context) -> tuple[list[Tensor], int]:
    """Penn Treebank's three splits, encoded, and the size of their vocabulary."""
    return _word_files(tuple(context.path(name) for name in PENN_TREEBANK))


def wikitext(context: Context) -> tuple[list[Tensor], int]:
    """WikiText-103's three splits, encoded, and the size of their vocabulary: every word of the training split."""
    return _word_files(tuple(context.path(name) for name in WIKITEXT))


@lru_cache(maxsize=2)  # a worker process makes many runs
def _word_files(paths: tuple[Path, ...]) -> tuple[list[Tensor], int]:
    def encoded() -> dict[str, Tensor]:
        known = vocabulary(file_words(paths[0]), size=None)
        splits = {str(i): encode(file_words(path), known) for i, path in enumerate(paths)}
        return {**splits, "vocabulary": torch.tensor(len(known))}

    found = decoded("words", paths, encoded)
    return [found[str(i)] for i in range(len(paths))], int(found["vocabulary"])


@lru_cache(maxsize=1)
def documentation() -> list[str]:
    """The documentation strings of the standard library, in the order of the files; "" where there is none."""
    found = []
    for source in library_sources():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in old files
            tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                found.append(ast.get_docstring(node) or "")
    return found


def documentation_words() -> list[str]:
    """The words of the documentation strings, lower case."""
    words: list[str] = []
    for text in documentation():
        words += re.findall(r"[a-z0-9_]+|[^\sa-z0-9_]", text.lower())
        words.append("<eos>")
    return words
