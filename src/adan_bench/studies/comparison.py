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
from adan_bench.spec import TUNING_SEED, OptimizerSpec, Pause, RunConfig, RunRecord, Settings, UsageError, Workload
from adan_bench.studies.halving import rungs, stop_trial, survivors
from adan_bench.training import optimizers
from adan_bench.training.configure import configure
from adan_bench.training.pool import Job, OnEvent, open_pool
from adan_bench.workloads.registry import get_workload

Key = tuple[str, str]  # (folder of the workload, optimizer)

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
        deadline: float | None = None,
    ) -> None:
        self.out, self.resume = out, resume
        self.on_event: OnEvent | None = None
        self.overrides = dict(overrides or {})
        check_empty(out, resume)
        specs = [optimizers.get_optimizer(name) for name in names]
        self.bases: dict[Key, RunConfig] = {}
        self.tuning: dict[Key, dict[str, Any]] = {}  # how the settings were found, for the record
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
        self.pool = open_pool(out, chosen, deadline)

    def __enter__(self) -> Study:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.close()

    def tune(self, trials: int, eta: int = 1) -> None:
        """Choose every optimizer's settings by the same number of trials; with eta > 1 only the best are whole."""
        if "lr" in self.overrides:
            raise UsageError("--set lr leaves nothing to tune: leave out one of the two")
        rates, others = split_trials(trials)
        judged = {
            key: rungs(eta, rates, base.stop_after or base.steps, base.eval_every) for key, base in self.bases.items()
        }
        first = {
            key: [
                {**_default_settings(key[1]), **self.overrides, "lr": lr}
                for lr in learning_rates(optimizers.get_optimizer(key[1]), rates)
            ]
            for key in self.bases
        }
        records: dict[Key, list[RunRecord]] = {key: [] for key in self.bases}
        self._trials(first, records, eta, judged)
        second = {
            key: [{**variant, **self.overrides} for variant in _second_stage(key[1], records[key])[:others]]
            for key in self.bases
        }
        self._trials(second, records, eta, judged)
        for key, found in records.items():
            halved = f", halved by {eta} at steps {', '.join(map(str, judged[key]))}," if judged[key] else ""
            origin = f"tuned here in {trials} trials{halved} with seed {TUNING_SEED}"
            self.bases[key] = replace(self.bases[key], settings=_best(found), origin=origin)
            self.tuning[key] = {"trials": trials}
            if eta > 1:
                gradients = sum(record.result["step"] for record in found if record.result)
                self.tuning[key] |= {"eta": eta, "rungs": judged[key], "gradients": gradients}

    def _trials(
        self,
        settings: Mapping[Key, list[Settings]],
        records: dict[Key, list[RunRecord]],
        eta: int,
        judged: Mapping[Key, list[int]],
    ) -> None:
        """Make the trials of a stage and add their records; those that pass a rung go on from their checkpoints."""
        work: dict[Key, list[Job]] = {}
        for key, variants in settings.items():
            for number, variant in enumerate(variants, len(records[key])):
                config = replace(self.bases[key], settings=variant, seed=TUNING_SEED, role="tune", origin="trial")
                job = Job(config, self.out / key[0] / key[1] / f"tune-{number:02d}", self.resume)
                work.setdefault(key, []).append(job)
        left = {key: list(jobs) for key, jobs in work.items()}
        for i in range(max(map(len, judged.values()), default=0)):
            at = {key: judged[key][i] for key in work if i < len(judged[key])}
            paused = [replace(job, pause=Pause(step=at[key])) for key in at for job in left[key]]
            self.pool.run(paused, self.on_event)
            for key, rung in at.items():
                there = [*records[key], *(read_run(job.path) for job in work[key])]
                passed = [record.path for record in survivors(eta, there, rung)]
                for record in there:
                    if record.result is None and record.path not in passed:
                        stop_trial(record, rung)
                left[key] = [replace(job, resume=True) for job in left[key] if job.path in passed]
        self.pool.run([job for jobs in left.values() for job in jobs], self.on_event)
        for key, jobs in work.items():
            records[key] += [read_run(job.path) for job in jobs]

    def compare(self, seeds: int) -> None:
        """Run every optimizer with every seed. Seed by seed, so that a study cut short has something of everything."""
        work = [
            Job(replace(config, seed=seed), self.out / folder / name / f"seed-{seed}", self.resume)
            for seed in range(seeds)
            for (folder, name), config in self.bases.items()
        ]
        self.pool.run(work, self.on_event)

    def save(self, path: Path) -> None:
        """Merge the chosen settings into a file of tuned defaults."""
        content = json.loads(path.read_text()) if path.exists() else {"workloads": {}}
        for (folder, name), config in sorted(self.bases.items()):
            entry = {
                "settings": config.settings,
                **self.tuning[folder, name],
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
