"""The stored studies: runs by optimizer and settings, and the trials behind the settings.

Runs of an earlier runner (results/evidence/runs.jsonl) are tied to their studies by results/evidence/studies.json; one
run may belong to several. A newer study is a file of its own, results/studies/NAME.jsonl, with its trials and runs.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from common import ROOT
from inference import Estimate, estimate, spread_of

from adan_bench.config import RunRecord
from adan_bench.records.archive import read_archive
from adan_bench.records.stats import MIN_SEEDS, Interval, Verdict, best_trial, grouped

EVIDENCE = ROOT / "results" / "evidence"
NEWER = ROOT / "results" / "studies"


@dataclass(frozen=True)
class SeedGroup:
    """Runs that differ only in their seed: those that finished, and how many others diverged or were never made."""

    runs: tuple[RunRecord, ...]
    diverged: int = 0
    planned: int = 0

    @property
    def first(self) -> RunRecord:
        return self.runs[0]

    @property
    def optimizer(self) -> str:
        return self.first.config.name

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.first.config.settings

    @property
    def higher(self) -> bool:
        return self.first.higher_is_better

    @property
    def n(self) -> int:
        return len(self.runs)

    @property
    def counted(self) -> str:
        """n, with the seeds that diverged where some did."""
        return f"{self.n} of {self.n + self.diverged}, {self.diverged} diverged" if self.diverged else str(self.n)

    def by_seed(self) -> dict[int, float]:
        return {r.config.seed: r.final for r in self.runs if r.final is not None}

    @property
    def result(self) -> Estimate:
        return estimate(list(self.by_seed().values()))

    def final(self) -> Interval:
        return self.result.interval()

    def training_loss(self) -> float:
        """Mean training loss between the last two evaluations."""
        losses = []
        for run in self.runs:
            since = [0, *(step for step, _, _ in run.curve("eval", run.metric))][-2]
            losses.append(statistics.fmean(value for step, _, value in run.curve("train", "loss") if step > since))
        return statistics.fmean(losses)

    def curve(self) -> list[tuple[int, list[float]]]:
        """(step, the metric of every seed)."""
        points = [run.curve("eval", run.metric) for run in self.runs]
        return [(at[0][0], [value for _, _, value in at]) for at in zip(*points, strict=True)]

    def minus(self, other: SeedGroup, comparisons: int = 1) -> Verdict:
        """The verdict on the difference from another group, by Welch's test."""
        gap = (self.result - other.result).interval(comparisons)
        return Verdict(gap, self.higher, (self.diverged, other.diverged))


@dataclass(frozen=True)
class StoredStudy:
    """A study and its runs.

    unit, length: "epochs" or "steps", and how many. tune_length: of its trials, where these are shorter.
    planned_trials: settings tried of each optimizer; 0 where they are published ones, None where another study's.
    settings_of: that study. starts_from: the study whose weights are fine-tuned.
    search: the trials of each optimizer in the order in which they were asked for.
    diverged: the reported runs of each optimizer that did, in newer studies.
    """

    name: str
    groups: Sequence[SeedGroup]
    search: Mapping[str, Sequence[RunRecord]]
    length: int
    unit: str = "steps"
    tune_length: int | None = None
    planned_trials: int | None = None
    settings_of: str = ""
    starts_from: str = ""
    diverged: Mapping[str, int] = field(default_factory=dict)

    @property
    def chosen(self) -> dict[str, RunRecord]:
        """The trial of each optimizer whose settings were chosen; none where the search was cut short."""
        whole = max(map(len, self.search.values()), default=0) >= (self.planned_trials or 0)
        return {optimizer: best_trial(trials) for optimizer, trials in self.search.items() if trials and whole}

    def compared(self) -> list[SeedGroup]:
        """The groups, Adan's first, where each has enough seeds to be compared; else none."""
        enough = all(group.n >= MIN_SEEDS for group in self.groups)
        return sorted(self.groups, key=lambda group: group.optimizer != "adan") if enough else []


@dataclass(frozen=True)
class Contestant:
    """An optimizer of a study of the field.

    groups: its reported runs, one group per search of which some finished; diverged: how many did, of all searches.
    trials: those that confirm the best included. spread: of searches, over the optimizers of the workload.
    """

    optimizer: str
    groups: Sequence[SeedGroup]
    diverged: int
    trials: Sequence[RunRecord]
    spread: tuple[float, int] | None = None

    @property
    def runs(self) -> list[RunRecord]:
        return [run for group in self.groups for run in group.runs]

    @cached_property
    def result(self) -> Estimate:
        return estimate(*self.searches, spread=self.spread)

    @property
    def searches(self) -> list[list[float]]:
        """Final values by search, then by seed."""
        return [list(group.by_seed().values()) for group in self.groups]

    def minus(self, other: Contestant, comparisons: int = 1) -> Verdict:
        gap = (self.result - other.result).interval(comparisons)
        return Verdict(gap, self.groups[0].higher, (self.diverged, other.diverged))


def rivals(searches: Sequence[StoredStudy]) -> list[Contestant]:
    """The optimizers of a workload over its searches: best first, then those with diverged seeds, or with no result.

    A search with too few seeds of an optimizer counts only where it has no other: it would leave no interval.
    """
    found = []
    for name in dict.fromkeys(name for study in searches for name in study.search):
        groups = [group for study in searches for group in study.groups if group.optimizer == name]
        groups = [group for group in groups if group.n >= MIN_SEEDS] or groups
        trials = [trial for study in searches for trial in study.search.get(name, ())]
        found.append(Contestant(name, groups, sum(study.diverged.get(name, 0) for study in searches), trials))

    def order(rival: Contestant) -> tuple[bool, bool, float]:
        sign = -1 if rival.groups and rival.groups[0].higher else 1
        return not rival.groups, rival.diverged > 0, sign * rival.result.mean if rival.groups else 0.0

    if several := [rival.searches for rival in found if len(rival.groups) > 1]:
        found = [replace(rival, spread=spread_of(several)) for rival in found]
    return sorted(found, key=order)


def by_optimizer(records: Iterable[RunRecord]) -> dict[str, Sequence[RunRecord]]:
    return {own[0].config.name: own for own in grouped(records, lambda r: r.config.name)}


def by_key(file: Path) -> dict[str, RunRecord]:
    """The runs of a file of results/evidence by their keys, which studies.json names."""
    return {record.path.name: record for record in read_archive(file)[0]}


@cache
def studies() -> dict[str, StoredStudy]:
    index = json.loads((EVIDENCE / "studies.json").read_text(encoding="utf-8"))
    records = by_key(EVIDENCE / "runs.jsonl")
    older = {name: _study(name, facts, records) for name, facts in index.items()}
    newer = [of_archive(file) for file in sorted(NEWER.glob("*.jsonl"))]
    return older | {f"{s.name}-again-by-adan-bench" if s.name in older else s.name: s for s in newer}


def _study(name: str, facts: Mapping[str, Any], records: Mapping[str, RunRecord]) -> StoredStudy:
    def made(keys: Sequence[str]) -> list[RunRecord]:
        return [records[key] for key in keys if key in records]

    return StoredStudy(
        name=name,
        groups=_groups((made(group["runs"]), len(group["runs"])) for group in facts["groups"]),
        search={optimizer: made(entry["trials"]) for optimizer, entry in facts.get("search", {}).items()},
        planned_trials=facts.get("trials"),
        settings_of=f"`{facts['settings_of']}`" if "settings_of" in facts else "",
        **{key: facts[key] for key in ("unit", "length", "tune_length", "starts_from") if key in facts},
    )


def _groups(sets: Iterable[tuple[Sequence[RunRecord], int]]) -> list[SeedGroup]:
    """Groups of runs, each with the number planned; without those of which no run finished."""
    groups = []
    for runs, planned in sets:
        finished = tuple(run for run in runs if run.final is not None)
        groups += [SeedGroup(finished, sum(run.diverged for run in runs), planned)] if finished else []
    return groups


def of_archive(file: Path) -> StoredStudy:
    """A study of a file of its own: trials and runs by the name of who competes."""
    records, _ = read_archive(file)
    trials, runs = ([r for r in records if (r.config.role == "tune") is tuning] for tuning in (True, False))
    seeds = grouped(runs, lambda r: [r.config.name, r.config.steps, r.config.batch_size, r.config.settings])
    search = by_optimizer(trials)
    length = max(run.config.steps for run in runs or trials)
    trial = max((run.config.steps for run in trials), default=length)
    elsewhere = not trials and any(run.config.origin.trials for run in runs)
    return StoredStudy(
        name=file.stem,
        groups=_groups((own, len(own)) for own in seeds),
        search=search,
        length=length,
        tune_length=trial if trial < length else None,
        planned_trials=max((len(grouped(own, lambda r: r.config.tuned)) for own in search.values()), default=0),
        settings_of="another study" if elsewhere else "",
        diverged={name: sum(run.diverged for run in own) for name, own in by_optimizer(runs).items()},
    )
