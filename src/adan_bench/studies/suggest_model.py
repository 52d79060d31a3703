"""`adan_bench.suggest`: the short runs of `adan-bench suggest` for a script that does not use the harness."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from adan_bench.config import RunConfig, RunRecord
from adan_bench.errors import UsageError
from adan_bench.errors import short as shown
from adan_bench.records.suggestion import MeasuredSuggestion, suggestion
from adan_bench.studies.suggest import SHARE, TRIALS, short, short_runs
from adan_bench.task import Task
from adan_bench.training import optimizers
from adan_bench.training.distributed import ALONE
from adan_bench.training.randomness import rng_state, set_rng_state
from adan_bench.training.schedules import schedule
from adan_bench.training.updater import Updater

Loss = Callable[[nn.Module, Any], Tensor]


def suggest(
    model: nn.Module,
    loss: Loss,
    batches: Iterable[Any],
    *,
    steps: int,
    optimizer: str = "adan",
    warmup_steps: int | None = None,
    max_grad_norm: float | None = None,
    share: float = SHARE,
    trials: int = TRIALS,
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
        share: what a short run makes of the full one.
        trials: short runs; with `share`, at most a quarter of the full run.
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
    small = short(full, share, trials)
    search = short_runs(spec, full, settings, trials)
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
