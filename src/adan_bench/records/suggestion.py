"""A learning rate for a full run, read off the records of short ones.

The best rate of short runs, the vertex of a parabola in log lr, times `LR_FACTOR` is the suggestion. docs/tuning.md
shows the records by which this rule was chosen; benchmarks/tuning.py computes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from adan_bench.config import RunConfig, RunRecord
from adan_bench.records.stats import WIDTH_TOLERANCE, rank
from adan_bench.task import OptimizerSpec, Settings

#: The best rate of a full run ÷ that of short ones.
LR_FACTOR = 0.6
MEASURED = ("adan", "adamw", "adam")  # with which it was chosen


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

    spec: OptimizerSpec
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
        if self.spec.name not in MEASURED:
            found.append(f"The factor {LR_FACTOR:g} was measured with {', '.join(MEASURED)} alone.")
        return found

    def code(self) -> str:
        """The lines to paste into a training script."""
        spec = self.spec
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
            f"{self.spec.name}({options}), warm-up of {self.warmup_steps:,} steps, for {self.steps:,} steps\n"
            f"lr = {rate.lr:g}: {LR_FACTOR:g} × {rate.best:g}, the best of {len(rate.points)} short runs of up to "
            f"{rate.steps:,} steps, which took {self.share:.0%} of a full run's gradients."
        )

    def __str__(self) -> str:
        bars = [f"{lr:>10} {value:>10} {bar}".rstrip() for lr, value, bar in self.rows()]
        head = f"{'lr':>10} {self.rate.metric:>10}"
        return "\n".join([self.summary(), *(f"- {doubt}" for doubt in self.doubts()), head, *bars, "", self.code()])


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


def suggestion(
    spec: OptimizerSpec, full: RunConfig, settings: Settings, tried: Sequence[RunRecord]
) -> MeasuredSuggestion:
    """What short runs suggest for a full run."""
    settings = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    warmup = round(full.warmup * full.steps)
    return MeasuredSuggestion(spec, settings, full.steps, warmup, full.schedule, measured(tried))
