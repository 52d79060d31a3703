"""Sizes of the models of words; nothing is imported for them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LstmSizes:
    """Widths, words per sequence, dropout of output, hidden layers, input, words and recurrent weights."""

    embedding: int = 400
    hidden: int = 1150
    length: int = 70
    output: float = 0.4
    between: float = 0.25
    input: float = 0.4
    words: float = 0.1
    recurrent: float = 0.5


@dataclass(frozen=True)
class XLSizes:
    """The model, the words of a step and of the memory; cutoffs: the first words of the softmax's clusters."""

    layers: int
    width: int
    heads: int
    inner: int
    dropout: float
    length: int
    memory: int
    cutoffs: tuple[int, ...] = ()
