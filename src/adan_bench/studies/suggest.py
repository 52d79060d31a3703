"""A learning rate for a full run, read off short ones: `adan-bench suggest` and `adan_bench.suggest`.

A short run is the beginning of a full run in small: it warms up and descends as one of a tenth of the steps would, and
ends at 40% of that. None is stopped before: where those that were behind at a quarter were, the best of GPTs were lost.
They are judged by their training loss over the second half of what they made; the vertex of a parabola in log lr is the
suggestion, as it is. docs/tuning.md shows the records by which this rule was chosen, benchmarks/short.py how.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from adan.suggestion import first_beta
from adan_bench.config import SHORT, Origin, RunConfig, RunRecord
from adan_bench.errors import UsageError
from adan_bench.errors import short as shown
from adan_bench.records.stats import WIDTH_TOLERANCE, best_trial, grouped, rank
from adan_bench.studies.arms import Arm, Search, rounded
from adan_bench.studies.comparison import Key, search
from adan_bench.studies.competitors import Competitor
from adan_bench.task import OptimizerSpec, Settings, Task
from adan_bench.training import optimizers
from adan_bench.training.distributed import ALONE
from adan_bench.training.randomness import rng_state, set_rng_state
from adan_bench.training.schedules import schedule
from adan_bench.training.updater import Updater

Loss = Callable[[nn.Module, Any], Tensor]

#: The share of the full run that a short one makes, and the fewest steps of one.
SHARE, LEAST = 0.04, 20
#: The steps that a short run makes ÷ those of its schedule.
MADE = 0.4
#: A short run warms up for as many steps as the full one, but at most for this share of its schedule.
WARMUP = 0.25
TRIALS = 6
#: Gradients of all short runs ÷ the full run's, at most.
BUDGET = 0.25
#: Where all rates diverge, so many smaller ones are tried, each a tenth of the one before.
LOWER = 3
#: With which optimizers the rule was tried, and what came of it (tests/benchmarks/test_short.py).
MEASURED = ("adan", "adamw")
FEWEST = 80  # steps of a short run in those records
TRUST = (
    "In the records by which this rule was chosen it was within a factor of two of the best rate of full runs in 10 of "
    "10 cases with transformers and an LSTM and in 0 of 4 with convolutional networks, where the best was 2 to 11 "
    "times as large: try half of it and twice it, too."
)


@dataclass(frozen=True)
class ShortRuns(Search):
    """A search among short runs, judged by their training loss; its choice is between the rates tried.

    full: steps and warm-up of the full run.
    """

    full: Settings = field(default_factory=dict)

    def mark(self) -> Origin:
        return Origin(kind=SHORT, tuned_for=self.full)

    def chosen(self, tried: Sequence[RunRecord]) -> Settings:
        return chosen(tried)

    def following(self, tried: Sequence[RunRecord]) -> list[Settings]:
        if not tried or any(math.isfinite(rank(record)) for record in tried):
            return super().following(tried) if len(tried) < self.trials else []
        if any(not record.diverged for record in tried) or len(tried) >= len(self.rates) + LOWER:
            return []
        lowest = min(record.lr for record in tried)
        return [{**self.start, **self.fixed, "lr": rounded(lowest / 10)}]


def short(base: RunConfig) -> RunConfig:
    """The configuration of a full run's short ones, evaluated at their end alone."""
    whole = base.stop_after or base.steps
    made = max(LEAST, round(SHARE * whole))
    if made * TRIALS > BUDGET * whole:
        more = f"{TRIALS} short runs of {made} steps would take more than a quarter of a full run"
        least = round(LEAST * TRIALS / BUDGET)
        raise UsageError(f"--steps {whole}: {more}; give {least} or more, or use adan-bench tune")
    steps = round(made / MADE)
    warmup = min(base.warmup * base.steps / steps, WARMUP)
    small = replace(base, steps=steps, warmup=warmup, stop_after=made, eval_every=made, log_every=max(1, made // 40))
    # An average of weights would lag behind, and compiling takes longer than a short run.
    return replace(small, nonmono=0, ema=0.0, compile=False)


def short_runs(whole: Search, full: RunConfig) -> ShortRuns:
    """The search by short runs in place of one by whole runs: as many, over the same rates, without alternatives."""
    start = dict(whole.start)
    if full.optimizer == "adan":
        start["betas"] = (first_beta(full.steps), *start["betas"][1:])
    course = {"steps": full.steps, "warmup": full.warmup}
    return ShortRuns(whole.rates, whole.trials, start, fixed=whole.fixed, refine=True, full=course)


@dataclass(frozen=True)
class MeasuredSuggestion:
    """Settings for a full run of so many steps, by short runs.

    tried: the short runs in the order of their rates.
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
        above = next((run for run in self.tried if run.lr > lr), None)
        if above is not None and above.status == "diverged":
            found.append(f"The next rate that was tried above it, {above.lr:g}, diverged: take no larger one.")
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
        tried = [{"lr": run.lr, "loss": run.final, "status": run.status} for run in self.tried]
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
        losses = (f"lr {run.lr:g}: {run.status if run.final is None else f'{run.final:.4g}'}" for run in self.tried)
        return "\n".join([self.summary(), *(f"- {line}" for line in (*self.doubts(), *losses)), "", self.code()])


def chosen(tried: Sequence[RunRecord]) -> Settings:
    """The settings that short runs lead to; one of them has a result."""
    return {**best_trial(tried).config.settings, "lr": measured(tried)}


def measured(tried: Sequence[RunRecord]) -> float:
    """The rate for a full run, from short runs that differ in the rate alone; one of them has a result."""
    ended = sorted((run for run in tried if math.isfinite(rank(run))), key=lambda run: run.lr)
    middle = vertex([math.log(run.lr) for run in ended], [rank(run) for run in ended])
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


def suggestion(spec: OptimizerSpec, full: RunConfig, tried: Sequence[RunRecord]) -> MeasuredSuggestion:
    """What short runs suggest for a full run."""
    settings = {name: tuple(value) if isinstance(value, list) else value for name, value in chosen(tried).items()}
    warmup = round(full.warmup * full.steps)
    return MeasuredSuggestion(spec, settings, full.steps, warmup, full.schedule, sorted(tried, key=lambda run: run.lr))


def shorten(arms: Mapping[Key, Arm]) -> None:
    """Let the arms of a comparison with `TRIALS` trials choose their settings by short runs."""
    for arm in arms.values():
        assert arm.search is not None
        arm.trial = short(arm.base)
        arm.search = short_runs(arm.search, arm.base)


def suggestions(records: Iterable[RunRecord]) -> dict[Path, MeasuredSuggestion]:
    """What the short runs among some records suggest, by the folder of their arm."""
    found, known = {}, optimizers.known()
    for tried in grouped((r for r in records if r.config.origin.kind == SHORT), lambda run: run.path.parent):
        best = best_trial(tried)
        if best.final is not None:
            config, target = best.config, best.optimizer["target"]
            spec = known.get(config.optimizer) or OptimizerSpec(config.optimizer, target, best.lr)  # a script's own
            full = replace(config, **config.origin.tuned_for)
            found[best.path.parent] = suggestion(spec, full, tried)
    return found


# For a script that does not use the harness


def suggest(
    model: nn.Module,
    loss: Loss,
    batches: Iterable[Any],
    *,
    steps: int,
    optimizer: str = "adan",
    warmup_steps: int | None = None,
    max_grad_norm: float | None = None,
    **settings: Any,
) -> MeasuredSuggestion:
    """Suggest settings for a training of so many steps, by short runs of copies of the model.

    They are judged by their training loss. The model and the random number generators are left as they were.

    Args:
        model: as it is at the start of the training.
        loss: (model, batch) -> the mean loss of a batch, computed with the model that it is called with.
        batches: a list or a DataLoader of training batches, for each short run from its beginning, and again where it
            ends.
        steps: of the full run, which follows a cosine to 0 after its warm-up.
        optimizer: a name of `adan-bench list optimizers`.
        warmup_steps: of the full run; 5% of it unless given.
        max_grad_norm: the limit of the gradient's norm, by `torch.nn.utils.clip_grad_norm_`; None: no limit.
        **settings: of the optimizer, kept in all short runs, for example weight_decay=0.1.

    Example:
        >>> import torch, adan_bench
        >>> model, data = torch.nn.Linear(4, 1), torch.randn(50, 16, 4)
        >>> def loss(model, x): return (model(x) - x.sum(1, keepdim=True)).square().mean()
        >>> s = adan_bench.suggest(model, loss, data, steps=1000, weight_decay=0.0)
        >>> sorted(s.settings)
        ['betas', 'lr', 'weight_decay']
    """
    if isinstance(batches, Iterator):
        raise UsageError(f"batches: {shown(batches)} can be read only once; give a list or a DataLoader")
    spec = optimizers.get_optimizer(optimizer)
    if spec.passes > 1:
        raise UsageError(f"optimizer={optimizer!r}: its update takes {spec.passes} gradients; use adan-bench suggest")
    if "lr" in settings:
        raise UsageError(f"lr={settings['lr']!r}: it is what short runs look for; omit it")
    warmup = RunConfig.warmup if warmup_steps is None else warmup_steps / steps
    course: dict[str, Any] = {"steps": steps, "warmup": warmup, "schedule": spec.schedule or RunConfig.schedule}
    full = RunConfig(workload="suggest", optimizer=optimizer, graph="off", role="tune", **course)
    small = short(full)
    runs = short_runs(search(Competitor(optimizer, spec, settings), TRIALS), full)
    device, tried = next(model.parameters()).device, list[RunRecord]()
    before = rng_state(device)
    try:
        while told := runs.following(tried):
            for own in told:
                set_rng_state(before, device)
                config = replace(small, settings=own, origin=runs.mark())
                tried.append(_run(copy.deepcopy(model), loss, batches, config, max_grad_norm))
    finally:
        set_rng_state(before, device)
    if all(record.final is None for record in tried):
        raise UsageError(f"{optimizer}: short runs diverged at all {len(tried)} rates; look at the loss and the data")
    return suggestion(spec, full, tried)


def _run(model: nn.Module, loss: Loss, batches: Iterable[Any], config: RunConfig, limit: float | None) -> RunRecord:
    """One short run in memory, until a loss is not finite."""
    spec, stream = optimizers.get_optimizer(config.optimizer), chain.from_iterable(repeat(batches))
    task = Task(model, lambda position: next(stream), loss, lambda model: {}, max_grad_norm=limit)
    updater = Updater(task, spec, config, ALONE, next(model.parameters()).device)
    factor = schedule(config.schedule, config.steps, config.warmup)
    lines, status = list[dict[str, Any]](), "finished"
    model.train()
    for step in range(config.stop_after):
        updater(step, factor(step))
        if not step and all(p.grad is None for p in model.parameters()):
            raise UsageError("loss: it gave the model no gradients; compute it with the model that it is called with")
        if (step + 1) % config.log_every == 0:
            mean = updater.window.item() / config.log_every
            updater.window.zero_()
            lines.append({"kind": "train", "step": step + 1, "seconds": 0.0, "loss": mean})
            if not math.isfinite(mean):
                status = "diverged"
                break
    result = {"status": status, "step": step + 1, "final": {}}
    return RunRecord(Path(f"{config.settings['lr']:g}"), config, {}, spec.facts(), {}, lines, result)
