"""`adan_bench.suggest`: the short runs of `adan-bench suggest` for a script that does not use the harness."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adan_bench.config import RunConfig, RunRecord
from adan_bench.errors import UsageError
from adan_bench.errors import short as shown
from adan_bench.records.suggestion import MeasuredSuggestion, suggestion
from adan_bench.studies.halving import survivors
from adan_bench.studies.suggest import SHARE, TRIALS, ShortRuns, short, short_runs
from adan_bench.training import optimizers
from adan_bench.training.randomness import rng_state, set_rng_state
from adan_bench.training.roles import by_role
from adan_bench.training.schedules import schedule

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

    They are judged by the training loss over their last quarter. The model and the random number generators are left
    as they were.

    Args:
        model: as it is at the start of the training.
        loss: (model, batch) -> the mean loss of a batch, computed with the model that it is called with.
        batches: a list or a DataLoader of training batches, for each short run from its beginning, and again where it
            ends.
        steps: of the full run, which follows a cosine to 0 after its warm-up.
        optimizer: a name of `adan-bench list optimizers`.
        warmup_steps: of the full run; 5% of it unless given.
        max_grad_norm: the limit of the gradient's norm, by `torch.nn.utils.clip_grad_norm_`; None: no limit.
        share: the length of a short run, as a share of the full one.
        trials: short runs, some of which are stopped early.
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
    full = RunConfig(optimizer=optimizer, steps=steps, warmup=warmup, role="tune")
    small = short(full, share)
    search = short_runs(spec, full, small, settings, trials)
    device, tried = next(model.parameters()).device, list[RunRecord]()
    before = rng_state(device)
    try:
        while told := search.following(tried):
            middle = math.log(told[0]["lr"] * told[-1]["lr"]) / 2
            for own in sorted(told, key=lambda values: abs(math.log(values["lr"]) - middle)):  # good ones first
                set_rng_state(before, device)
                config = replace(small, settings=own)
                tried.append(_run(copy.deepcopy(model), loss, batches, config, max_grad_norm, search, tried))
    finally:
        set_rng_state(before, device)
    if all(record.final is None for record in tried):
        raise UsageError(f"{optimizer}: short runs diverged at all {len(tried)} rates; look at the loss and the data")
    return suggestion(spec, full, search.chosen(tried), tried)


def _run(
    model: nn.Module,
    loss: Loss,
    batches: Iterable[Any],
    config: RunConfig,
    limit: float | None,
    search: ShortRuns,
    tried: list[RunRecord],
) -> RunRecord:
    """One short run in memory, until it falls behind those before it."""
    spec = optimizers.get_optimizer(config.optimizer)
    groups: Any = by_role(model.parameters(), model, {}) if spec.by_role else model.parameters()
    optimizer = optimizers.build(spec, groups, config.settings)
    factor, peaks = schedule(config.schedule, config.steps, config.warmup), [g["lr"] for g in optimizer.param_groups]
    judged = {"metric": "loss", "higher_is_better": False}
    record = RunRecord(Path(f"tune-{len(tried):02d}"), config, judged, spec.facts(), {}, [], None)
    model.train()
    step, status, losses = 0, "finished", list[Tensor]()
    for batch in chain.from_iterable(repeat(batches)):
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * factor(step)
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        if not step and all(p.grad is None for p in model.parameters()):
            raise UsageError("loss: it gave the model no gradients; compute it with the model that it is called with")
        if limit is not None:
            nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        step += 1
        losses.append(value.detach())
        if step % config.eval_every:
            continue
        mean = torch.stack(losses).mean().item()
        losses.clear()
        record.metrics.append({"kind": "eval", "step": step, "seconds": 0.0, "loss": mean})
        if not math.isfinite(mean):
            status = "diverged"
        elif step in search.rungs and record not in survivors(search.eta, [*tried, record], step):
            status = "stopped"
        if status != "finished" or step >= config.steps:
            break
    return replace(record, result={"status": status, "step": step, "final": {"loss": mean}})
