"""What the records of a study say: runs grouped by settings, and differences between groups with their intervals.

Which runs belong to a study is asked of the study itself, so that the page and the runner cannot disagree. A difference
counts where its interval by Welch's t test, with Bonferroni's correction over the comparisons of its table, excludes 0.
A group's numbers are of the seeds that did not diverge, so that one with diverged seeds is never the better one.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adan_bench.records.stats import LEVEL, MIN_SEEDS, Interval, difference, interval
from evidence.jobs import Job, Record, diverged, succeeded
from evidence.search import Follow, Study

Records = dict[str, Record]


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed: those that finished, and how many others diverged."""

    optimizer: str
    records: tuple[Record, ...]
    diverged: int = 0

    @property
    def n(self) -> int:
        return len(self.records)

    @property
    def counted(self) -> str:
        """n, with the seeds that diverged where some did."""
        return f"{self.n} of {self.n + self.diverged}, {self.diverged} diverged" if self.diverged else str(self.n)

    @property
    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = self.records[0]["job"]["settings"]
        return settings

    @property
    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = self.records[0]["job"]["options"]
        return options

    @property
    def length(self) -> int:
        return int(self.records[0]["job"]["length"])

    @property
    def size(self) -> str:
        return f"{self.records[0]['parameters'] / 1e6:.1f} M parameters"

    @property
    def higher(self) -> bool:
        return bool(self.records[0]["higher_is_better"])

    def by_seed(self, what: str | None = None) -> dict[int, float]:
        return {r["seed"]: r["final"][what or r["metric"]] for r in self.records}

    def final(self, what: str | None = None) -> Interval:
        return interval(list(self.by_seed(what).values()))

    def curve(self) -> list[tuple[float, list[float]]]:
        """(epoch or step, the metric of every seed)."""
        job, metric = self.records[0]["job"], self.records[0]["metric"]
        scale = self.records[0]["steps"] / job["length"]
        columns = [r["curve"][metric] for r in self.records]
        steps = self.records[0]["curve"]["step"]
        return [(step / scale, list(values)) for step, *values in zip(steps, *columns, strict=True)]


def groups(study: Study | Follow, records: Records, tuning: bool = False) -> list[Group]:
    """What a study reports, by settings; only groups of which a run has finished."""
    results = []
    for seeds in _by_settings(study, records, tuning):
        runs = [records[job.key] for job in seeds if job.key in records]
        if finished := tuple(filter(succeeded, runs)):
            results.append(Group(seeds[0].optimizer, finished, sum(map(diverged, runs))))
    return results


def _by_settings(study: Study | Follow, records: Records, tuning: bool) -> list[list[Job]]:
    jobs: dict[str, list[Job]] = {}
    for job in study.reported(records):
        if job.tuning == tuning:
            options = {key: value for key, value in job.options.items() if key != "start"}  # a seed may have its own
            same = json.dumps([job.optimizer, dict(job.settings), options, job.length], sort_keys=True)
            jobs.setdefault(same, []).append(job)
    return list(jobs.values())


def lost(study: Study | Follow, records: Records) -> list[tuple[str, int, int]]:
    """(optimizer, seeds that diverged, seeds that were run) of all settings of which some diverged."""
    counts = []
    for seeds in _by_settings(study, records, False):
        runs = [records[job.key] for job in seeds if job.key in records]
        if count := sum(map(diverged, runs)):
            counts.append((seeds[0].optimizer, count, len(runs)))
    return counts


def compared(study: Study | Follow, records: Records) -> list[Group]:
    """The groups of a study where each of them has enough seeds to be compared, Adan's first; else none."""
    results = groups(study, records)
    complete = len(results) == len(_by_settings(study, records, False)) and all(g.n >= MIN_SEEDS for g in results)
    return sorted(results, key=lambda group: group.optimizer != "adan") if complete else []


def best_baseline(results: Sequence[Group]) -> Group:
    """The best of all but the first; one without diverged seeds, where there is one."""
    return max(results[1:], key=lambda group: (not group.diverged, group.final().mean * (1 if group.higher else -1)))


@dataclass(frozen=True)
class Verdict:
    """Adan, or a variant of it, minus another: the interval of the difference, and what it says.

    diverged: how many seeds of each did. Whoever has such seeds is not the better one, whatever the interval.
    """

    difference: Interval
    higher: bool
    diverged: tuple[int, int] = (0, 0)

    @property
    def word(self) -> str:
        low, high = self.difference.low, self.difference.high
        if low is None or high is None:
            return "too few seeds"
        better = (low > 0) == self.higher
        if low <= 0 <= high or self.diverged[0 if better else 1]:
            return "not significant"
        return "better" if better else "worse"


def verdict(a: Group, b: Group, comparisons: int) -> Verdict:
    gap = welch(list(a.by_seed().values()), list(b.by_seed().values()), comparisons)
    return Verdict(gap, a.higher, (a.diverged, b.diverged))


def paired(a: Group, b: Group, comparisons: int) -> Verdict:
    """The same by a t test of the differences seed by seed."""
    gap = difference(a.by_seed(), b.by_seed(), comparisons)
    assert gap is not None, "no seed is common to both"
    return Verdict(gap, a.higher, (a.diverged, b.diverged))


def welch(a: Sequence[float], b: Sequence[float], comparisons: int = 1) -> Interval:
    """The mean of a − b with its interval by Welch's t test."""
    mean = statistics.fmean(a) - statistics.fmean(b)
    if min(len(a), len(b)) < MIN_SEEDS:
        return Interval(min(len(a), len(b)), mean, None, None)
    from scipy.special import stdtrit

    errors = [statistics.variance(values) / len(values) for values in (a, b)]
    if not any(errors):  # all seeds alike in both, and no degrees of freedom to compute
        return Interval(min(len(a), len(b)), mean, mean, mean)
    freedom = sum(errors) ** 2 / sum(e**2 / (len(values) - 1) for e, values in zip(errors, (a, b), strict=True))
    half = float(stdtrit(freedom, 1 - (1 - LEVEL) / (2 * comparisons))) * math.sqrt(sum(errors))
    return Interval(min(len(a), len(b)), mean, mean - half, mean + half)


def reaches(a: Group, target: float) -> float | None:
    """Where the mean curve first is at least as good as the target."""
    for at, values in a.curve():
        mean = statistics.fmean(values)
        if (mean >= target) if a.higher else (mean <= target):
            return at
    return None
