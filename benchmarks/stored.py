"""The stored studies: runs by optimizer and settings, and the trials behind the settings.

Runs of the first format (results/evidence/runs.jsonl) are tied to their studies by results/evidence/studies.json; one
run may belong to several. A newer study is a file of its own, results/studies/NAME.jsonl, with its trials and runs.
"""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adan_bench.config import RunRecord
from adan_bench.records.archive import read_archive
from adan_bench.records.stats import MIN_SEEDS, Interval, Verdict, best_trial, interval, verdict

ROOT = Path(__file__).resolve().parent.parent
EVIDENCE = ROOT / "results" / "evidence"
NEWER = ROOT / "results" / "studies"
NAMES = {
    "adan": "Adan",
    "adamw": "AdamW",
    "adam": "Adam",
    "lamb": "LAMB",
    "sgd": "SGD",
    "sgd-momentum": "SGD",
    "adabelief": "AdaBelief",
}


@dataclass(frozen=True)
class SeedGroup:
    """Runs that differ only in their seed: those that finished, and how many others diverged or were never made."""

    optimizer: str
    settings: Mapping[str, Any]
    runs: tuple[RunRecord, ...]
    diverged: int = 0
    planned: int = 0

    @property
    def n(self) -> int:
        return len(self.runs)

    @property
    def counted(self) -> str:
        """n, with the seeds that diverged where some did."""
        return f"{self.n} of {self.n + self.diverged}, {self.diverged} diverged" if self.diverged else str(self.n)

    @property
    def higher(self) -> bool:
        return self.runs[0].higher_is_better

    @property
    def first(self) -> RunRecord:
        return self.runs[0]

    def by_seed(self, metric: str = "") -> dict[int, float]:
        """Final values of the workload's metric, or of another one."""
        return {r.config.seed: (r.result or {})["final"][metric or r.metric] for r in self.runs}

    def final(self, metric: str = "") -> Interval:
        return interval(list(self.by_seed(metric).values()))

    def training_loss(self) -> float:
        """Mean training loss between the last two evaluations."""
        losses = []
        for run in self.runs:
            evaluated = [step for step, _, _ in run.curve("eval", run.metric)]
            since = evaluated[-2] if len(evaluated) > 1 else 0
            losses.append(statistics.fmean(value for step, _, value in run.curve("train", "loss") if step > since))
        return statistics.fmean(losses)

    def curve(self) -> list[tuple[int, list[float]]]:
        """(step, the metric of every seed)."""
        points = [run.curve("eval", run.metric) for run in self.runs]
        return [(at[0][0], [value for _, _, value in at]) for at in zip(*points, strict=True)]

    def reaches(self, target: float) -> float | None:
        """The share of the run after which the mean curve first is at least as good as the target."""
        sign = 1 if self.higher else -1
        means = ((step, statistics.fmean(values)) for step, values in self.curve())
        return next((step / self.first.config.steps for step, mean in means if sign * mean >= sign * target), None)

    def minus(self, other: SeedGroup, comparisons: int = 1, paired: bool = False) -> Verdict:
        """What the difference from another group says, by Welch's test or by one paired by seed."""
        lost = self.diverged, other.diverged
        return verdict(self.by_seed(), other.by_seed(), self.higher, comparisons, paired=paired, diverged=lost)


@dataclass(frozen=True)
class StoredStudy:
    """A study and its runs.

    unit, length: "epochs" or "steps", and how many. tune_length: of its trials, where these are shorter.
    planned_trials: of each optimizer; 0 where settings are published ones, None where they are another study's.
    settings_of: that study. starts_from: the study whose weights are fine-tuned.
    search: the trials of each optimizer in the order in which they were asked for. chosen: the settings they gave.
    """

    name: str
    unit: str
    length: int
    tune_length: int | None
    planned_trials: int | None
    settings_of: str
    starts_from: str
    search: Mapping[str, tuple[RunRecord, ...]]
    chosen: Mapping[str, Mapping[str, Any] | None]
    groups: tuple[SeedGroup, ...]

    @property
    def tuned(self) -> str:
        """How settings were chosen, a key of `results_page.TUNED`."""
        if self.settings_of:
            return "elsewhere"
        if not self.planned_trials:
            return "no"
        return "shorter trials" if self.tune_length else "at full length"

    def compared(self) -> list[SeedGroup]:
        """The groups, Adan's first, where each has enough seeds to be compared; else none."""
        enough = all(group.n >= MIN_SEEDS for group in self.groups)
        return sorted(self.groups, key=lambda group: group.optimizer != "adan") if enough else []


def by_key(file: Path) -> dict[str, RunRecord]:
    """The runs of a file of the first format by their keys, which studies.json names."""
    return {record.path.name: record for record in read_archive(file)[0]}


@functools.cache
def studies() -> dict[str, StoredStudy]:
    """All stored studies by name."""
    index = json.loads((EVIDENCE / "studies.json").read_text(encoding="utf-8"))
    records = by_key(EVIDENCE / "runs.jsonl")
    older = {name: _study(name, facts, records) for name, facts in index.items()}
    newer = [of_archive(file) for file in sorted(NEWER.glob("*.jsonl"))]
    return older | {f"{s.name}-again-by-adan-bench" if s.name in older else s.name: s for s in newer}


def _study(name: str, facts: Mapping[str, Any], records: Mapping[str, RunRecord]) -> StoredStudy:
    def made(keys: Sequence[str]) -> list[RunRecord]:
        return [records[key] for key in keys if key in records]

    search = facts.get("search", {})
    return StoredStudy(
        name=name,
        unit=facts["unit"],
        length=facts["length"],
        tune_length=facts.get("tune_length"),
        planned_trials=facts.get("trials"),
        settings_of=f"`{facts['settings_of']}`" if "settings_of" in facts else "",
        starts_from=facts.get("starts_from", ""),
        search={optimizer: tuple(made(entry["trials"])) for optimizer, entry in search.items()},
        chosen={optimizer: entry["chosen"] for optimizer, entry in search.items()},
        groups=tuple(_group(g["optimizer"], g["settings"], made(g["runs"]), len(g["runs"])) for g in facts["groups"]),
    )


def _group(optimizer: str, settings: Mapping[str, Any], runs: Sequence[RunRecord], planned: int) -> SeedGroup:
    finished = tuple(run for run in runs if run.final is not None)
    settings = finished[0].config.settings if finished else settings
    return SeedGroup(optimizer, settings, finished, sum(run.diverged for run in runs), planned)


def of_archive(file: Path) -> StoredStudy:
    """A study of a file of its own: trials and runs by the name of who competes."""
    records, _ = read_archive(file)
    seeds: dict[str, list[RunRecord]] = {}
    search: dict[str, list[RunRecord]] = {}
    for record in records:
        config = record.config
        if config.role == "tune":
            search.setdefault(config.name, []).append(record)
        else:
            kind = json.dumps([config.name, config.steps, config.batch_size, config.settings], sort_keys=True)
            seeds.setdefault(kind, []).append(record)
    groups = [_group(own[0].config.name, own[0].config.settings, own, len(own)) for own in seeds.values()]
    elsewhere = not search and any(own[0].config.origin.trials for own in seeds.values())
    length = max(run.config.steps for own in seeds.values() for run in own)
    trial = max((run.config.steps for own in search.values() for run in own), default=length)
    return StoredStudy(
        name=file.stem,
        unit="steps",
        length=length,
        tune_length=trial if trial < length else None,
        planned_trials=max(map(len, search.values()), default=0),
        settings_of="another study" if elsewhere else "",
        starts_from="",
        search={optimizer: tuple(own) for optimizer, own in search.items()},
        chosen={optimizer: best_trial(own).config.settings for optimizer, own in search.items()},
        groups=tuple(groups),
    )
