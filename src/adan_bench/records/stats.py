"""Records to numbers: means and intervals over seeds, steps to a target, learning rate ranges, performance profiles.

Seeds are pairs: seed 0 of one optimizer starts from the same weights and sees the same batches as seed 0 of another, so
differences are taken seed by seed (`by_pairs`). With fewer than three seeds nothing is called significant.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from adan_bench.config import SHARING, Origin, RunConfig, RunRecord, in_words

MIN_SEEDS = 3
LEVEL = 0.95
WIDTH_TOLERANCE = 0.02  # the learning rates whose result is within 2% of the best
#: What a metric of this name usually can be, which its interval then does not leave; a reward is unbounded.
RANGES = {
    **dict.fromkeys(("accuracy", "ROC-AUC", "box AP", "mask AP"), (0.0, 1.0)),
    **dict.fromkeys(("matthews", "pearson"), (-1.0, 1.0)),
    "loss": (0.0, math.inf),
    "perplexity": (1.0, math.inf),
}
ANYTHING = (-math.inf, math.inf)
#: In what runs that are compared may differ. log_every and keep_weights leave the reported numbers as they are.
FREE = ("optimizer", "settings", "seed", "role", "log_every", "keep_weights")


@dataclass(frozen=True)
class Interval:
    """A mean with its two-sided t interval; low and high are None where there are too few values for one."""

    n: int
    mean: float
    low: float | None
    high: float | None

    @classmethod
    def around(cls, mean: float, error: float, freedom: float, n: int, comparisons: int = 1) -> Interval:
        """The t interval of a mean with a standard error; n: seeds, of which fewer than three make none."""
        half = quantile(freedom, comparisons=comparisons) * error if n >= MIN_SEEDS else None
        return cls(n, mean, None, None) if half is None else cls(n, mean, mean - half, mean + half)

    @property
    def half(self) -> float | None:
        """Half the width; None where there is no interval, or where the metric's range cuts it off."""
        if self.low is None or self.high is None:
            return None
        above, below = self.high - self.mean, self.mean - self.low
        return above if math.isclose(above, below, rel_tol=1e-6, abs_tol=1e-12 * abs(self.mean)) else None

    def within(self, low: float, high: float) -> Interval:
        """The interval without what lies beyond a range: accuracies differ by at most 1."""
        if self.low is None or self.high is None:
            return self
        return Interval(self.n, self.mean, max(low, self.low), min(high, self.high))


@dataclass(frozen=True)
class Sensitivity:
    """The learning rates that were tried with the same other settings, and what came out."""

    points: tuple[tuple[float, float | None], ...]  # (lr, metric); None: diverged
    best_lr: float
    low: float  # the connected range of tried rates within 2% of the best
    high: float
    at_edge: bool  # the rate of the best trial is the lowest or highest, and none between does as well


@dataclass(frozen=True)
class OptimizerSummary:
    """One optimizer on one workload."""

    name: str
    records: tuple[RunRecord, ...]
    final: Interval | None  # None: no run finished
    steps_to_target: float | None  # median over seeds; None: half of the seeds or more did not get there
    seconds_to_target: float | None
    reached: int
    diverged: int
    failed: int
    seconds_per_step: float | None
    engines: tuple[str, ...]  # how its steps were made: fused, foreach, …; "eager" where a GPU's were not captured
    state_bytes_per_parameter: float | None  # None: records from before it was measured
    sensitivity: Sensitivity | None
    trials: int
    repeats: tuple[tuple[Path, ...], ...] = ()  # runs with the same settings and seed; the last of them counts

    @property
    def n(self) -> int:
        return len(self.records)

    @property
    def whole(self) -> bool:
        """Whether no seed diverged: only then is the mean that of all seeds, and not of those that went well."""
        return not any(r.diverged for r in self.records)

    @property
    def settings(self) -> Mapping[str, Any]:
        """What was tuned: options of the run may be among it."""
        return self.records[0].config.tuned

    @property
    def origin(self) -> Origin:
        return self.records[0].config.origin

    @property
    def constant_over_seeds(self) -> bool:
        """Whether all seeds gave the same numbers, so that there is one run and not several."""
        first = self.records[0]
        same = all((r.final, r.training_loss) == (first.final, first.training_loss) for r in self.records)
        return self.n > 1 and same and first.training_loss is not None

    def by_seed(self) -> dict[int, float]:
        return {r.config.seed: r.final for r in self.records if r.final is not None}


@dataclass(frozen=True)
class WorkloadSummary:
    """All optimizers on one workload, best mean first; then those with diverged seeds, then those with no result."""

    name: str
    facts: Mapping[str, Any]
    optimizers: tuple[OptimizerSummary, ...]
    config: RunConfig  # of one of its runs
    one_clock: bool = True  # otherwise the optimizers' seconds do not compare, and none are given

    @property
    def higher_is_better(self) -> bool:
        return bool(self.facts["higher_is_better"])

    @property
    def metric_head(self) -> str:
        """The metric's name and the direction in which it is better."""
        return f"{self.facts['metric']} {'↑' if self.higher_is_better else '↓'}"

    @property
    def schedule(self) -> str:
        """The schedule of most optimizers, and those of the others: Schedule-Free's is constant."""
        schedules = {o.name: o.records[0].config.schedule for o in self.optimizers}
        usual = statistics.mode(schedules.values())
        others = [f"{name}: {own}" for name, own in sorted(schedules.items()) if own != usual]
        return f"{usual} ({', '.join(others)})" if others else usual


def quantile(freedom: float, level: float = LEVEL, comparisons: int = 1) -> float:
    """Half the width of a two-sided t interval in standard errors; of several comparisons the level is Bonferroni's."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 1 - (1 - level) / (2 * comparisons)))


def interval(values: Sequence[float], comparisons: int = 1) -> Interval:
    """Mean and t interval.

    comparisons: how many could have been made; the level is Bonferroni's, so that all hold together with 95%. Where the
        results decide which optimizer the others are compared with, these are all pairs.

    >>> interval([1.0, 2.0, 3.0])  # doctest: +ELLIPSIS
    Interval(n=3, mean=2.0, low=-0.48..., high=4.48...)
    >>> interval([1.0, 2.0]).low is None
    True
    """
    n = len(values)
    error = statistics.stdev(values) / math.sqrt(n) if n > 1 else math.nan
    return Interval.around(statistics.fmean(values), error, n - 1, n, comparisons)


def mean_curve(
    curves: Sequence[Sequence[tuple[int, float]]], level: float
) -> tuple[list[int], list[float], list[float]]:
    """Steps, means over the curves, and half the width of the mean's t interval, which is 0 where there is one curve.

    Over the steps that all curves have: one that was resumed with another number of ranks may lack some.

    >>> mean_curve([[(1, 0.0), (2, 1.0), (3, 4.0)], [(1, 2.0), (3, 4.0), (4, 5.0)]], level=0.5)
    ([1, 3], [1.0, 4.0], [1.0, 0.0])
    """
    n, by_step = len(curves), [dict(curve) for curve in curves]
    steps = [step for step in by_step[0] if all(step in curve for curve in by_step)]
    values = [[curve[step] for curve in by_step] for step in steps]
    halves = [0.0] * len(steps)
    if n > 1:
        scale = quantile(n - 1, level) / math.sqrt(n)
        halves = [round(scale * statistics.stdev(at), 12) for at in values]
    return steps, [statistics.fmean(at) for at in values], halves


def by_pairs(a: Mapping[int, float], b: Mapping[int, float], comparisons: int = 1) -> Interval:
    """The mean of a − b, results by seed, over the seeds that both have, with the interval of that difference."""
    gaps = [a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())]
    return interval(gaps, comparisons) if gaps else Interval(0, math.nan, None, None)


@dataclass(frozen=True)
class Verdict:
    """One optimizer minus another: the interval of the difference, and what it says of the first.

    diverged: how many seeds of each did. Whoever has such seeds is not called better, whatever the interval.
    """

    difference: Interval
    higher_is_better: bool
    diverged: tuple[int, int] = (0, 0)

    @property
    def word(self) -> str:
        """The finding: better, worse, not significant, constant (the same for every seed), or too few seeds."""
        low, high = self.difference.low, self.difference.high
        if low is None or high is None:
            return "too few seeds"
        better = (low > 0) == self.higher_is_better
        if low <= 0 <= high or self.diverged[0 if better else 1]:
            return "not significant"
        if math.isclose(low, high, rel_tol=1e-9):
            return "constant"
        return "better" if better else "worse"


def to_target(record: RunRecord) -> tuple[int, float] | None:
    """(steps, seconds) at the first evaluation that meets the workload's target; None also where the run diverged."""
    target, higher = record.workload["target"], record.workload["higher_is_better"]
    if record.diverged or target is None:
        return None
    curve = record.curve("eval", record.workload["metric"])
    return next(((at, s) for at, s, value in curve if (value >= target if higher else value <= target)), None)


def sensitivity(trials: Iterable[RunRecord]) -> Sensitivity | None:
    """How the result depends on the learning rate, over the trials that differ in nothing else; None: there are none.

    Of rates that do equally well the best is that of `best_trial`, as `tune` chooses.
    """
    trials = list(trials)
    seed = min((r.config.seed for r in trials), default=0)  # the others only confirm
    firsts = [r for r in trials if r.config.seed == seed]
    groups = grouped(firsts, lambda r: {key: value for key, value in r.config.tuned.items() if key != "lr"})
    largest: list[RunRecord] = max(groups, key=lambda group: len(group), default=[])
    runs = sorted(largest, key=lambda r: r.lr)
    finals = [r.final for r in runs]
    if len(runs) < 2 or all(value is None for value in finals):
        return None
    scores = [rank(r) for r in runs]
    rates = [r.lr for r in runs]
    chosen = best_trial(trials).lr
    ties = [i for i, score in enumerate(scores) if score == min(scores)]
    best = next((i for i in ties if rates[i] == chosen), ties[0])
    near = [score <= scores[best] + WIDTH_TOLERANCE * abs(scores[best]) for score in scores]
    low = high = best
    while low > 0 and near[low - 1]:
        low -= 1
    while high < len(runs) - 1 and near[high + 1]:
        high += 1
    at_edge = rates[best] == chosen and all(i in (0, len(runs) - 1) for i in ties)
    return Sensitivity(tuple(zip(rates, finals, strict=True)), rates[best], rates[low], rates[high], at_edge)


def summarize(records: Sequence[RunRecord]) -> list[WorkloadSummary]:
    """One summary for each set of runs that may be compared: they differ in optimizer, settings and seed only."""
    groups = grouped(_in_one_place(records), lambda r: _setup(r.config))
    return [_summarize(*pair) for pair in _labeled([g for g in groups if any(r.config.role == "run" for r in g)])]


def summarize_trials(records: Sequence[RunRecord]) -> list[WorkloadSummary]:
    """`summarize` for tuning trials alone: every optimizer with its best trial in place of runs."""
    summaries, tried = [], [r for r in _in_one_place(records) if r.config.role == "tune"]
    for label, group in _labeled(grouped(tried, lambda r: _setup(r.config))):
        trials = [_once(own) for own in grouped(group, lambda r: (r.config.name, r.config.study))]
        titles = _titles([own[0].config for own in trials])
        bests = [_optimizer(title, best_trials(own), own) for title, own in zip(titles, trials, strict=True)]
        lost = [sum(r.diverged for r in own) for own in trials]
        summaries.append(_workload(label, [replace(best, diverged=n) for best, n in zip(bests, lost, strict=True)]))
    return summaries


def grouped(records: Iterable[RunRecord], key: Callable[[RunRecord], Any]) -> list[list[RunRecord]]:
    """The records by a key of any JSON, in the order in which the keys come first."""
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        groups.setdefault(_text(key(record)), []).append(record)
    return list(groups.values())


def rank(record: RunRecord) -> float:
    """The lower the better; a run that diverged or failed comes last."""
    if record.final is None:
        return math.inf
    return -record.final if record.higher_is_better else record.final


def best_trial(trials: Sequence[RunRecord]) -> RunRecord:
    """The best one; of several that are equally good, the one in the middle of their learning rates."""
    return best_trials(trials)[0]


def best_trials(trials: Sequence[RunRecord]) -> list[RunRecord]:
    """The best settings on every seed that they were tried on, by the mean over these.

    Only those that were tried on the most seeds are compared; a seed without a result counts before the mean.
    """
    points = grouped(trials, lambda r: r.config.tuned)
    most = max(map(len, points))

    def score(own: Sequence[RunRecord]) -> tuple[int, float]:
        ranks = [rank(r) for r in own if r.final is not None]
        return len(own) - len(ranks), statistics.fmean(ranks) if ranks else math.inf

    scores = [(score(own), own) for own in points if len(own) == most]
    lowest = min(found for found, _ in scores)
    best = [own for found, own in scores if found == lowest]
    logs = [math.log(own[0].lr) for own in best]
    middle = (min(logs) + max(logs)) / 2
    return best[min(range(len(best)), key=lambda i: round(abs(logs[i] - middle), 6))]


def _in_one_place(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Each with the data folder of its study's first: a study may have been continued where its data lie elsewhere.

    An archive has the last part of a folder alone, which stands for the first whole one that ends in it.
    """
    records, folders = list(records), dict[str, Path | None]()
    whole: dict[str, Path] = {}
    for data in (record.config.data for record in records):
        if data is not None and data.is_absolute():
            whole.setdefault(data.name, data)

    def moved(config: RunConfig) -> RunConfig:
        data = config.data and whole.get(str(config.data), config.data)
        return replace(config, data=folders.setdefault(config.study, data) if config.study else data)

    return [replace(record, config=moved(record.config)) for record in records]


def _setup(config: RunConfig) -> dict[str, Any]:
    """What runs have to share to be compared, without what has its default."""
    identity = {**config.identity(), "data": None if config.data is None else str(config.data)}
    free = (*FREE, *config.origin.searched, *(["schedule"] if config.own_schedule else []))
    return {name: value for name, value in identity.items() if name not in free}


def _labeled(groups: Sequence[list[RunRecord]]) -> list[tuple[str, list[RunRecord]]]:
    """Each group with its workload's name and, where the workload has several groups, in what they differ."""
    configs = [group[0].config for group in groups]
    labels = [_label(config, [other for other in configs if other.workload == config.workload]) for config in configs]
    return list(zip(labels, groups, strict=True))


def _label(config: RunConfig, same: Sequence[RunConfig]) -> str:
    """A name for a configuration that tells it from the others of its workload."""
    setups = [_setup(other) for other in same]
    differing = [f.name for f in fields(config) if len({_text(setup.get(f.name)) for setup in setups}) > 1]

    def label(of: RunConfig, names: Sequence[str]) -> str:
        return ", ".join([of.workload, *(in_words(name, getattr(of, name)) for name in names)])

    short = [name for name in differing if name not in ("eval_every", "init_sha256")]  # which others usually explain
    return label(config, short if len({label(other, short) for other in same}) == len(same) else differing)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _summarize(label: str, records: Sequence[RunRecord]) -> WorkloadSummary:
    # An optimizer with two sets of settings is two competitors.
    groups = grouped([r for r in records if r.config.role == "run"], lambda r: (r.config.name, r.config.tuned))
    summaries = []
    for title, group in zip(_titles([group[0].config for group in groups]), groups, strict=True):
        own = group[0].config
        tuned = [r for r in records if r.config.role == "tune" and r.config.name == own.name]
        trials = _once([r for r in tuned if r.config.study in (own.study, own.origin.source)])  # not of another search
        repeats = tuple(tuple(r.path for r in same) for same in _alike(group) if len(same) > 1)
        summaries.append(replace(_optimizer(title, _once(group), trials), repeats=repeats))
    return _workload(label, summaries)


def _titles(configs: Sequence[RunConfig]) -> list[str]:
    """The name of each; of several that share it, also the study or, where that does not tell them apart, what does."""

    def title(own: RunConfig) -> str:
        same = [other for other in configs if other.name == own.name]
        if len(same) == 1:
            return own.name
        if len({other.study for other in same}) == len(same):
            return f"{own.name} ({own.study})" if own.study else own.name
        tuned = own.tuned.items()
        return f"{own.name} {_text({k: v for k, v in tuned if any(_text(v) != _text(o.tuned.get(k)) for o in same)})}"

    return [title(config) for config in configs]


def _alike(records: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """The runs of an optimizer by settings and seed, the one that counts last."""

    def age(record: RunRecord) -> tuple[bool, str]:  # those that did not end, then the others, each by their start
        return record.status not in ("failed", "unfinished"), str(record.environment.get("started", ""))

    return [sorted(same, key=age) for same in grouped(records, lambda r: (r.config.tuned, r.config.seed))]


def _once(records: Sequence[RunRecord]) -> list[RunRecord]:
    return [same[-1] for same in _alike(records)]


def _workload(label: str, optimizers: Sequence[OptimizerSummary]) -> WorkloadSummary:
    first = optimizers[0].records[0]
    sign = -1 if first.higher_is_better else 1
    order = sorted(optimizers, key=lambda o: (2, 0.0) if o.final is None else (not o.whole, sign * o.final.mean))
    metric, higher = first.judged_by
    facts = {**first.workload, "metric": metric, "higher_is_better": higher}
    if first.config.role == "tune":
        facts |= {"tune_metric": metric, "tune_higher_is_better": higher}
    # The seconds of a run depend on the machine, and on how many runs and threads shared it.
    parts = [part for o in optimizers for r in o.records for part in r.surroundings]
    one_clock = len({tuple(part.get(key) for key in ("cpu", "gpu", *SHARING)) for part in parts}) <= 1
    if not one_clock:
        order = [replace(o, seconds_to_target=None, seconds_per_step=None) for o in order]
    return WorkloadSummary(label, facts, tuple(order), first.config, one_clock)


def _optimizer(name: str, runs: Sequence[RunRecord], trials: Sequence[RunRecord]) -> OptimizerSummary:
    finals = [r.final for r in runs if r.final is not None]
    reached = [hit for r in runs if (hit := to_target(r)) is not None]
    results = [r.result for r in runs if r.result]
    speeds = [result["seconds"] / result["step"] for result in results if result["step"]]
    words = [word for result in results for word in (result.get("implementation") or "").split(", ")]
    if runs[0].config.device != "cpu":  # there nothing can be captured, which need not be said
        words += ["eager" for result in results if "eager" in (result.get("graph") or "")]
    sizes = [size for result in results if (size := result.get("state_bytes_per_parameter")) is not None]
    majority = len(reached) * 2 > len(runs)
    # A seed that never got there counts as infinity: the median is finite when more than half of them did.
    missing = [math.inf] * (len(runs) - len(reached))
    return OptimizerSummary(
        name=name,
        records=tuple(sorted(runs, key=lambda r: r.config.seed)),
        final=interval(finals).within(*usual_range(runs[0].metric, finals)) if finals else None,
        steps_to_target=statistics.median([*(hit[0] for hit in reached), *missing]) if majority else None,
        seconds_to_target=statistics.median([*(hit[1] for hit in reached), *missing]) if majority else None,
        reached=len(reached),
        diverged=sum(r.diverged for r in runs),
        failed=sum(r.status in ("failed", "unfinished") for r in runs),
        seconds_per_step=statistics.median(speeds) if speeds else None,
        engines=tuple(word for word in dict.fromkeys(words) if word not in ("", "capturable")),
        state_bytes_per_parameter=max(sizes, default=None),
        sensitivity=sensitivity(trials),
        trials=len(grouped(trials, lambda r: r.config.tuned)),
    )


def usual_range(metric: str, values: Sequence[float]) -> tuple[float, float]:
    """The usual range of a metric, unless a value lies outside: one's own accuracy may be in percent.

    >>> usual_range("accuracy", [0.9, 1.0]), usual_range("accuracy", [90.0]), usual_range("loss", [-6.2])
    ((0.0, 1.0), (-inf, inf), (-inf, inf))
    """
    low, high = RANGES.get(metric, ANYTHING)
    return (low, high) if low <= min(values) and max(values) <= high else ANYTHING


def performance_profile(summaries: Sequence[WorkloadSummary]) -> dict[str, list[tuple[float, float]]]:
    """For each optimizer: (τ, share of the workloads whose target it met within τ times the fewest steps).

    Workloads whose target nobody met say nothing and are left out; so are optimizers that were not run on all of them.
    """
    steps = [{o.name: o.steps_to_target for o in summary.optimizers} for summary in summaries]
    costs = [{name: math.inf if value is None else value for name, value in cost.items()} for cost in steps]
    costs = [cost for cost in costs if min(cost.values()) < math.inf]
    profile = {}
    for name in (name for name in (costs[0] if costs else ()) if all(name in cost for cost in costs)):
        ratios = sorted(cost[name] / min(cost.values()) for cost in costs if cost[name] < math.inf)
        profile[name] = [(ratio, (i + 1) / len(costs)) for i, ratio in enumerate(ratios)]
    return profile
