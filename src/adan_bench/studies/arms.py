"""Arms of a study: a search for an optimizer's settings, then runs with them on several seeds.

The search is the same for every arm: as many trials, on seeds that no reported run uses. First come learning rates,
then one more where the best is the last of its side, then alternatives to single settings at the best rate; or, by
`studies.ranges`, points of several ranges at once.
`Planner` tells which runs can be made by now; it is asked again whenever one has ended.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

from adan_bench.config import TUNING_SEED, Origin, RunConfig, RunRecord, as_json
from adan_bench.records.stats import MIN_SEEDS, best_trial, rank
from adan_bench.records.store import RunStore, check_empty, read_run
from adan_bench.task import Settings
from adan_bench.training.cluster import open_pool
from adan_bench.training.configure import changes, elsewhere, training_of
from adan_bench.training.jobs import Job, OnEvent
from adan_bench.training.optimizers import get_optimizer

STEP = 0.5  # decades from the last rate of a wide range to the next
FOLDER = "tune-{:02d}".format  # of a trial


@dataclass(frozen=True)
class Search:
    """How the settings of an arm are looked for.

    rates: of the first trials; trials: how many in all; start: the settings of the first, but for the rate.
    alternatives: tried at the best rate, in this order.
    fixed: settings of the user, which no trial changes.
    refine: a rate next to the best comes before the alternatives: beyond it where it is the last of its side, else
        between it and the better of its neighbors. Otherwise only a rate beyond comes before them, and rates between
        fill up what the alternatives leave.
    options: of the run, which trials vary beside the settings. growths: the sides on which the rates' range has grown.
    """

    together: ClassVar[bool] = False  # whether what one arm finds may mean more trials for all arms of its study

    rates: tuple[float, ...]
    trials: int
    start: Settings
    alternatives: tuple[Settings, ...] = ()
    fixed: Settings = field(default_factory=dict)
    refine: bool = False
    options: tuple[str, ...] = ()
    growths: tuple[str, ...] = ()

    @property
    def expected(self) -> int:
        """How many runs its trials will be, as far as that can be told before."""
        return self.trials

    def chosen(self, tried: Sequence[RunRecord]) -> Settings:
        """The settings that the trials lead to."""
        return dict(best_trial(tried).config.settings)

    def extremes(self) -> Iterator[tuple[str, Settings]]:
        """What of a trial has to be valid beside its start: the key in the study's file, and the fields it gives."""
        for alternative in self.alternatives:
            yield "alternatives", {"settings": {**self.start, **alternative}}

    def mark(self) -> Origin:
        """What the record of a trial says of it."""
        return Origin(kind="trial", searched=self.options)

    def origin(self, tried: Sequence[RunRecord]) -> Origin:
        """How the settings came about that the trials lead to."""
        return Origin(kind="here", trials=self.trials)

    def edges(self, tried: Sequence[RunRecord]) -> list[str]:
        """The ends of the range of rates, "low" and "high", beyond which all arms of the study are to go."""
        return []

    def told(self, tried: Sequence[RunRecord]) -> dict[str, Settings]:
        """The trials after those that have ended: by folder, the fields of a configuration that are theirs."""
        after = enumerate(self.following(tried), len(tried))
        return {FOLDER(number): {"settings": settings, "seed": TUNING_SEED} for number, settings in after}

    def following(self, tried: Sequence[RunRecord]) -> list[Settings]:
        """The settings of the trials that come after those that have ended."""
        if not tried:
            return [{**self.start, **self.fixed, "lr": lr} for lr in self.rates[: self.trials]]
        best, left = dict(best_trial(tried).config.settings), self.trials - len(tried)
        first = [{"lr": lr} for lr in self._next_rates(tried)]
        if self.refine and len(tried) == len(self.rates):
            variants, left = first, min(1, left)
        else:
            beyond = [] if self.refine else first
            rates = sorted({record.lr for record in tried})
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
        runs = sorted(tried, key=lambda run: run.lr)
        rates, best = [run.lr for run in runs], best_trial(tried).lr
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


def rounded(lr: float) -> float:
    """A learning rate with four digits, as records and tables show it."""
    return float(f"{lr:.4g}")


@dataclass(eq=False)
class Arm:
    """One optimizer of a study.

    base: the configuration of its runs, complete but for what is decided on the way: settings, seed, start weights.
    folder: where its runs lie; seeds: of the reported ones.
    search: for its settings; without one it has those of `base`. trial: the configuration of the trials.
    like: the arm whose settings it takes, changed by `change`, its rate multiplied by `lr_factor`; own_options: those
        of the run that are its own where that arm's search has chosen some.
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
    own_options: Set[str] = frozenset()
    start: Arm | None = None
    start_seed: int | None = None
    tried: Sequence[RunRecord] | None = None  # the trials, once all have ended
    settled: bool = False  # whether `base` has the settings of the reported runs
    tuned: RunConfig | None = None  # the run for whose training they were chosen

    def path(self, seed: int) -> Path:
        return self.folder / f"seed-{seed}"

    def start_path(self, seed: int) -> Path | None:
        """The run whose final weights one of this seed starts from."""
        if self.start is None:
            return None
        seeds = self.start.seeds
        return self.start.path(self.start_seed if self.start_seed is not None else seed if seed in seeds else seeds[0])

    def settle(self) -> None:
        """Give `base` the settings that the search or the other arm has, if these are there by now."""
        if self.settled or (self.like and not self.like.settled) or (self.search and self.tried is None):
            return
        if self.like is not None:
            theirs, tuned = self.like.base, self.like.tuned or self.like.base
            lr = theirs.settings["lr"] if self.lr_factor == 1 else rounded(theirs.settings["lr"] * self.lr_factor)
            searched = tuple(name for name in theirs.origin.searched if name not in self.own_options)
            changed = changes(get_optimizer(self.base.optimizer), theirs.settings, self.change)
            origin = replace(
                theirs.origin,
                lr_factor=theirs.origin.lr_factor * self.lr_factor,
                changed={**theirs.origin.changed, **changed},
                source=tuned.study,
                searched=searched,
            )
            self._take(tuned, {**theirs.settings, "lr": lr, **self.change}, origin)
        elif self.search is not None and self.tried and self.found:
            origin = self.search.origin(self.tried)
            tuned = replace(best_trial(self.tried).config, init=self.base.init)  # runs start as their trials do
            self._take(tuned, self.search.chosen(self.tried), origin)
        self.settled = True

    def _take(self, tuned: RunConfig, settings: Settings, origin: Origin) -> None:
        """Give `base` settings, and of the run for which they were tuned the options that were searched with them."""
        options = {name: getattr(tuned, name) for name in origin.searched}
        base = replace(self.base, settings=settings, **options)
        self.base = replace(base, origin=replace(origin, tuned_for=elsewhere(training_of(tuned), base)))
        self.tuned = tuned

    @property
    def found(self) -> bool:
        """Whether a trial has a final value to choose settings by."""
        return any(record.final is not None for record in self.tried or ())


class Planner:
    """Tells the jobs of arms as far as what has ended decides them.

    groups: the arms of each study; earlier ones come first, but seeds beyond those without which nothing can be said
        come after all else. Trials come arm by arm, so that the slowest of a study can come first.
    """

    def __init__(self, groups: Sequence[Sequence[Arm]], resume: bool = False) -> None:
        self.groups, self.resume = groups, resume
        self.records: dict[Path, RunRecord] = {}
        self.made: Set[Path] = frozenset()

    @property
    def expected(self) -> int:
        """How many jobs there will be in all."""
        arms = [arm for arms in self.groups for arm in arms]
        trials = sum(arm.search.expected if arm.tried is None else len(arm.tried) for arm in arms if arm.search)
        return trials + sum(len(arm.seeds) for arm in arms)

    def __call__(self, made: Set[Path]) -> list[Job]:
        self.made = made
        first: list[Job] = []
        later: list[Job] = []
        for arms in self.groups:
            trials = [list(self._trials(arm)) for arm in arms]
            while self._grow(arms):
                trials = [list(self._trials(arm)) for arm in arms]
            first += [job for own in trials for job in own]
            searching = any(arm.search is not None and arm.tried is None for arm in arms)
            for arm in arms:
                if not (searching and arm.search is not None and arm.search.together):
                    arm.settle()
            for turn, seed in enumerate(dict.fromkeys(seed for arm in arms for seed in arm.seeds)):
                jobs = [self._run(arm, seed) for arm in arms if arm.settled and seed in arm.seeds]
                (first if turn < MIN_SEEDS else later).extend(job for job in jobs if job is not None)
        return first + later

    def _grow(self, arms: Sequence[Arm]) -> bool:
        """Widen the ranges of all arms once their trials have ended, where one has chosen a rate near an end."""
        searches = [(arm, arm.search) for arm in arms if arm.search is not None and not arm.settled]
        if any(arm.tried is None for arm, _ in searches):
            return False
        sides = sorted(side for arm, search in searches for side in search.edges(arm.tried or ()))
        for arm, search in searches if sides else ():
            arm.search, arm.tried = replace(search, growths=(*search.growths, sides[0])), None
        return bool(sides)

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
        while told := arm.search.told(tried):
            jobs = [self._trial(arm, arm.search, *trial) for trial in told.items()]
            if None in jobs:
                return
            stage = [job for job in jobs if job is not None]
            yield from stage
            records = [self.ended(job.path) for job in stage]
            if None in records:
                return
            tried += [record for record in records if record is not None]
        arm.tried = tried

    def _trial(self, arm: Arm, search: Search, name: str, fields: Settings) -> Job | None:
        base, path = arm.trial or arm.base, arm.folder / name
        config = replace(base, **fields, role="tune", origin=search.mark())
        return self._started(arm, Job(config, path, self.resume))

    def _run(self, arm: Arm, seed: int) -> Job | None:
        return self._started(arm, Job(replace(arm.base, seed=seed), arm.path(seed), self.resume))

    def _started(self, arm: Arm, job: Job) -> Job | None:
        """With the weights it starts from; None until these are there."""
        path = arm.start_path(job.config.seed)
        if path is None:
            return job
        record = self.ended(path)
        if record is None or record.status != "finished":
            return None
        return replace(job, config=replace(job.config, init=path))


def make(
    groups: Sequence[Sequence[Arm]],
    chosen: RunConfig,
    out: Path,
    resume: bool = False,
    deadline: float | None = None,
    on_event: OnEvent | None = None,
) -> None:
    """Make the runs of all arms, as their searches and seeds say, below a folder.

    chosen: of the pool, its kind, its devices and how many runs it makes at a time. deadline: the Unix time to stop at.
    """
    check_empty(out, resume)
    with closing(open_pool(out, chosen, deadline)) as pool:
        pool.run(Planner(groups, resume), on_event)
