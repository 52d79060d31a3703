"""Which runs make a comparison: configurations, the trials of a tuning, the seeds of a comparison.

Tuning is the same for every optimizer: the same number of trials, the same number of learning rates over a range of the
same width around its declared centre, the same schedule, and a seed that no reported run uses.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from adan_bench.records.store import check_empty, read_run, write_json
from adan_bench.spec import TUNING_SEED, OptimizerSpec, RunConfig, RunRecord, Settings, UsageError, Workload
from adan_bench.training import optimizers
from adan_bench.training.configure import configure
from adan_bench.training.pool import Job, OnEvent, Pool
from adan_bench.workloads.registry import get_workload

DECADES = 2.5  # width of every optimizer's range of learning rates


def learning_rates(spec: OptimizerSpec, count: int) -> list[float]:
    """Learning rates over the optimizer's range, equally far apart, rounded to three digits.

    >>> learning_rates(OptimizerSpec("adam", "torch.optim:Adam", lr=1e-3), 3)
    [5.62e-05, 0.001, 0.0178]
    """
    if count == 1:
        return [spec.lr]
    exponents = [DECADES * (i / (count - 1) - 0.5) for i in range(count)]
    return [float(f"{spec.lr * 10**exponent:.3g}") for exponent in exponents]


def split_trials(trials: int) -> tuple[int, int]:
    """How many of the trials go to the learning rate, and how many to the other choices: three quarters, one quarter.

    >>> split_trials(8), split_trials(4), split_trials(1)
    ((6, 2), (3, 1), (1, 0))
    """
    others = min(3, trials // 4)
    return trials - others, others


class Study:
    """Comparisons of optimizers on workloads under one folder of records."""

    def __init__(
        self,
        workloads: Sequence[str],
        names: Sequence[str],
        chosen: RunConfig,
        *,
        out: Path,
        resume: bool = False,
        overrides: Mapping[str, Any] | None = None,
        batch_sizes: Sequence[int] = (),
    ) -> None:
        self.out, self.resume = out, resume
        self.on_event: OnEvent | None = None
        self.pool = Pool(chosen.jobs, out)
        self.overrides = dict(overrides or {})
        check_empty(out, resume)
        specs = [optimizers.get_optimizer(name) for name in names]
        self.bases: dict[tuple[str, str], RunConfig] = {}  # (folder of the workload, optimizer) -> its configuration
        for name in workloads:
            workload = get_workload(name, chosen.scale)
            for size in batch_sizes or [chosen.batch_size or workload.batch_size]:
                at_size = _at_batch_size(workload, chosen, size) if batch_sizes else chosen
                folder = f"{name}-b{size}" if batch_sizes else name
                for spec in specs:
                    base = configure(workload, spec, at_size, overrides)
                    if batch_sizes:
                        base = _scaled(base, workload, size)
                    self.bases[folder, spec.name] = base

    def __enter__(self) -> Study:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.close()

    def tune(self, trials: int) -> None:
        """Choose every optimizer's settings by the same number of trials."""
        if "lr" in self.overrides:
            raise UsageError("--set lr leaves nothing to tune: leave out one of the two")
        rates, others = split_trials(trials)
        first = {
            key: [
                {**_default_settings(key[1]), **self.overrides, "lr": lr}
                for lr in learning_rates(optimizers.get_optimizer(key[1]), rates)
            ]
            for key in self.bases
        }
        records = self._trials(first, start=0)
        second = {
            key: [{**variant, **self.overrides} for variant in _second_stage(key[1], records[key])[:others]]
            for key in self.bases
        }
        for key, more in self._trials(second, start=rates).items():
            records[key] += more
        for key, found in records.items():
            origin = f"tuned here in {trials} trials with seed {TUNING_SEED}"
            self.bases[key] = replace(self.bases[key], settings=_best(found), origin=origin)

    def _trials(
        self, settings: Mapping[tuple[str, str], list[Settings]], start: int
    ) -> dict[tuple[str, str], list[RunRecord]]:
        work, owners = [], []
        for key, variants in settings.items():
            for number, variant in enumerate(variants, start):
                config = replace(self.bases[key], settings=variant, seed=TUNING_SEED, role="tune", origin="trial")
                work.append(Job(config, self.out / key[0] / key[1] / f"tune-{number:02d}", self.resume))
                owners.append(key)
        self.pool.run(work, self.on_event)
        found: dict[tuple[str, str], list[RunRecord]] = {key: [] for key in settings}
        for key, job in zip(owners, work, strict=True):
            found[key].append(read_run(job.path))
        return found

    def compare(self, seeds: int) -> None:
        """Run every optimizer with every seed. Seed by seed, so that a study cut short has something of everything."""
        work = [
            Job(replace(config, seed=seed), self.out / folder / name / f"seed-{seed}", self.resume)
            for seed in range(seeds)
            for (folder, name), config in self.bases.items()
        ]
        self.pool.run(work, self.on_event)

    def save(self, path: Path, trials: int) -> None:
        """Merge the chosen settings into a file of tuned defaults."""
        content = json.loads(path.read_text()) if path.exists() else {"workloads": {}}
        for (folder, name), config in sorted(self.bases.items()):
            entry = {
                "settings": config.settings,
                "trials": trials,
                "steps": config.steps,
                "batch_size": config.batch_size,
            }
            content["workloads"].setdefault(folder, {})[name] = entry
        write_json(path, content)


def rank(record: RunRecord) -> float:
    """The lower the better; a run that diverged or failed comes last."""
    if record.final is None:
        return math.inf
    return -record.final if record.workload["higher_is_better"] else record.final


def _best(records: Sequence[RunRecord]) -> Settings:
    return dict(min(records, key=rank).config.settings)


def _second_stage(name: str, records: Sequence[RunRecord]) -> list[Settings]:
    """What to try after the learning rates: one more rate where the best was the last of its side, then the choices."""
    best = _best(records)
    rates = [float(r.config.settings["lr"]) for r in records]
    variants = []
    if len(rates) > 1 and best["lr"] in (rates[0], rates[-1]):
        step = (rates[-1] / rates[0]) ** (1 / (len(rates) - 1))
        beyond = best["lr"] * step if best["lr"] == rates[-1] else best["lr"] / step
        variants.append({**best, "lr": float(f"{beyond:.3g}")})
    return variants + [{**best, **choice} for choice in optimizers.get_optimizer(name).choices]


def _default_settings(name: str) -> Settings:
    return optimizers.defaults(optimizers.get_optimizer(name))


def _at_batch_size(workload: Workload, chosen: RunConfig, size: int) -> RunConfig:
    """A sweep keeps the number of examples: twice the batch, half the steps."""
    total = (chosen.steps or workload.steps) * workload.batch_size
    return replace(chosen, batch_size=size, steps=max(1, round(total / size)))


def _scaled(config: RunConfig, workload: Workload, size: int) -> RunConfig:
    """The paper's square-root rule for the learning rate, the same for every optimizer."""
    factor = math.sqrt(size / workload.batch_size)
    settings = {**config.settings, "lr": float(f"{config.settings['lr'] * factor:.4g}")}
    return replace(config, settings=settings, origin=f"{config.origin}, lr × √({size}/{workload.batch_size})")
