"""Statistics of the results page: differences over seeds and searches, Holm's correction, one number over families.

For a mean, the variance of a bootstrap with infinitely many draws is known, so nothing is drawn here; `recompute.py`
draws.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import stdtr, stdtrit

from adan_bench.records.stats import LEVEL, MIN_SEEDS, Interval


@dataclass(frozen=True)
class Estimate:
    """A mean with the variance of its error, and the degrees of freedom of that; n: the fewest seeds of a search."""

    n: int
    mean: float
    variance: float
    freedom: float

    def __sub__(self, other: Estimate) -> Estimate:
        """The difference of two independent means; with one search of each, that of Welch's test."""
        variance = self.variance + other.variance
        parts = self.variance**2 / self.freedom + other.variance**2 / other.freedom
        freedom = variance**2 / parts if parts else self.freedom + other.freedom
        return Estimate(min(self.n, other.n), self.mean - other.mean, variance, freedom)

    @property
    def p(self) -> float:
        """The two-sided p value of a mean of zero; 1 where there are too few seeds to tell."""
        if self.n < MIN_SEEDS:
            return 1.0
        if not self.variance:
            return float(self.mean == 0)
        return 2 * float(stdtr(self.freedom, -abs(self.mean) / math.sqrt(self.variance)))

    def interval(self, comparisons: int = 1) -> Interval:
        if self.n < MIN_SEEDS:
            return Interval(self.n, self.mean, None, None)
        half = float(stdtrit(self.freedom, 1 - (1 - LEVEL) / (2 * comparisons))) * math.sqrt(self.variance)
        return Interval(self.n, self.mean, self.mean - half, self.mean + half)


def estimate(*searches: Sequence[float]) -> Estimate:
    """The mean over searches of the mean over the seeds of each.

    Its variance is that of a bootstrap which draws searches, then seeds of these; of one search, seeds alone. Both
    levels have the factor n / (n - 1) that a bootstrap of few values lacks. The degrees of freedom are those of the
    seeds: two searches show whether they agree, but hardly how far a third would be.
    """
    means, m = [statistics.fmean(values) for values in searches], len(searches)
    errors = [statistics.variance(values) / len(values) if len(values) > 1 else 0.0 for values in searches]
    between = statistics.variance(means) if m > 1 else 0.0
    freedom = max(1, sum(len(values) - 1 for values in searches))
    return Estimate(min(map(len, searches)), statistics.fmean(means), (between + statistics.fmean(errors)) / m, freedom)


def holm(p_values: Sequence[float]) -> list[int]:
    """The number of comparisons that each is to be corrected for: all for the smallest p, one fewer for the next, ….

    From the first on that is not significant, it stays the same.

    >>> holm([0.001, 0.5, 0.02])
    [3, 2, 2]
    """
    left, divisors = len(p_values), [0] * len(p_values)
    for i in sorted(range(len(p_values)), key=lambda i: p_values[i]):
        divisors[i] = left
        left -= p_values[i] <= (1 - LEVEL) / left
    return divisors


@dataclass(frozen=True)
class FamilySummary:
    """A random-effects mean, and where the effect of one more family is expected."""

    mean: Interval
    one_more: Interval


def random_effects(effects: Sequence[tuple[float, float]]) -> FamilySummary:
    """The mean of effects, each with its variance, that differ by more than their errors (DerSimonian and Laird).

    Intervals: of the mean by Hartung and Knapp, but not narrower than without; of one more by Higgins et al. (2009).
    """
    y, variances = (np.array(column) for column in zip(*effects, strict=True))
    k = len(y)

    def weighted(weights: NDArray[np.float64]) -> tuple[float, float]:
        """The mean and the weighted sum of squares around it."""
        mean = float(np.average(y, weights=weights))
        return mean, float(weights @ (y - mean) ** 2)

    weights = 1 / variances
    excess = weighted(weights)[1] - (k - 1)
    between = max(0.0, excess / float(weights.sum() - (weights**2).sum() / weights.sum()))
    weights = 1 / (variances + between)
    mean, squares = weighted(weights)
    variance = max(1.0, squares / (k - 1)) / float(weights.sum())

    def around(variance: float, freedom: int) -> Interval:
        half = float(stdtrit(freedom, (1 + LEVEL) / 2)) * math.sqrt(variance)
        return Interval(k, mean, mean - half, mean + half)

    return FamilySummary(around(variance, k - 1), around(between + variance, k - 2))


def steps_for(result: float, ladder: Mapping[int, Sequence[float]]) -> float:
    """The steps after which a loss is reached, by a fit of a + b·T^−c to losses by number of steps, one per seed.

    Infinite where the fit never gets there; beyond the shortest and the longest run it is an extrapolation.
    """
    points = [(steps, loss) for steps, losses in ladder.items() for loss in losses]
    y = [loss for _, loss in points]

    def fit(c: float) -> tuple[float, float, float]:
        """The sum of squares, a and b of the best line through the losses over T^−c."""
        x = [steps**-c for steps, _ in points]
        b, a = statistics.linear_regression(x, y)
        return sum((a + b * at - loss) ** 2 for at, loss in zip(x, y, strict=True)), a, b

    c = float(minimize_scalar(lambda c: fit(c)[0], bounds=(0.01, 3.0), method="bounded", options={"xatol": 1e-9}).x)
    _, a, b = fit(c)
    return float((b / (result - a)) ** (1 / c)) if b > 0 and result > a else math.inf
