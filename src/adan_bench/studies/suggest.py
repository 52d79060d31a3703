"""The learning rate of a full run, read off short ones.

A short run is the full run in small: a few percent of its steps, with a warm-up and a descent of its own. Rates that
fall behind are stopped at a quarter and at half of it (`studies.halving`), and two more rates refine the best. The best
rate of short runs, the vertex of a parabola in log lr, times `LR_FACTOR` is the suggestion. docs/tuning.md shows the
records that this rule was chosen by; benchmarks/tuning.py computes them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from adan.suggestion import first_beta
from adan_bench.config import RunConfig, RunRecord
from adan_bench.errors import UsageError
from adan_bench.records.stats import WIDTH_TOLERANCE, rank
from adan_bench.studies.arms import Search
from adan_bench.studies.comparison import Comparison, Key, check_free_rate, learning_rates, split_trials
from adan_bench.studies.halving import rungs
from adan_bench.studies.study import arms, find, read
from adan_bench.task import OptimizerSpec, Settings
from adan_bench.training import optimizers

#: The share of the full run that a short one has, and the fewest steps of one.
SHARE, LEAST = 0.04, 20
#: A short run warms up for as many steps as the full one, but at most for this share of it.
WARMUP = 0.25
#: The best rate of a full run ÷ that of short ones.
LR_FACTOR = 0.6
TRIALS, ETA = 8, 2
MEASURED = ("adan", "adamw", "adam")  # with which `LR_FACTOR` was chosen


@dataclass(frozen=True)
class RatePoint:
    """A learning rate that was tried in a short run; value: None where that was stopped or diverged."""

    lr: float
    value: float | None
    status: str


@dataclass(frozen=True)
class MeasuredRate:
    """The learning rate for a full run, and the short runs behind it.

    lr: for the full run; best: of the short runs, between those tried; steps: of a short run.
    low, high: the tried rates around the best whose result is within 2% of it.
    at_edge: no higher, or no lower rate than the best was tried.
    gradients: that all short runs took together.
    """

    lr: float
    best: float
    points: tuple[RatePoint, ...]
    metric: str
    higher_is_better: bool
    steps: int
    low: float
    high: float
    at_edge: bool
    gradients: int


@dataclass(frozen=True)
class MeasuredSuggestion:
    """Settings for a full run, by short runs.

    steps, warmup_steps, schedule: of the full run.
    """

    optimizer: str
    settings: Settings
    steps: int
    warmup_steps: int
    schedule: str
    rate: MeasuredRate

    @property
    def share(self) -> float:
        """The gradients of all short runs, as a share of the full run's."""
        return self.rate.gradients / self.steps

    def doubts(self) -> list[str]:
        """Reasons to trust it less than usual."""
        rate, found = self.rate, []
        results = [point.value for point in rate.points if point.value is not None]
        if rate.at_edge:
            found.append(f"The best rate, {rate.best:g}, is the last that was tried on its side: try beyond it.")
        if len(results) < 3:
            found.append(f"{len(rate.points) - len(results)} of {len(rate.points)} short runs have no result.")
        if len(results) > 2 and max(results) - min(results) <= WIDTH_TOLERANCE * abs(max(results, key=abs)):
            found.append(f"All results are within 2% of each other: {rate.steps} steps tell little of this rate.")
        lowest = min((point.lr for point in rate.points if point.status == "diverged"), default=math.inf)
        if lowest <= 4 * rate.lr:
            found.append(f"A short run diverged at {lowest:g}, {lowest / rate.lr:.2g} times the suggested rate.")
        if self.optimizer not in MEASURED:
            found.append(f"The factor {LR_FACTOR:g} was measured with {', '.join(MEASURED)} alone.")
        return found

    def code(self) -> str:
        """The lines to paste into a training script."""
        spec = optimizers.get_optimizer(self.optimizer)
        module, _, name = spec.target.partition(":")
        options = "".join(f", {key}={value!r}" for key, value in self.settings.items())
        if spec.base is not None:
            options = f", {spec.base.replace(':', '.')}{options}"
        lines = [f"from {module} import {name}", f"optimizer = {name}(model.parameters(){options})"]
        if self.schedule == "cosine":
            first, rest = self.warmup_steps, self.steps - self.warmup_steps
            rising = f"min(1, (t + 1) / {first}) * " if first else ""
            falling = f"(1 + math.cos(math.pi * max(0, t - {first}) / {rest})) / 2"
            lines = ["import math", "import torch", *lines, f"factor = lambda t: {rising}{falling}"]
            lines.append("schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)")
        return "\n".join(lines)

    def rows(self) -> list[tuple[str, str, str]]:
        """Every rate that was tried: lr, result, and a bar that is longer the better it is."""
        values = [point.value for point in self.rate.points if point.value is not None]
        best, worst = (max(values), min(values)) if self.rate.higher_is_better else (min(values), max(values))
        found = []
        for lr, value, status in map(astuple, self.rate.points):
            share = 0 if best == worst or value is None else (worst - value) / (worst - best)
            length = 0 if value is None else 1 + round(23 * share)
            found.append((f"{lr:g}", status if value is None else f"{value:.4g}", "▇" * length))
        return found

    def summary(self) -> str:
        """The settings, what they were read off, and what that took."""
        rate, options = self.rate, ", ".join(f"{key}={value!r}" for key, value in self.settings.items())
        return (
            f"{self.optimizer}({options}), warm-up of {self.warmup_steps:,} steps, for {self.steps:,} steps\n"
            f"lr = {rate.lr:g}: {LR_FACTOR:g} × {rate.best:g}, the best of {len(rate.points)} short runs of up to "
            f"{rate.steps:,} steps, which took {self.share:.0%} of a full run's gradients."
        )

    def __str__(self) -> str:
        bars = [f"{lr:>10} {value:>10} {bar}".rstrip() for lr, value, bar in self.rows()]
        head = f"{'lr':>10} {self.rate.metric:>10}"
        return "\n".join([self.summary(), *(f"- {doubt}" for doubt in self.doubts()), head, *bars, "", self.code()])


@dataclass(frozen=True)
class ShortRuns(Search):
    """A search among short runs, whose best rate is not yet that of the full run."""

    def chosen(self, tried: Sequence[RunRecord]) -> Settings:
        best = min(tried, key=rank)
        return {**best.config.settings, "lr": measured(tried).lr}


def measured(tried: Sequence[RunRecord], factor: float = LR_FACTOR) -> MeasuredRate:
    """The rate for a full run, from short runs that differ in the rate alone; one of them at least has a result."""
    runs = sorted(tried, key=_lr)
    rates, ranks = [_lr(run) for run in runs], [rank(run) for run in runs]
    best = min(range(len(runs)), key=lambda i: ranks[i])
    ended = [i for i in range(len(runs)) if math.isfinite(ranks[i])]
    middle = vertex([math.log(rates[i]) for i in ended], [ranks[i] for i in ended])
    limit = ranks[best] + WIDTH_TOLERANCE * abs(ranks[best])
    low = high = best
    while low > 0 and ranks[low - 1] <= limit:
        low -= 1
    while high < len(runs) - 1 and ranks[high + 1] <= limit:
        high += 1
    return MeasuredRate(
        lr=_rounded(factor * math.exp(middle)),
        best=_rounded(math.exp(middle)),
        points=tuple(RatePoint(_lr(run), run.final, run.status) for run in runs),
        metric=runs[0].metric,
        higher_is_better=runs[0].higher_is_better,
        steps=runs[0].config.steps,
        low=rates[low],
        high=rates[high],
        at_edge=best in (0, len(runs) - 1),
        gradients=sum(run.result["step"] for run in runs if run.result),
    )


def vertex(x: Sequence[float], y: Sequence[float]) -> float:
    """Where the parabola through the lowest point and its neighbors has its minimum; at an end, the lowest point.

    >>> vertex([0.0, 1.0, 3.0], [4.0, 1.0, 1.0]), vertex([0.0, 1.0], [1.0, 0.0])
    (2.0, 1.0)
    """
    i = min(range(len(x)), key=lambda i: y[i])
    if i in (0, len(x) - 1):
        return x[i]
    left, right = x[i] - x[i - 1], x[i + 1] - x[i]
    rise, fall = (y[i + 1] - y[i]) / right, (y[i] - y[i - 1]) / left
    if rise <= fall:  # all three are equal
        return x[i]
    at = x[i] - 0.5 * (rise * left + fall * right) / (rise - fall)
    return min(x[i + 1], max(x[i - 1], at))


def _lr(run: RunRecord) -> float:
    return float(run.config.settings["lr"])


def _rounded(lr: float) -> float:
    return float(f"{lr:.2g}")


def short(base: RunConfig, share: float = SHARE) -> RunConfig:
    """A full run's configuration in small, evaluated at the quarters, where rates are compared."""
    whole = base.stop_after or base.steps
    steps = 4 * max(LEAST // 4, round(share * whole / 4))
    if steps > whole // 2:
        raise UsageError(f"--steps {whole}: too few for short runs, which have {steps}; use adan-bench tune instead")
    warmup = min(base.warmup * base.steps / steps, WARMUP)
    lines = {"eval_every": steps // 4, "log_every": max(1, steps // 60)}
    # An average of weights would lag behind, and compiling takes longer than a short run.
    return replace(base, steps=steps, warmup=warmup, stop_after=0, ema=0.0, nonmono=0, compile=False, **lines)


def starting_from(spec: OptimizerSpec, steps: int) -> Settings:
    """An optimizer's defaults, with those that depend on the length of the full run: Adan's first beta."""
    settings = optimizers.defaults(spec)
    return settings | ({"betas": (first_beta(steps), *settings["betas"][1:])} if spec.name == "adan" else {})


def add_study(comparison: Comparison, file: str, chosen: RunConfig) -> None:
    """Add arms for what a study searches, with its options and settings, of the optimizers that compete."""
    found = Path(file) if Path(file).exists() else find(file.removesuffix(".toml"))
    studies = read([str(found)])
    for arm in itertools.chain(*arms(studies, [found.stem], chosen, comparison.out)):
        if arm.base.study == found.stem and arm.base.name in comparison.who:
            arm.base, arm.seeds = arm.trial or arm.base, ()
            comparison.arms[found.stem, arm.base.name] = arm


def suggest(comparison: Comparison, share: float = SHARE, trials: int = TRIALS, eta: int = ETA) -> None:
    """Choose the settings of every arm of a comparison by short runs, as many and over as wide a range for each."""
    rates, _ = split_trials(trials)
    for (_, name), arm in comparison.arms.items():
        c, base = comparison.who[name], arm.base
        check_free_rate(c)
        start = base.settings if base.study else starting_from(c.spec, base.steps)
        arm.trial = trial = short(base, share)
        judged = tuple(rungs(eta, rates, trial.steps, trial.eval_every))
        tried = tuple(learning_rates(c.spec, rates))
        arm.search = ShortRuns(tried, trials, start, fixed=dict(c.settings), eta=eta, rungs=judged)
    comparison.run()


def suggestions(comparison: Comparison) -> dict[Key, MeasuredSuggestion]:
    """The arms for which short runs have found settings."""
    found = {}
    for key in comparison.tuning:
        arm, base = comparison.arms[key], comparison.arms[key].base
        settings = {name: tuple(v) if isinstance(v, list) else v for name, v in base.settings.items()}
        warmup = round(base.warmup * base.steps)
        found[key] = MeasuredSuggestion(
            base.name, settings, base.steps, warmup, base.schedule, measured(arm.tried or ())
        )
    return found
