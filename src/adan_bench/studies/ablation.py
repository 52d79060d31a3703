"""The paper's table "component" on a workload of this package: what each part of Adan adds.

The heavy-ball row runs with AdamW's settings for the workload, the others with Adan's, tuned where they are tuned.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adan_bench.records.environment import describe
from adan_bench.records.store import RunStore, read_run
from adan_bench.reports.comparison import write_report
from adan_bench.spec import RunConfig, RunRecord, UsageError, Workload
from adan_bench.studies.comparison import TUNING_SEED
from adan_bench.theory.components import ROWS
from adan_bench.training.configure import configure
from adan_bench.training.optimizers import get_optimizer
from adan_bench.training.trainer import Trainer
from adan_bench.workloads.registry import get_workload

CYCLES = 6  # without a radius given, the first cycle lasts a sixth of a run


@dataclass(frozen=True)
class Result:
    """One row, by seed: training loss over the last tenth, metric at the end, how many restarts.

    A run that diverged has no loss and no metric.
    """

    name: str
    losses: list[float]
    metrics: list[float]
    restarts: list[int]
    paper: float


def run(
    workload: str,
    seeds: int,
    options: RunConfig,
    out: Path,
    radius: float | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> tuple[list[Result], float, Path]:
    """Run the four rows with every seed: the results, the radius of Eqn 8, and the report's page."""
    if out.exists() and any(out.rglob("config.json")):
        raise UsageError(f"--out {out}: it already holds runs; name another folder")
    configs = {name: configure_row(get_workload(workload, options.scale), name, options) for name in ROWS}
    last = list(ROWS)[-1]
    if radius is None:
        radius = pilot_radius(configs[last])
        tell(f"radius {radius:.4g}: the first cycle of a pilot run lasts 1/{CYCLES} of it")
    configs[last] = replace(configs[last], settings={**configs[last].settings, "radius": radius})
    records: dict[str, list[RunRecord]] = {name: [] for name in ROWS}
    restarts: dict[str, list[int]] = {name: [] for name in ROWS}
    for seed in range(seeds):
        for name, config in configs.items():
            record, count = _train(replace(config, seed=seed), out / workload / name / f"seed-{seed}")
            records[name].append(record)
            restarts[name].append(count)
            outcome = f"training loss {training_loss(record):.4f}" if record.status == "finished" else record.status
            tell(f"seed {seed} {name}: {outcome}, {count} restarts")
    page = write_report([record for found in records.values() for record in found], out)
    results = []
    for name, found in records.items():
        losses = [training_loss(record) for record in found if record.status == "finished"]
        metrics = [record.final for record in found if record.final is not None]
        results.append(Result(name, losses, metrics, restarts[name], ROWS[name][1]))
    return results, radius, page


def configure_row(workload: Workload, name: str, options: RunConfig) -> RunConfig:
    """The configuration of one row: AdamW's settings for heavy ball, Adan's for the others."""
    flags = ROWS[name][0]
    base = get_optimizer("adan" if flags["nesterov"] else "adamw")
    config = configure(workload, base, options)
    settings = dict(config.settings)
    if not flags["nesterov"]:
        b1, b2 = settings.get("betas", (0.9, 0.999))
        settings["betas"] = (b1, 0.0, b2)
    return replace(config, optimizer=name, settings={**settings, **flags})


def pilot_radius(config: RunConfig) -> float:
    """R such that the first cycle lasts a sixth of the run: by a run without restarts, with a seed of its own."""
    trainer = Trainer(replace(config, seed=TUNING_SEED, settings={**config.settings, "radius": math.inf}))
    trainer.forward.train()
    for _ in range(max(1, config.steps // CYCLES)):
        trainer.update()
    optimizer: Any = trainer.optimizer
    return math.sqrt(optimizer.accumulated)


def _train(config: RunConfig, path: Path) -> tuple[RunRecord, int]:
    trainer, store = Trainer(config), RunStore(path)
    environment = {**describe(config.device), "data": trainer.task.note, "parameters": trainer.size}
    store.create(config, trainer.workload.facts(), trainer.spec.facts(), environment)
    trainer.train(store)
    optimizer: Any = trainer.optimizer
    return read_run(path), len(optimizer.restarts)


def training_loss(record: RunRecord) -> float:
    """The training loss over the last tenth of a run."""
    values = [value for step, _, value in record.curve("train", "loss") if step > 0.9 * record.config.steps]
    return sum(values) / len(values)
