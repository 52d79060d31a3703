"""Statistics of the results page: differences over seeds and searches, Holm's correction, one number over families.

Nothing is drawn at random.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import stdtr

from adan_bench.records.stats import LEVEL, MIN_SEEDS, Interval, quantile


@dataclass(frozen=True)
class Estimate:
    """A mean with the variance of its error, and the degrees of freedom of that; n: the fewest seeds of a search.

    pooled: whether that variance is one over all optimizers of a workload, so that two of them have it in common.
    """

    n: int
    mean: float
    variance: float
    freedom: float
    pooled: bool = False

    def __sub__(self, other: Estimate) -> Estimate:
        """The difference of two independent means; with one search of each, that of Welch's test."""
        variance = self.variance + other.variance
        parts = self.variance**2 / self.freedom + other.variance**2 / other.freedom
        freedom = variance**2 / parts if parts else self.freedom + other.freedom
        if self.pooled and other.pooled:
            freedom = min(self.freedom, other.freedom)
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
        return Interval.around(self.mean, math.sqrt(self.variance), self.freedom, self.n, comparisons)


def estimate(*searches: Sequence[float], spread: tuple[float, int] | None = None) -> Estimate:
    """The mean over searches of the mean over the seeds of each; its error is that of the seeds if no spread is known.

    spread: of the means of searches, over all optimizers of a workload (`spread_of`): two searches of one optimizer
    hardly say how far a third would be. It includes the error of the seeds, and is never taken as smaller than that.
    """
    means, m = [statistics.fmean(values) for values in searches], len(searches)
    errors = [statistics.variance(values) / len(values) if len(values) > 1 else 0.0 for values in searches]
    own = spread_of([searches]) if m > 1 else (0.0, max(1, len(searches[0]) - 1))
    variance, freedom = spread or own
    variance = max(variance, statistics.fmean(errors)) / m
    return Estimate(min(map(len, searches)), statistics.fmean(means), variance, freedom, pooled=spread is not None)


def spread_of(optimizers: Sequence[Sequence[Sequence[float]]]) -> tuple[float, int]:
    """The variance of the means of searches around their optimizer's mean, and its degrees of freedom."""
    means = [[statistics.fmean(values) for values in searches] for searches in optimizers if len(searches) > 1]
    freedom = sum(len(own) - 1 for own in means)
    return sum(statistics.variance(own) * (len(own) - 1) for own in means) / freedom, freedom


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
    one_more = Interval.around(mean, math.sqrt(between + variance), k - 2, k)
    return FamilySummary(Interval.around(mean, math.sqrt(variance), k - 1, k), one_more)


# Lengths of runs


@dataclass(frozen=True)
class PowerLaw:
    """A fit of a + b·T^−c to losses after T steps, one per length; with three lengths or fewer, a is 0.

    errors: the standard deviation of each loss: runs of few steps scatter more. squares: of the deviations from the
    fit, each divided by its error.
    """

    a: float
    b: float
    c: float
    squares: float
    errors: Mapping[int, float]

    @classmethod
    def of(cls, losses: Mapping[int, float], errors: Mapping[int, float]) -> PowerLaw:
        lengths, y, sigma = (np.array([*of], float) for of in (losses, losses.values(), map(errors.get, losses)))

        def line(c: float) -> tuple[float, float, float]:
            """The best line through the losses over T^−c: the sum of squares around it, a and b."""
            columns = np.stack([np.ones(len(y)), lengths**-c], 1)
            used = columns[:, -1:] if len(y) <= 3 else columns
            found = np.linalg.lstsq(used / sigma[:, None], y / sigma)[0]
            squares = float((((used @ found - y) / sigma) ** 2).sum())
            return squares, float(found[0]) if len(found) > 1 else 0.0, float(found[-1])

        c = float(minimize_scalar(lambda c: line(c)[0], bounds=(0.01, 3), method="bounded", options={"xatol": 1e-9}).x)
        squares, a, b = line(c)
        return cls(a, b, c, squares, errors)

    @property
    def parameters(self) -> int:
        return 3 if len(self.errors) > 3 else 2

    def loss(self, steps: float) -> float:
        return float(self.a + self.b * steps**-self.c)

    def steps(self, loss: float) -> float:
        """Infinite where it never gets there; beyond the shortest and the longest run, an extrapolation."""
        return float((self.b / (loss - self.a)) ** (1 / self.c)) if self.b > 0 and loss > self.a else math.inf

    def slope(self, steps: float) -> NDArray[np.float64]:
        """How the loss after some steps changes with the parameters: a where it is one, b and c."""
        x = steps**-self.c
        return np.array([1.0, x, -self.b * x * math.log(steps)])[-self.parameters :]

    def variance(self, steps: float) -> float:
        """Of the loss after some steps, by the errors."""
        slope, weighted = self.slope(steps), np.array([self.slope(at) / error for at, error in self.errors.items()])
        return float(slope @ np.linalg.solve(weighted.T @ weighted, slope))


def steps_ratio(ours: PowerLaw, theirs: PowerLaw, at: int, every: Sequence[PowerLaw], seeds: int) -> Interval:
    """The steps that one needs for the other's loss after `at` of them, divided by these.

    every: fits whose errors have one factor, of seeds and of searches: what they leave says how large it is. Where they
    leave nothing, the errors are taken as they are, those of seeds, with `seeds` degrees of freedom. The interval is by
    the first derivative of the logarithm.
    """
    freedom = sum(len(law.errors) - law.parameters for law in every)
    steps = ours.steps(theirs.loss(at))
    if not math.isfinite(steps):
        return Interval(len(ours.errors), steps / at, None, None)
    scale = sum(law.squares for law in every) / freedom if freedom else 1.0
    variance = scale * (ours.variance(steps) + theirs.variance(at))
    per_step = ours.b * ours.c * steps**-ours.c  # of the loss, per logarithm of steps
    half = quantile(freedom or seeds) * math.sqrt(variance) / per_step
    ratio = steps / at
    return Interval(len(ours.errors), ratio, ratio * math.exp(-half), ratio * math.exp(half))
