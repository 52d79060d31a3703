"""A learning rate for a full run, read off the records of short ones.

Short runs are judged by their training loss over the second half of what they made; the vertex of a parabola in log lr
is the suggestion, as it is. docs/tuning.md shows the records by which this rule was chosen, benchmarks/short.py how.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from adan_bench.config import RunConfig, RunRecord
from adan_bench.records.stats import WIDTH_TOLERANCE, rank
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
class MeasuredSuggestion:
    """Settings for a full run of so many steps, by short runs.

    tried: the short runs as they were judged, in the order of their rates.
    """

    spec: OptimizerSpec
    settings: Settings
    steps: int
    warmup_steps: int
    schedule: str
    tried: Sequence[RunRecord]

    @property
    def share(self) -> float:
        """The gradients of all short runs, as a share of the full run's."""
        return sum(int(run.result["step"]) for run in self.tried if run.result) / self.steps

    @property
    def made(self) -> int:
        """The steps of a short run."""
        return self.tried[0].config.stop_after or self.tried[0].config.steps

    def doubts(self) -> list[str]:
        """Reasons to trust it less than usual."""
        found, lr, results = [], self.settings["lr"], [run.final for run in self.tried if run.final is not None]
        if min(self.tried, key=rank) in (self.tried[0], self.tried[-1]):
            found.append(f"The best rate, {lr:g}, is the last that was tried on its side: try beyond it.")
        if len(results) < 3:
            found.append(f"{len(self.tried) - len(results)} of {len(self.tried)} short runs have no result.")
        elif max(results) - min(results) <= WIDTH_TOLERANCE * abs(max(results, key=abs)):
            found.append(f"All losses are within 2% of each other: {self.made} steps tell little of this rate.")
        above = next((run for run in self.tried if lr_of(run) > lr), None)
        if above is not None and above.status == "diverged":
            found.append(f"The next rate that was tried above it, {lr_of(above):g}, diverged: take no larger one.")
        if self.made < FEWEST:
            found.append(f"{self.made} steps are few: where the rule was tried, a short run had {FEWEST} or more.")
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
        tried = [{"lr": lr_of(run), "loss": run.final, "status": run.status} for run in self.tried]
        return {**facts, "short_runs": tried, "doubts": self.doubts(), "code": self.code()}

    def summary(self) -> str:
        """The settings, what they were read off, what that took, and how far to trust them."""
        options = ", ".join(f"{key}={value!r}" for key, value in self.settings.items())
        return (
            f"{self.spec.name}({options}), warm-up of {self.warmup_steps:,} steps, for {self.steps:,} steps\n"
            f"lr = {self.settings['lr']:g}: the best of {len(self.tried)} short runs of up to {self.made:,} steps, "
            f"by their training loss; they took {self.share:.0%} of a full run's gradients. {TRUST}"
        )

    def __str__(self) -> str:
        losses = (f"lr {lr_of(run):g}: {run.status if run.final is None else f'{run.final:.4g}'}" for run in self.tried)
        return "\n".join([self.summary(), *(f"- {line}" for line in (*self.doubts(), *losses)), "", self.code()])


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


def measured(tried: Sequence[RunRecord]) -> float:
    """The rate for a full run, from short runs, judged, that differ in the rate alone; one of them has a result."""
    ended = sorted((run for run in tried if math.isfinite(rank(run))), key=lr_of)
    middle = vertex([math.log(lr_of(run)) for run in ended], [rank(run) for run in ended])
    return float(f"{math.exp(middle):.2g}")


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


def lr_of(run: RunRecord) -> float:
    return float(run.config.settings["lr"])


def suggestion(
    spec: OptimizerSpec, full: RunConfig, settings: Settings, tried: Sequence[RunRecord]
) -> MeasuredSuggestion:
    """What short runs, judged, suggest for a full run."""
    settings = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    warmup = round(full.warmup * full.steps)
    return MeasuredSuggestion(spec, settings, full.steps, warmup, full.schedule, sorted(tried, key=lr_of))
