"""Which runs the paper's tables need, as a pure function of tables and choices: nothing is read, written or trained.

At the scale "paper" a run has the published settings, for which the table's file has a source or says that they are
guesses. At "smoke" and "small" models and data are others, so the settings are the harness's own (tuned where somebody
tuned them), except where the table is about settings. A run that several tables need is made once.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from adan_bench.config import TUNING_SEED, Origin, RunConfig
from adan_bench.errors import UsageError
from adan_bench.tables import Column, Recipe, Row, Table
from adan_bench.task import SCALES, Settings, Workload
from adan_bench.training.configure import configure
from adan_bench.training.optimizers import get_optimizer
from adan_bench.workloads.registry import get_workload

FLOOR = 1 / 3  # at smaller scales the longest run of a table has its workload's budget, the others no less than this
CYCLES = 6  # without a radius given, the first cycle between restarts lasts a sixth of a run


@dataclass(frozen=True)
class PlannedRun:
    """A run, and the runs of the plan that it waits for.

    before: the run whose weights it starts from (`config.init` may also name weights from elsewhere).
    pilot: the run that measures the radius of the restart condition; `config` is complete once that has ended.
    """

    config: RunConfig
    path: Path
    before: Path | None = None
    pilot: Path | None = None

    @property
    def waits_for(self) -> list[Path]:
        return [path for path in (self.before, self.pilot) if path is not None]


@dataclass(frozen=True)
class Cell:
    """A cell of a table with the runs, by seed, whose results it shows.

    absent: why it has none, where what it needs is not here or its scale does not have it.
    """

    table: Table
    row: Row
    column: Column
    printed: str
    runs: tuple[PlannedRun, ...] = ()
    before: RunConfig | None = None
    absent: str = ""


@dataclass
class Plan:
    """The cells of some tables, and every run that they need once, by its folder."""

    cells: list[Cell] = field(default_factory=list)
    runs: dict[Path, PlannedRun] = field(default_factory=dict)


def plan(
    tables: Sequence[Table], chosen: RunConfig, out: Path, seeds: int | None = None, radius: float | None = None
) -> Plan:
    """The runs of the tables under the folder `out`.

    seeds: for every cell; as the table says unless given. radius: of rows with restarts; by a pilot run unless given.
    """
    result = Plan()
    for table in tables:
        for row, column, printed in table.planned(chosen.scale):
            cell = Cell(table, row, column, printed)
            if column.workload is not None:
                try:
                    cell = _planned(cell, chosen, out, seeds or table.runs[chosen.scale].seeds, radius, result.runs)
                except UsageError as error:
                    cell = replace(cell, absent=str(error))
            result.cells.append(cell)
    return result


def _planned(
    cell: Cell, chosen: RunConfig, out: Path, seeds: int, radius: float | None, known: dict[Path, PlannedRun]
) -> Cell:
    assert cell.column.workload is not None
    workload = get_workload(cell.column.workload, chosen.scale)
    share, share_before = _shares(cell, chosen.scale)
    config, before = _config(cell, workload, chosen, share, cell.row.fixed), None
    if workload.after is not None and chosen.init is None:
        earlier = get_workload(workload.after, chosen.scale)
        before = _config(cell, earlier, chosen, share_before, cell.row.before)
    runs = []
    for seed in range(seeds):
        run = PlannedRun(replace(config, seed=seed, keep_weights=cell.column.evaluation is not None), Path())
        if before is not None:
            first = _placed(PlannedRun(replace(before, seed=seed, keep_weights=True), Path()), out / "runs")
            known[first.path] = first
            run = replace(run, config=replace(run.config, init=first.path), before=first.path)
        if cell.row.restart:
            run = _with_restarts(run, out, radius, known)
        run = _placed(run, out / "runs")
        if run.path in known and known[run.path].config.keep_weights:
            run = replace(run, config=replace(run.config, keep_weights=True))
        known[run.path] = run
        runs.append(run)
    return replace(cell, runs=tuple(runs), before=before)


def _with_restarts(run: PlannedRun, out: Path, radius: float | None, known: dict[Path, PlannedRun]) -> PlannedRun:
    """With the restart condition: its radius is given, or measured by a pilot run with a seed of its own."""
    config = run.config
    if radius is not None:
        return replace(run, config=replace(config, settings={**config.settings, "restart": {"radius": radius}}))
    trial = replace(
        config,
        seed=TUNING_SEED,
        role="pilot",
        stop_after=max(1, config.steps // CYCLES),
        settings={**config.settings, "restart": {"probe": True}},
    )
    pilot = _placed(PlannedRun(trial, Path(), run.before), out / "pilots")
    known.setdefault(pilot.path, pilot)
    return replace(run, pilot=pilot.path)


def _placed(run: PlannedRun, folder: Path) -> PlannedRun:
    """With its folder, which is the same for the same content."""
    config, content = run.config, run.config.identity()
    for name in ("seed", "keep_weights"):
        content.pop(name, None)
    content["waits for"] = [path.parent.name for path in run.waits_for]  # which has their own digest
    if run.before is not None:
        content.pop("init")
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
    return replace(run, path=folder / config.workload / f"{config.optimizer}-{digest}" / f"seed-{config.seed}")


def _shares(cell: Cell, scale: str) -> tuple[float, float]:
    """The shares of the workload's budget, and of that of the one before it, that a cell's run has."""
    cells = [(cell.row, cell.column)]
    cells += [(r, c) for r, c, _ in cell.table.planned(scale) if c.workload == cell.column.workload]
    budgets = [_ratio(column.budget) * _ratio(row.budget) for row, column in cells]
    before = [_ratio(column.before) for _, column in cells]
    if scale == SCALES[-1]:
        return budgets[0], before[0]
    return max(FLOOR, budgets[0] / max(budgets)), max(FLOOR, before[0] / max(before))


def _config(cell: Cell, workload: Workload, chosen: RunConfig, share: float, fixed: Settings) -> RunConfig:
    table, row, column = cell.table, cell.row, cell.column
    paper, spec = chosen.scale == SCALES[-1], get_optimizer(row.optimizer)
    recipe = table.published(spec.name, workload.name, column) if paper else Recipe(())
    if paper:
        budget = published_budget(table, recipe, workload, column, chosen, share, spec.passes)
    else:
        batch_size = max(1, round(workload.batch_size * column.batch_factor))
        examples = (chosen.steps or workload.steps) * share * workload.batch_size
        steps = max(1, round(examples / batch_size))
        budget = replace(chosen, batch_size=batch_size, steps=steps)
    growth = budget.batch_size / workload.batch_size
    config = configure(workload, spec, budget)
    stated = recipe.merged("settings")
    settings, origin = {**config.settings, **stated, **fixed}, config.origin
    if paper:
        guesses = dict.fromkeys([*(() if "lr" in stated else ("lr",)), *recipe.guesses])
        origin = Origin(kind="published", source=recipe.sources) if recipe.sources else origin
        origin = replace(origin, guesses=tuple(guesses))
    if column.batch_size is not None and "lr" not in stated and growth != 1:
        settings["lr"] = float(f"{settings['lr'] * math.sqrt(growth):.4g}")
        origin = replace(origin, batch_sizes=(budget.batch_size, workload.batch_size))
    origin = replace(origin, fixed=tuple(fixed), at_edge=origin.at_edge and "lr" not in fixed)
    min_lr = recipe.last("min_lr")
    return replace(
        config,
        settings=settings,
        origin=origin,
        floor=min_lr / settings["lr"] if min_lr else config.floor,
    )


def published_budget(
    table: Table, recipe: Recipe, workload: Workload, column: Column, chosen: RunConfig, share: float, passes: int
) -> RunConfig:
    """The choices with the published length, schedule, clipping and options of a run; not its lowest rate.

    Epochs of warm-up and cooldown are so many, however long the run; the columns are epochs, so that an optimizer with
    two gradients per update (SAM) has twice as many gradients.
    """
    batch_size = column.batch_size or recipe.last("batch_size") or workload.batch_size
    warmup, cooldown = recipe.last("warmup") or table.warmup, recipe.last("cooldown")
    extra = _ratio(cooldown) / share if cooldown else 0.0
    examples = (chosen.steps or workload.steps) * share * workload.batch_size
    clip = recipe.last("clip")
    return replace(
        chosen,
        batch_size=batch_size,
        steps=max(1, round(examples * (1 + extra) / batch_size)) * passes,
        schedule=recipe.last("schedule") or table.schedule or chosen.schedule,
        warmup=min(1.0, _ratio(warmup) / share / (1 + extra)) if warmup else chosen.warmup,
        cooldown=extra / (1 + extra),
        clip=chosen.clip if clip is None else clip,
        ema=recipe.last("ema") or chosen.ema,
        nonmono=recipe.last("nonmono") or chosen.nonmono,
        training=recipe.merged("training") or chosen.training,
    )


def _ratio(pair: tuple[float, float]) -> float:
    return pair[0] / pair[1]
