"""A search over ranges: quasi-random points of all of them at once, the best of these again on other seeds."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Any, ClassVar

from adan_bench.config import CONFIRMATIONS, TUNING_SEED, Origin, RunRecord
from adan_bench.records.stats import best_trial, rank
from adan_bench.studies.arms import FOLDER, Search, rounded
from adan_bench.task import Settings

PRIMES = (2, 3, 5, 7, 11, 13, 17, 19)  # a base for each range
DIGITS = 20  # of a coordinate in its base
NEAR = 1.5  # a rate within this factor of an end of its range is near it
GROWTH, MORE = 4.0, 4  # the factor by which the ranges then grow on that side, and the trials in the new part
MOST_GROWTHS = 2  # of each side


@cache
def coordinates(seed: int, number: int) -> list[float]:
    """A point of the Halton sequence with digits scrambled by a seed, as in AlgoPerf's searches (arXiv:1706.03200).

    Python's `random()` gives the same numbers in every version, so that a study can be resumed anywhere.

    >>> sorted(int(8 * coordinates(1000, number)[0]) for number in range(8))
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    rng, point = random.Random(seed), [0.0] * len(PRIMES)
    for (i, base), place in product(enumerate(PRIMES), range(DIGITS)):
        digits = sorted(range(base), key=lambda _: rng.random())
        point[i] += digits[number // base**place % base] / base ** (place + 1)
    return point


def at(values: Any, share: float) -> Any:
    """The value at a share of a range, which is as a study's file has it.

    >>> at([0.01, 1.0], 0.5), at({"one_minus": [0.01, 1.0]}, 0.5)
    (0.1, 0.9)
    >>> [at({"choice": [2, 5, 10]}, share) for share in (0.0, 0.5, 1.0)]
    [2, 5, 10]
    """
    if isinstance(values, list):
        low, high = values
        return rounded(low * (high / low) ** share)
    ((kind, among),) = values.items()
    return among[min(int(share * len(among)), len(among) - 1)] if kind == "choice" else round(1 - at(among, share), 9)


def extremes(values: Any) -> list[Any]:
    """The ends of a range, or all of its choices."""
    choices = values.get("choice") if isinstance(values, dict) else None
    return choices or [at(values, share) for share in (0.0, 1.0)]


def filled(template: Any, values: Mapping[str, Any]) -> Any:
    """Settings with values in place of their names.

    >>> filled({"betas": ["b1", 0.99]}, {"b1": 0.9})
    {'betas': [0.9, 0.99]}
    """
    if isinstance(template, Mapping):
        return {key: filled(value, values) for key, value in template.items()}
    if isinstance(template, list):
        return [filled(value, values) for value in template]
    return values.get(template, template) if isinstance(template, str) else template


@dataclass(frozen=True)
class RangeSearch(Search):
    """Points of all ranges; the best are tried on more seeds, and the best mean is chosen.

    rates: the ends of their range; start: settings with names of ranges in place of values.
    ranges: the others by name, in one order for all optimizers of a study: trial i of each has the same values of them.
    confirm: how many of the best are tried on the seeds after `seed`, which is that of the points and their trials.
    """

    together: ClassVar[bool] = True
    ranges: Mapping[str, Any] = field(default_factory=dict)
    confirm: int = 0
    seed: int = TUNING_SEED

    @property
    def centers(self) -> Settings:
        return {name: at(values, 0.5) for name, values in {"lr": [*self.rates], **self.ranges}.items()}

    def extremes(self) -> Iterator[tuple[str, Settings]]:
        """The centers of settings, with one range at a time at each of its ends or choices."""
        for name, values in {"lr": [*self.rates], **self.ranges}.items():
            for value in extremes(values):
                option = {name: value} if name in self.options else {}
                yield name, {"settings": filled(self.start, {**self.centers, name: value}) | self.fixed, **option}

    @property
    def points(self) -> int:
        return self.trials + MORE * len(self.growths)

    @property
    def expected(self) -> int:
        return self.points + self.confirm * CONFIRMATIONS

    def told(self, tried: Sequence[RunRecord]) -> dict[str, Settings]:
        """Points, then the best of them again; then those of the first growth of the range, and so on."""
        made = {record.path.name: record for record in tried}
        for count in range(self.trials, self.points + 1, MORE):
            names = [FOLDER(number) for number in range(count)]
            told = {name: self._point(number) for number, name in enumerate(names) if name not in made}
            if not told:
                best = sorted((made[name] for name in names if made[name].final is not None), key=rank)[: self.confirm]
                again = {name: fields for record in best for name, fields in self._again(record)}
                told = {name: fields for name, fields in again.items() if name not in made}
            if told:
                return told
        return {}

    def origin(self, tried: Sequence[RunRecord]) -> Origin:
        edge, options = bool(self._near(tried)), self.options
        return Origin(
            kind="here", trials=self.points, seed=self.seed, confirmed=self.confirm, searched=options, at_edge=edge
        )

    def edges(self, tried: Sequence[RunRecord]) -> list[str]:
        return [side for side in self._near(tried) if self.growths.count(side) < MOST_GROWTHS]

    def _near(self, tried: Sequence[RunRecord]) -> list[str]:
        """The ends of the range of rates that the best rate is near to."""
        if all(record.final is None for record in tried):
            return []
        lr, parts = best_trial(tried).lr, self._parts()
        low, high = min(low for low, _ in parts), max(high for _, high in parts)
        return ["low"] * (lr <= low * NEAR) + ["high"] * (lr * NEAR >= high)

    def _parts(self) -> list[tuple[float, float]]:
        """The range of rates, then what was added to it, time by time."""
        low, high = self.rates
        parts = [(low, high)]
        for side in self.growths:
            parts.append((low / GROWTH, low) if side == "low" else (high, high * GROWTH))
            low, high = min(low, parts[-1][0]), max(high, parts[-1][1])
        return parts

    def _point(self, number: int) -> Settings:
        part = self._parts()[0 if number < self.trials else 1 + (number - self.trials) // MORE]
        ranges, shares = {"lr": [*part], **self.ranges}, coordinates(self.seed, number)
        values = {name: at(ranges[name], share) for name, share in zip(ranges, shares, strict=False)}
        options = {name: values[name] for name in self.options}
        return {"settings": {**filled(self.start, values), **self.fixed}, "seed": self.seed, **options}

    def _again(self, record: RunRecord) -> Iterator[tuple[str, Settings]]:
        """A trial on each of the seeds that are to confirm it."""
        for seed in range(self.seed + 1, self.seed + 1 + CONFIRMATIONS):
            options = {name: getattr(record.config, name) for name in self.options}
            yield f"{record.path.name}-seed-{seed}", {"settings": record.config.settings, "seed": seed, **options}
