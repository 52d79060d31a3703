"""A study: what is compared, how long, and by which rule settings are chosen.

Tuning gives every optimizer of a study the same number of trials, on a seed of its own, judged by the validation split:
four learning rates (½, 1, 2 and 4 times the center), one more (beyond the best if that stands at an end, else between
the best and its better neighbor), then the optimizer's two alternatives at the best rate. What is reported is trained
from other seeds on all training data and judged by the test split.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from evidence.jobs import Job, Record, score

TUNING_SEED = 1_000
FACTORS = (0.5, 1.0, 2.0, 4.0)
Records = Mapping[str, Record]
Settings = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """An optimizer, where its search starts, and the two alternatives that are tried at the best learning rate."""

    optimizer: str
    lr: float
    settings: Mapping[str, Any]
    alternatives: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Start:
    """Weights that another study pre-trained, for fine-tuning.

    optimizer: whose run all optimizers start from, that of the first seed. Unless given, each starts from its own runs:
    a seed from the same seed of pre-training, trials from the first.
    """

    study: Study
    optimizer: str | None = None

    def key(self, optimizer: str, seed: int, records: Records) -> str | None:
        """The run whose weights are the start; None until it is made."""
        study, name = self.study, self.optimizer or optimizer
        same = self.optimizer is None and seed in study.seeds
        settings = study.best(name, records) if study.tuned(records) else None
        if settings is None:
            return None
        job = study.job(name, settings, seed if same else study.seeds[0])
        return job.key if records.get(job.key, {}).get("status") == "finished" else None


@dataclass(frozen=True)
class Study:
    """Optimizers tuned alike, then several seeds at each one's best settings.

    tune_length: where it is not `length`: tuning runs are shorter, and the record says so.
    trials: of each optimizer: 4 (rates), 5 (one rate more) or 7 (the alternatives too); 0 where the entries' settings
        are published ones, which are taken as they are.
    start: the weights that are fine-tuned; trials wait until those of every optimizer are there.
    """

    name: str
    problem: str
    options: Mapping[str, Any]
    length: int
    unit: str
    entries: tuple[Entry, ...]
    seeds: Sequence[int] = (0, 1, 2)
    tune_length: int | None = None
    trials: int = 7
    evaluations: int = 25
    lane: str = "gpu"
    start: Start | None = None

    def job(self, optimizer: str, settings: Settings, seed: int, **changes: Any) -> Job:
        tuning = seed == TUNING_SEED
        values: dict[str, Any] = {
            "study": self.name,
            "problem": self.problem,
            "options": dict(self.options),
            "length": (self.tune_length or self.length) if tuning else self.length,
            "unit": self.unit,
            "evaluations": self.evaluations,
            "lane": self.lane,
        }
        options = {**values["options"], **changes.pop("options", {})}
        values |= {**changes, "options": options}
        return Job(optimizer=optimizer, settings=settings, seed=seed, tuning=tuning, **values)

    def jobs(self, records: Records) -> Iterator[Job]:
        """What is still to do and can be said already: trials, then seeds of those optimizers that have none left.

        Optimizers take turns, so that a deadline leaves all of them with as many runs; in trials, the one that has
        made the fewest comes first.
        """
        if not self.ready(records):
            return
        trials = [self.search(entry, records)[0] for entry in self.entries]
        for turn in zip_longest(*sorted(trials, key=len, reverse=True)):
            yield from (job for job in turn if job is not None)
        yield from (job for job in self.reported(records) if job.key not in records)

    def reported(self, records: Records) -> Iterator[Job]:
        """All runs of the seeds, made or not; none of an optimizer that still has trials left."""
        chosen = {entry.optimizer: self.search(entry, records)[1] for entry in self.entries}
        for seed in self.seeds:
            for optimizer, settings in chosen.items():
                begun = self.begun(optimizer, seed, records)
                if settings is not None and begun is not None:
                    yield self.job(optimizer, settings, seed, options=begun)

    def tuned(self, records: Records) -> bool:
        """Whether no optimizer has a trial left."""
        return self.ready(records) and not any(self.search(entry, records)[0] for entry in self.entries)

    def ready(self, records: Records) -> bool:
        """Whether the weights with which trials start are there."""
        return all(self.begun(entry.optimizer, TUNING_SEED, records) is not None for entry in self.entries)

    def begun(self, optimizer: str, seed: int, records: Records) -> Mapping[str, str] | None:
        """The option that names the weights to start from, if any; None where they are not there yet."""
        if self.start is None:
            return {}
        key = self.start.key(optimizer, seed, records)
        return None if key is None else {"start": key}

    def search(self, entry: Entry, records: Records) -> tuple[list[Job], Settings | None]:
        """The trials to make now, and the best settings once all are made."""
        if self.trials == 0:
            return [], {"lr": entry.lr, **entry.settings}
        asked = self.asked(entry, records)
        if missing := [job for job in asked if job.key not in records]:
            return missing, None
        return [], _best(asked, records) if asked else None

    def asked(self, entry: Entry, records: Records) -> list[Job]:
        """The trials that can be said already, made or not; none before the weights are there with which they start."""
        begun = self.begun(entry.optimizer, TUNING_SEED, records)
        if begun is None:
            return []

        def trial(lr: float, changes: Mapping[str, Any] | None = None) -> Job:
            settings = {"lr": lr, **entry.settings, **(changes or {})}
            return self.job(entry.optimizer, settings, TUNING_SEED, options=begun)

        def complete(trials: list[Job]) -> bool:
            return all(job.key in records for job in trials)

        trials = [trial(_rounded(entry.lr * factor)) for factor in FACTORS]
        if self.trials > 4 and complete(trials):
            trials.append(trial(next_rate([(job.settings["lr"], score(records[job.key])) for job in trials])))
            if self.trials > 5 and complete(trials):
                best = max(trials, key=lambda job: score(records[job.key]))
                trials += [trial(best.settings["lr"], changes) for changes in entry.alternatives]
        return trials

    def best(self, optimizer: str, records: Records) -> Settings | None:
        return self.search(self.entry(optimizer), records)[1]

    def entry(self, optimizer: str) -> Entry:
        (found,) = (entry for entry in self.entries if entry.optimizer == optimizer)
        return found


def _best(trials: list[Job], records: Records) -> Settings | None:
    """The settings of the best trial; None where all diverged."""
    best = max(trials, key=lambda job: score(records[job.key]))
    return None if score(records[best.key]) == -math.inf else dict(best.settings)


def next_rate(trials: list[tuple[float, float]]) -> float:
    """The learning rate to try next, from (rate, score) of those tried.

    >>> next_rate([(1.0, 0.1), (2.0, 0.2), (4.0, 0.3)])
    8.0
    >>> next_rate([(1.0, 0.1), (4.0, 0.3), (16.0, 0.2)])
    8.0
    """
    trials = sorted(trials)
    i = max(range(len(trials)), key=lambda k: trials[k][1])
    rates = [rate for rate, _ in trials]
    if i == 0:
        return _rounded(rates[0] ** 2 / rates[1])
    if i == len(trials) - 1:
        return _rounded(rates[-1] ** 2 / rates[-2])
    neighbor = i - 1 if trials[i - 1][1] > trials[i + 1][1] else i + 1
    return _rounded(math.sqrt(rates[i] * rates[neighbor]))


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


@dataclass(frozen=True)
class Variant:
    """A change to the settings that another study found: new values, another rate, another problem or length."""

    optimizer: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    lr_factor: float = 1.0
    changes: Mapping[str, Any] = field(default_factory=dict)  # of the Job: options, length, evaluations


@dataclass(frozen=True)
class Follow:
    """Runs with the settings that another study found. They wait until all its optimizers are tuned.

    start: other weights than those with which that study starts.
    """

    name: str
    of: Study
    variants: tuple[Variant, ...]
    seeds: Sequence[int] = (0, 1, 2)
    start: Start | None = None

    def jobs(self, records: Records) -> Iterator[Job]:
        return (job for job in self.reported(records) if job.key not in records)

    def reported(self, records: Records) -> Iterator[Job]:
        """All runs, made or not; none before the other study is tuned."""
        if not self.of.tuned(records):
            return
        chosen = {name: self.of.best(name, records) for name in {v.optimizer for v in self.variants}}
        begins = replace(self.of, start=self.start or self.of.start)
        for seed in self.seeds:
            for variant in self.variants:
                best, begun = chosen[variant.optimizer], begins.begun(variant.optimizer, seed, records)
                if best is not None and begun is not None:
                    settings = {**best, **variant.settings, "lr": _rounded(best["lr"] * variant.lr_factor)}
                    if "lr" in variant.settings:
                        settings["lr"] = variant.settings["lr"]
                    changes = {**variant.changes, "options": {**begun, **variant.changes.get("options", {})}}
                    yield self.of.job(variant.optimizer, settings, seed, study=self.name, **changes)
