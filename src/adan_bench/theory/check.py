"""What a study of the theory hands back: claims with their numbers, plots, tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
        return {
            "name": self.name,
            "claim": self.claim,
            "measured": self.measured if math.isfinite(self.measured) else None,
            "relation": "≥" if self.at_least else "≤",
            "bound": self.bound,
            "passed": self.passed,
            "note": self.note,
        }


@dataclass(frozen=True)
class ChapterTable:
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Chapter:
    """One section of the report. plots: file name -> a function that draws on a matplotlib figure."""

    name: str
    title: str
    about: str
    checks: Sequence[Check]
    plots: Mapping[str, Callable[[Any], None]] = field(default_factory=dict)
    tables: Sequence[ChapterTable] = ()


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
