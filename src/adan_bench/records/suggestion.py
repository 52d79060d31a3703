"""A learning rate for a full run, read off the records of short ones.

Short runs are judged by their training loss over the second half of what they made; the vertex of a parabola in log lr
is the suggestion, as it is. docs/tuning.md shows the records by which this rule was chosen, benchmarks/short.py how.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any

from adan_bench.config import RunConfig, RunRecord
from adan_bench.records.stats import WIDTH_TOLERANCE, rank, tolerated
from adan_bench.task import OptimizerSpec, Settings

#: By what short runs are judged.
LOSS = "training loss"
#: With which optimizers the rule was tried, and what came of it (tests/benchmarks/test_short.py).
MEASURED = ("adan", "adamw")
FEWEST = 80  # steps of a short run in those records
TRUST = (
    "In the records by which this rule was chosen it was within a factor of two of the best rate of full runs in 10 of "
    "10 cases with transformers and an LSTM and in 0 of 4 with convolutional networks, where the best was 2 to 11 "
    "times as large: try half of it and twice it, too."
)


@dataclass(frozen=True)
class RatePoint:
    """A learning rate that was tried in a short run; value: None where that diverged."""

    lr: float
    value: float | None
    status: str


@dataclass(frozen=True)
class MeasuredRate:
    """The learning rate for a full run, and the short runs behind it.

    lr: the best one, between those tried; steps: that a short run made.
    low, high: the tried rates around the best whose result is within 2% of it.
    at_edge: no higher, or no lower rate than the best was tried.
    gradients: that all short runs took together.
    """

    lr: float
    points: tuple[RatePoint, ...]
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
            found.append(f"The best rate, {rate.lr:g}, is the last that was tried on its side: try beyond it.")
        if len(results) < 3:
            found.append(f"{len(rate.points) - len(results)} of {len(rate.points)} short runs have no result.")
        if len(results) > 2 and max(results) - min(results) <= WIDTH_TOLERANCE * abs(max(results, key=abs)):
            found.append(f"All losses are within 2% of each other: {rate.steps} steps tell little of this rate.")
        above = min((point for point in rate.points if point.lr > rate.lr), key=lambda point: point.lr, default=None)
        if above is not None and above.status == "diverged":
            found.append(f"The next rate that was tried above it, {above.lr:g}, diverged: take no larger one.")
        if rate.steps < FEWEST:
            found.append(f"{rate.steps} steps are few: where the rule was tried, a short run had {FEWEST} or more.")
        if self.spec.name not in MEASURED:
            found.append(f"The rule was tried with {' and '.join(MEASURED)} alone.")
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

    def to_json(self) -> dict[str, Any]:
        facts = {"settings": self.settings, "steps": self.steps, "warmup_steps": self.warmup_steps, "share": self.share}
        return {**facts, "short_runs": asdict(self.rate), "doubts": self.doubts(), "code": self.code()}

    def rows(self) -> list[tuple[str, str, str]]:
        """Every rate that was tried: lr, result, and a bar that is longer the better it is."""
        values = [point.value for point in self.rate.points if point.value is not None]
        best, worst = min(values), max(values)
        found = []
        for lr, value, status in map(astuple, self.rate.points):
            share = 0 if best == worst or value is None else (worst - value) / (worst - best)
            length = 0 if value is None else 1 + round(23 * share)
            found.append((f"{lr:g}", status if value is None else f"{value:.4g}", "▇" * length))
        return found

    def summary(self) -> str:
        """The settings, what they were read off, what that took, and how far to trust them."""
        rate, options = self.rate, ", ".join(f"{key}={value!r}" for key, value in self.settings.items())
        return (
            f"{self.spec.name}({options}), warm-up of {self.warmup_steps:,} steps, for {self.steps:,} steps\n"
            f"lr = {rate.lr:g}: the best of {len(rate.points)} short runs of up to {rate.steps:,} steps, by their "
            f"training loss; they took {self.share:.0%} of a full run's gradients. {TRUST}"
        )

    def __str__(self) -> str:
        bars = [f"{lr:>10} {value:>10} {bar}".rstrip() for lr, value, bar in self.rows()]
        head = f"{'lr':>10} {'loss':>10}"
        return "\n".join([self.summary(), *(f"- {doubt}" for doubt in self.doubts()), head, *bars, "", self.code()])


def judged(run: RunRecord) -> RunRecord:
    """A short run as it counts here: its result is the mean training loss over the second half of what it made.

    By a metric on held-out data, rates of a ResNet-34, whose batch norm lags behind, and of a graph network near chance
    were misjudged by up to a factor of fifty.
    """
    end = run.config.stop_after or run.config.steps
    losses = [value for step, _, value in run.curve("train", "loss") if step > end / 2]
    final = {LOSS: sum(losses) / len(losses)} if losses else {}
    told = {**run.workload, "tune_metric": LOSS, "tune_higher_is_better": False}
    return replace(run, workload=told, result=run.result and {**run.result, "final": final})


def measured(tried: Sequence[RunRecord]) -> MeasuredRate:
    """The rate for a full run, from short runs that differ in the rate alone; one of them at least has a result."""
    runs = sorted(map(judged, tried), key=_lr)
    rates, ranks = [_lr(run) for run in runs], [rank(run) for run in runs]
    best = min(range(len(runs)), key=lambda i: ranks[i])
    ended = [i for i in range(len(runs)) if math.isfinite(ranks[i])]
    middle = vertex([math.log(rates[i]) for i in ended], [ranks[i] for i in ended])
    low, high = tolerated(ranks, best)
    return MeasuredRate(
        lr=float(f"{math.exp(middle):.2g}"),
        points=tuple(RatePoint(_lr(run), run.final, run.status) for run in runs),
        steps=runs[0].config.stop_after or runs[0].config.steps,
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


def suggestion(
    spec: OptimizerSpec, full: RunConfig, settings: Settings, tried: Sequence[RunRecord]
) -> MeasuredSuggestion:
    """What short runs suggest for a full run."""
    settings = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    warmup = round(full.warmup * full.steps)
    return MeasuredSuggestion(spec, settings, full.steps, warmup, full.schedule, measured(tried))
