"""What a study of the theory hands back: claims with their numbers, plots, tables. The words are in claims.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adan_bench.records.stats import interval

Array = NDArray[np.float64]

ROUNDING = 1e-10  # what "the same" means in fp64, for values of order one over hundreds of steps


@dataclass(frozen=True)
class Check:
    """One claim: it holds where the measured number is at most (or at least) the bound.

    >>> Check("x", "1 is at most 2", 1.0, 2.0).passed
    True
    >>> Check("x", "a number that is none never passes", float("nan"), 2.0).passed
    False
    """

    name: str
    claim: str
    measured: float
    bound: float
    at_least: bool = False
    note: str = ""

    @property
    def passed(self) -> bool:
        if not math.isfinite(self.measured):
            return False
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound

    def to_json(self) -> dict[str, Any]:
        shown = {"measured": self.measured if math.isfinite(self.measured) else None, "passed": self.passed}
        facts = {name: value for name, value in vars(self).items() if name != "at_least"}
        return {**facts, **shown, "relation": "≥" if self.at_least else "≤"}


@dataclass(frozen=True)
class ChapterTable:
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Chapter:
    """The chapter of claims.md with this name. plot: draws on a matplotlib figure."""

    name: str
    checks: Sequence[Check]
    plot: Callable[[Any], None] | None = None
    tables: Sequence[ChapterTable] = ()

    @property
    def texts(self) -> list[str]:
        """Title and introduction."""
        return _texts()[0][self.name]


def check(entry: str, measured: float | None, bound: float, /, at_least: bool = False, **values: Any) -> Check:
    """A check whose claim and remark are those of an entry of claims.md, with the values of its $names filled in."""
    name, claim, note = (Template(text).substitute(values) for text in (entry, *_texts()[1][entry]))
    return Check(name, claim, math.nan if measured is None else measured, bound, at_least, note)


@cache
def _texts() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """claims.md: title and introduction by the name of a chapter, claim and remark by the entry of a check."""
    chapters: dict[str, list[str]] = {}
    entries: dict[str, list[str]] = {}
    for block in Path(__file__).with_name("claims.md").read_text(encoding="utf-8").strip().split("\n\n"):
        if block.startswith("# "):
            name, _, title = block[2:].partition(": ")
            chapters[name] = [title]
        elif block.startswith("**"):
            text, *remark = block.split("\n> ")
            entry, claim = text[2:].split("** ", 1)
            entries[entry] = [claim.replace("\n", " "), " ".join(remark)]
        else:
            chapters[name].append(block.replace("\n", " "))
    return chapters, entries


def distance(a: Any, b: Any) -> float:
    """The largest difference of two arrays, or of two lists of arrays."""
    return float(np.max(np.abs(np.asarray(a) - np.asarray(b))))


def mean_ends(values: Array) -> tuple[float, float]:
    """Both ends of the 95% interval of the mean; NaN where a value is none.

    >>> mean_ends(np.array([1.0, np.nan]))
    (nan, nan)
    """
    if not np.isfinite(values).all():
        return math.nan, math.nan
    result = interval(values.tolist())
    assert result.low is not None
    assert result.high is not None
    return result.low, result.high
