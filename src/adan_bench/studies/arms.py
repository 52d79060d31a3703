"""Arms of a study: a search for an optimizer's settings, then runs with them on several seeds.

The search is the same for every arm: as many trials, on a seed that no reported run uses. First come learning rates,
then one more where the best is the last of its side, then alternatives to single settings at the best rate.
`Planner` tells which runs can be made by now; it is asked again whenever one has ended.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import pairwise, zip_longest
from pathlib import Path

from adan_bench.config import TUNING_SEED, Origin, Pause, RunConfig, RunRecord, as_json
from adan_bench.records.stats import MIN_SEEDS, best_trial, rank
from adan_bench.records.store import RunStore, read_run
from adan_bench.studies.halving import check_search, stop_trial, survivors
from adan_bench.task import Settings
from adan_bench.training.configure import changes, elsewhere, training_of
from adan_bench.training.jobs import Job
from adan_bench.training.optimizers import get_optimizer

STEP = 0.5  # decades from the last rate of a wide range to the next


@dataclass(frozen=True)
class Search:
    """How the settings of an arm are looked for.

    rates: of the first trials; trials: how many in all; start: the settings of the first, but for the rate.
    alternatives: tried at the best rate, in this order.
    fixed: settings of the user, which no trial changes.
    refine: a rate next to the best comes before the alternatives: beyond it where it is the last of its side, else
        between it and the better of its neighbors. Otherwise only a rate beyond comes before them, and rates between
        fill up what the alternatives leave.
    eta, rungs: successive halving, and the steps at which trials are judged.
    """

    rates: tuple[float, ...]
    trials: int
    start: Settings
    alternatives: tuple[Settings, ...] = ()
    fixed: Settings = field(default_factory=dict)
    refine: bool = False
    eta: int = 1
    rungs: tuple[int, ...] = ()

    def judged(self, record: RunRecord) -> RunRecord:
        """A trial that has ended, with what it is judged by as its result."""
        return record

    def chosen(self, tried: Sequence[RunRecord]) -> Settings:
        """The settings that the trials lead to."""
        return dict(best_trial(tried).config.settings)

    def following(self, tried: Sequence[RunRecord]) -> list[Settings]:
        """The trials that come after those that have ended; none: all are made."""
        if not tried:
            return [{**self.start, **self.fixed, "lr": lr} for lr in self.rates[: self.trials]]
        best, left = dict(best_trial(tried).config.settings), self.trials - len(tried)
        first = [{"lr": lr} for lr in self._next_rates(tried)]
        if self.refine and len(tried) == len(self.rates):
            variants, left = first, min(1, left)
        else:
            beyond = [] if self.refine else first
            rates = sorted({_lr(record) for record in tried})
            middles = [math.sqrt(a * b) for a, b in pairwise(rates)]
            nearest = sorted(middles, key=lambda lr: abs(math.log(lr / best["lr"])))
            between = [{"lr": rounded(lr)} for lr in nearest]
            variants = [*beyond, *self.alternatives, *between]
        texts, following = [as_json(record.config.settings) for record in tried], []
        for variant in variants:
            settings = {**best, **variant, **self.fixed}
            if as_json(settings) not in texts:
                texts.append(as_json(settings))
                following.append(settings)
        return following[:left]

    def _next_rates(self, tried: Sequence[RunRecord]) -> list[float]:
        """The rate beyond the best where that is the last of its side; with `refine` else one between."""
        runs = sorted(tried, key=_lr)
        rates, best = [_lr(run) for run in runs], _lr(best_trial(tried))
        if len(rates) == 1:
            return []
        if best in (rates[0], rates[-1]):
            ratio = (rates[-1] / rates[0]) ** (1 / (len(rates) - 1))
            step = ratio if self.refine else max(10**STEP, ratio)
            return [rounded(best * step if best == rates[-1] else best / step)]
        if not self.refine:
            return []
        at = rates.index(best)
        neighbor = min(at - 1, at + 1, key=lambda i: rank(runs[i]))
        return [rounded(math.sqrt(best * rates[neighbor]))]


def _lr(record: RunRecord) -> float:
    return float(record.config.settings["lr"])


def rounded(lr: float) -> float:
    """A learning rate with four digits, as records and tables show it."""
    return float(f"{lr:.4g}")


@dataclass(eq=False)
class Arm:
    """One optimizer of a study.

    base: the configuration of its runs, complete but for what is decided on the way: settings, seed, start weights.
    folder: where its runs lie; seeds: of the reported ones.
    search: for its settings; without one it has those of `base`. trial: the configuration of the trials.
    like: the arm whose settings it takes, changed by `change`, its rate multiplied by `lr_factor`.
    start: the arm whose final weights its runs start from, those of `start_seed`, else of the same seed.
    """

    base: RunConfig
    folder: Path
    seeds: Sequence[int] = ()
    search: Search | None = None
    trial: RunConfig | None = None
    like: Arm | None = None
    change: Settings = field(default_factory=dict)
    lr_factor: float = 1.0
    start: Arm | None = None
    start_seed: int | None = None
    tried: Sequence[RunRecord] | None = None  # the trials, once all have ended
    settled: bool = False  # whether `base` has the settings of the reported runs

    def settle(self) -> None:
        """Give `base` the settings that the search or the other arm has, if these are there by now."""
        if self.settled or (self.like and not self.like.settled) or (self.search and self.tried is None):
            return
        if self.like is not None:
            theirs = self.like.base
            lr = theirs.settings["lr"] if self.lr_factor == 1 else rounded(theirs.settings["lr"] * self.lr_factor)
            tuned_for = {**theirs.origin.tuned_for, **elsewhere(training_of(theirs), self.base)}
            changed = changes(get_optimizer(self.base.optimizer), theirs.settings, self.change)
            origin = replace(
                theirs.origin, tuned_for=tuned_for, lr_factor=self.lr_factor, changed=changed, source=theirs.study
            )
            self.base = replace(self.base, settings={**theirs.settings, "lr": lr, **self.change}, origin=origin)
        elif self.search is not None and self.tried and self.found:
            tuned_for = elsewhere(training_of(self.tried[0].config), self.base)
            search = self.search
            origin = Origin(kind="here", trials=search.trials, eta=search.eta, rungs=search.rungs, tuned_for=tuned_for)
            self.base = replace(self.base, settings=search.chosen(self.tried), origin=origin)
        self.settled = True

    @property
    def found(self) -> bool:
        """Whether a trial has a final value to choose settings by."""
        return any(record.final is not None for record in self.tried or ())


class Planner:
    """Tells the jobs of arms as far as what has ended decides them.

    groups: the arms of each study; earlier ones come first, but seeds beyond those without which nothing can be said
        come after all else.
    """

    def __init__(self, groups: Sequence[Sequence[Arm]], resume: bool = False) -> None:
        self.groups, self.resume = groups, resume
        self.records: dict[Path, RunRecord] = {}
        self.made: Set[Path] = frozenset()

    @property
    def expected(self) -> int:
        """How many jobs there will be in all; 0 where halving leaves that open."""
        arms = [arm for arms in self.groups for arm in arms]
        if any(arm.search.rungs for arm in arms if arm.search):
            return 0
        trials = sum(arm.search.trials if arm.tried is None else len(arm.tried) for arm in arms if arm.search)
        return trials + sum(len(arm.seeds) for arm in arms)

    def __call__(self, made: Set[Path]) -> list[Job]:
        self.made = made
        first: list[Job] = []
        later: list[Job] = []
        for arms in self.groups:
            trials = sorted((list(self._trials(arm)) for arm in arms), key=len)  # who has made the fewest comes first
            first += [job for turn in zip_longest(*trials) for job in turn if job is not None]
            for arm in arms:
                arm.settle()
            for seed in dict.fromkeys(seed for arm in arms for seed in arm.seeds):
                jobs = [self._run(arm, seed) for arm in arms if arm.settled and seed in arm.seeds]
                soon = seed < MIN_SEEDS or seed == TUNING_SEED
                (first if soon else later).extend(job for job in jobs if job is not None)
        return first + later

    def ended(self, path: Path) -> RunRecord | None:
        """The record of a run that needs no more work; one that failed before is tried again."""
        if path not in self.records and RunStore(path).ended:
            record = read_run(path)
            if record.status == "failed" and path not in self.made:
                return None
            self.records[path] = record
        return self.records.get(path)

    def _trials(self, arm: Arm) -> Iterator[Job]:
        """The trials that can be told, made or not."""
        if arm.search is None or arm.settled:
            return
        tried: list[RunRecord] = []
        while told := arm.search.following(tried):
            jobs = [self._trial(arm, number, settings) for number, settings in enumerate(told, len(tried))]
            if None in jobs:
                return
            stage = [job for job in jobs if job is not None]
            yield from self._stage(arm.search, stage, tried)
            records = [self.ended(job.path) for job in stage]
            if None in records:
                return
            tried += [arm.search.judged(record) for record in records if record is not None]
        arm.tried = tried

    def _stage(self, search: Search, jobs: list[Job], tried: Sequence[RunRecord]) -> Iterator[Job]:
        """Trials that are judged together: those that pass a rung go on from their checkpoints, the others stop."""
        left = jobs
        for rung in search.rungs:
            yield from (replace(job, pause=Pause(step=rung)) for job in left)
            if not all(self.ended(job.path) or RunStore(job.path).resume_step >= rung for job in left):
                return
            there = [*tried, *(read_run(job.path) for job in jobs if RunStore(job.path).exists)]
            passed = [record.path for record in survivors(search.eta, there, rung)]
            for record in there:
                if record.result is None and record.path not in passed:
                    stop_trial(record, rung, search.eta)
            left = [replace(job, resume=True) for job in left if job.path in passed]
        yield from left

    def _trial(self, arm: Arm, number: int, settings: Settings) -> Job | None:
        assert arm.search is not None
        base, path = arm.trial or arm.base, arm.folder / f"tune-{number:02d}"
        config = replace(base, settings=settings, seed=TUNING_SEED, role="tune", origin=Origin(kind="trial"))
        check_search(path, arm.search.eta, arm.search.rungs)
        return self._started(arm, Job(config, path, self.resume))

    def _run(self, arm: Arm, seed: int) -> Job | None:
        return self._started(arm, Job(replace(arm.base, seed=seed), arm.folder / f"seed-{seed}", self.resume))

    def _started(self, arm: Arm, job: Job) -> Job | None:
        """With the weights it starts from; None until these are there."""
        if arm.start is None:
            return job
        seeds, seed = arm.start.seeds, job.config.seed
        wanted = arm.start_seed if arm.start_seed is not None else seed if seed in seeds else seeds[0]
        path = arm.start.folder / f"seed-{wanted}"
        record = self.ended(path)
        if record is None or record.status != "finished":
            return None
        return replace(job, config=replace(job.config, init=path))
