"""Short runs, off which `records.suggestion` reads the learning rate of a full one.

A short run is the beginning of a full run in small: it warms up and descends as one of a tenth of the steps would, and
ends at 40% of that. None is stopped before: where those that were behind at a quarter were, the best of GPTs were lost.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from adan.suggestion import first_beta
from adan_bench.config import RunConfig, RunRecord
from adan_bench.errors import UsageError
from adan_bench.errors import short as shown
from adan_bench.records.stats import best_trial, rank
from adan_bench.records.suggestion import MeasuredSuggestion, judged, measured, suggestion
from adan_bench.studies.arms import Search, rounded
from adan_bench.studies.comparison import Comparison, Key, check_free_rate, learning_rates, split_trials
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


@dataclass(frozen=True)
class ShortRuns(Search):
    """A search among short runs, judged by their training loss; its choice is between the rates tried."""

    def judged(self, record: RunRecord) -> RunRecord:
        return judged(record)

    def chosen(self, tried: Sequence[RunRecord]) -> Settings:
        return {**best_trial(tried).config.settings, "lr": measured(tried)}

    def following(self, tried: Sequence[RunRecord]) -> list[Settings]:
        if not tried or any(math.isfinite(rank(record)) for record in tried):
            return super().following(tried) if len(tried) < self.trials else []
        if any(not record.diverged for record in tried) or len(tried) >= len(self.rates) + LOWER:
            return []
        lowest = min(float(record.config.settings["lr"]) for record in tried)
        return [{**self.start, **self.fixed, "lr": rounded(lowest / 10)}]


def short(base: RunConfig) -> RunConfig:
    """The configuration of a full run's short ones, evaluated at their end alone."""
    whole = base.stop_after or base.steps
    made = max(LEAST, round(SHARE * whole))
    if made * TRIALS > BUDGET * whole:
        more = f"{TRIALS} short runs of {made} steps would take more than a quarter of a full run"
        raise UsageError(f"--steps {whole}: {more}; use adan-bench tune")
    steps = round(made / MADE)
    warmup = min(base.warmup * base.steps / steps, WARMUP)
    small = replace(base, steps=steps, warmup=warmup, stop_after=made, eval_every=made, log_every=max(1, made // 40))
    # An average of weights would lag behind, and compiling takes longer than a short run.
    return replace(small, nonmono=0, ema=0.0, compile=False)


def short_runs(spec: OptimizerSpec, full: RunConfig, fixed: Settings) -> ShortRuns:
    """The search of an optimizer: as many short runs, and over as wide a range of rates, as every other's."""
    rates, _ = split_trials(TRIALS)
    start = optimizers.defaults(spec)
    if spec.name == "adan":
        start["betas"] = (first_beta(full.steps), *start["betas"][1:])
    return ShortRuns(tuple(learning_rates(spec, rates)), TRIALS, start, fixed=fixed, refine=True)


def suggest_settings(comparison: Comparison) -> None:
    """Choose the settings of every arm of a comparison by short runs."""
    for (_, name), arm in comparison.arms.items():
        c = comparison.who[name]
        check_free_rate(c)
        arm.trial = short(arm.base)
        arm.search = short_runs(c.spec, arm.base, c.settings)
    comparison.run()


def suggestions(comparison: Comparison) -> dict[Key, MeasuredSuggestion]:
    """The arms for which short runs have found settings."""
    found = {}
    for key in comparison.tuning:
        arm, spec = comparison.arms[key], comparison.who[key[1]].spec
        found[key] = suggestion(spec, arm.base, arm.base.settings, arm.tried or ())
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
    search = short_runs(spec, full, settings)
    device, tried = next(model.parameters()).device, list[RunRecord]()
    before = rng_state(device)
    try:
        while told := search.following(tried):
            for own in told:
                set_rng_state(before, device)
                record = _run(copy.deepcopy(model), loss, batches, replace(small, settings=own), max_grad_norm)
                tried.append(search.judged(record))
    finally:
        set_rng_state(before, device)
    if all(record.final is None for record in tried):
        raise UsageError(f"{optimizer}: short runs diverged at all {len(tried)} rates; look at the loss and the data")
    return suggestion(spec, full, search.chosen(tried), tried)


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
    return RunRecord(Path(f"{config.settings['lr']:g}"), config, {"metric": "loss"}, spec.facts(), {}, lines, result)
