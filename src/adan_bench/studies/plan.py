"""Which runs the paper's tables need, as a pure function of tables and choices: `plan` reads and writes nothing.

`Planner` tells their jobs. Data, packages and devices that a run needs are looked for when it is to be made, by
`studies.paper.present`.

At the scale "paper" a run has the published settings, for which the table's file has a source or says that they are
guesses. At "smoke" and "small" models and data are others, so the settings are the harness's own (tuned where somebody
tuned them), except where the table is about settings. A run that several tables need is made once.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from adan_bench.config import TRAINING_LOSS, TUNING_SEED, Origin, RunConfig
from adan_bench.errors import UsageError
from adan_bench.records.stats import best_trial
from adan_bench.records.store import RunStore, read_run
from adan_bench.studies.arms import Arm
from adan_bench.tables import (
    RESTARTS,
    PaperTable,
    PublishedSettings,
    Selection,
    TableColumn,
    TableRow,
    merged,
)
from adan_bench.task import SCALES, Settings, Workload
from adan_bench.training.configure import complete
from adan_bench.training.optimizers import get_optimizer
from adan_bench.workloads.registry import get_workload

FLOOR = 1 / 3  # at smaller scales the longest run of a table has its workload's budget, the others no less than this
CYCLES = 6  # without a radius given, the first cycle between restarts lasts a sixth of a run
TRIAL = 10  # a trial of a learning rate is a whole training of a tenth of the steps


@dataclass(eq=False)
class PaperArm(Arm):
    """Runs of one content, which several cells may share.

    choosers: of one run each: a pilot, which measures the radius of the restart condition; trials, of which the best
        one's learning rate is this arm's.
    """

    choosers: Sequence[Arm] = ()

    def waits_for(self, seed: int | None) -> list[Path]:
        """The runs before one of this seed; None: those alone that all seeds wait for."""
        start = None if seed is None else self.start_path(seed)
        return [*([] if start is None else [start]), *(arm.path(TUNING_SEED) for arm in self.choosers)]

    def blocked(self, seed: int | None) -> tuple[str, str] | None:
        """The reason why a run cannot be made, from the records of those it waits for."""
        trials = []
        for path in self.waits_for(seed):
            if not RunStore(path).ended:
                return "failed", f"{path.parents[1].name}, which comes before it, was not run"
            record = read_run(path)
            result = record.result or {}
            if record.config.role == "tune" and record.status in ("finished", "diverged"):
                trials.append(record)
            elif record.status != "finished":
                status = "absent" if result.get("absent") else "failed"
                why = f"{record.config.workload}, which comes before it: {result.get('error', record.status)}"
                return ("diverged" if record.status == "diverged" else status), why
        if trials and all(trial.final is None for trial in trials):
            return "diverged", f"all {len(trials)} trials of its learning rate diverged"
        return None

    def settle(self) -> None:
        """Give `base` the radius that the pilot measured and the rate that the trials chose, once these are there."""
        if self.settled or self.blocked(None):
            return
        records = [read_run(path) for path in self.waits_for(None)]
        for pilot in (record for record in records if record.config.role == "pilot"):
            assert pilot.result is not None
            self.base = with_settings(self.base, restart={"radius": pilot.result["restarts"]["radius"]})
        if trials := [record for record in records if record.config.role == "tune"]:
            rates, best = [trial.lr for trial in trials], best_trial(trials).lr
            origin = replace(self.base.origin, trials=len(trials), at_edge=best in (min(rates), max(rates)))
            self.base = at_rate(replace(self.base, origin=origin), best)
        self.settled = True


@dataclass(frozen=True)
class PlannedCell:
    """A cell of a table with the runs whose results it shows: those of an arm with its seeds.

    absent: why the cell has no runs.
    """

    table: PaperTable
    row: TableRow
    column: TableColumn
    printed: str
    arm: PaperArm | None = None
    seeds: Sequence[int] = ()
    absent: str = ""

    @property
    def runs(self) -> list[Path]:
        return [self.arm.path(seed) for seed in self.seeds] if self.arm is not None else []


@dataclass
class PaperPlan:
    """The cells of some tables, and the arms that they need, by folder."""

    cells: list[PlannedCell] = field(default_factory=list)
    arms: dict[Path, PaperArm] = field(default_factory=dict)

    @property
    def runs(self) -> dict[Path, RunConfig]:
        """Every run once, as far as its configuration is known, after those that it waits for."""
        return {arm.path(s): replace(arm.base, seed=s) for arm in self.arms.values() for s in arm.seeds}


def plan(
    tables: Sequence[PaperTable],
    chosen: RunConfig,
    out: Path,
    seeds: int | None = None,
    radius: float | None = None,
    only: Sequence[str] = (),
    changed: Mapping[str, Settings] | None = None,
) -> PaperPlan:
    """The runs of the tables under the folder `out`, each of `chosen.steps` updates where the user gave them.

    seeds: for every cell; as the table says unless given. radius: of rows with restarts; by a pilot run unless given.
    only: "ROW", "COLUMN" or "ROW,COLUMN" of the cells; changed: settings by optimizer.
    """
    result = PaperPlan()
    for table in tables:
        for row, column, printed in wanted(table, chosen.scale, only):
            cell, own = PlannedCell(table, row, column, printed), (changed or {}).get(row.optimizer, {})
            if column.workload is not None:
                try:
                    cell = _planned(cell, chosen, out, seeds, radius, own, result.arms)
                except UsageError as error:
                    cell = replace(cell, absent=str(error))
            result.cells.append(cell)
    return result


def wanted(table: PaperTable, scale: str, only: Sequence[str]) -> list[tuple[TableRow, TableColumn, str]]:
    """The cells of a scale that the user named, all where he named none; a mean of a row comes with the whole row."""
    names = {_bare(name) for name in only}
    return [
        (row, column, printed)
        for row, column, printed in table.planned(scale)
        if not names
        or _bare(row.head) in names
        or (not column.mean and {_bare(column.head), _bare(f"{row.head},{column.head}")} & names)
    ]


def on_workload(table: PaperTable, name: str) -> PaperTable:
    """A table's rows on a workload of the user's: training loss, metric and restarts, none of them published."""
    metrics = {"training loss": TRAINING_LOSS, "metric at the end": None, "restarts": RESTARTS}
    columns = tuple(TableColumn(f"{name}, {head}", name, metric=metric) for head, metric in metrics.items())
    rows = tuple(replace(row, values=("unpublished",) * len(columns), budget=(1, 1)) for row in table.rows)
    runs = {scale: Selection(seeds=chosen.seeds) for scale, chosen in table.runs.items()}
    own = replace(table, title=f"{table.title}, on {name}", caption="", metric="by column", percent=False, notes=())
    return replace(own, columns=columns, rows=rows, runs=runs, settings=(), run={}, variances={}, curves=False)


def check_only(tables: Sequence[PaperTable], scale: str, only: Sequence[str]) -> None:
    """Refuse a name of cells that none of the tables has at this scale."""
    for name in only:
        if not any(wanted(table, scale, [name]) for table in tables):
            cells = [(row, column) for table in tables for row, column, _ in table.planned(scale)]
            rows, columns = (", ".join(dict.fromkeys(pair[i].head for pair in cells)) for i in (0, 1))
            raise UsageError(
                f"--only {name}: no such cell at the scale {scale}; write ROW, COLUMN or ROW,COLUMN; rows: {rows}; "
                f"columns: {columns}"
            )


def _bare(name: str) -> str:
    return "".join(name.casefold().split())


def _planned(
    cell: PlannedCell,
    chosen: RunConfig,
    out: Path,
    seeds: int | None,
    radius: float | None,
    changed: Settings,
    known: dict[Path, PaperArm],
) -> PlannedCell:
    """A cell with its arm; arms that are new are added to `known`.

    changed: the user's settings in place of the table's, in the runs themselves and not in their pre-training.
    """
    assert cell.column.workload is not None
    table, selection = cell.table, cell.table.runs[chosen.scale]
    workload = get_workload(cell.column.workload, chosen.scale)
    share, share_before = _shares(cell, chosen.scale)
    config = _config(cell, workload, chosen, share, cell.row.fixed, changed)
    first = selection.first_seed
    own = range(first, first + (seeds or selection.seeds))
    arm = PaperArm(replace(config, keep_weights=cell.column.evaluation is not None), out, own)
    if workload.after is not None and chosen.init is None:
        earlier = get_workload(workload.after, chosen.scale)
        before = _config(cell, earlier, chosen, share_before, cell.row.before)
        arm.start_seed = first if table.one_before else None
        needed = own[:1] if table.one_before else own
        arm.start = _placed(PaperArm(replace(before, keep_weights=True), out, needed), "runs", known)
    if cell.row.restart and radius is not None:
        arm.base = with_settings(arm.base, restart={"radius": radius})
    elif cell.row.restart:
        stop_after = max(1, config.steps // CYCLES)
        probe = replace(with_settings(arm.base, restart={"probe": True}), role="pilot", stop_after=stop_after)
        arm.choosers = [_chooser(arm, probe, "pilots", known)]
    if chosen.scale == SCALES[-1] and "lr" not in {**cell.row.fixed, **changed}:
        # Trials see no image or text of the test split.
        steps = max(get_optimizer(config.optimizer).passes, config.steps // TRIAL)
        short = replace(arm.base, steps=steps, log_every=max(1, steps // 60), role="tune")
        rates = table.published(config.optimizer, workload.name, cell.column).rates
        trials = [_chooser(arm, at_rate(short, rate), "trials", known) for rate in rates]
        arm.choosers = [*arm.choosers, *trials]
    return replace(cell, arm=_placed(arm, "runs", known), seeds=own)


def with_settings(config: RunConfig, **settings: Any) -> RunConfig:
    return replace(config, settings={**config.settings, **settings})


def at_rate(config: RunConfig, lr: float) -> RunConfig:
    """The run with another learning rate and the lowest rate that it had."""
    return replace(with_settings(config, lr=lr), floor=config.floor * config.settings["lr"] / lr)


def _chooser(arm: PaperArm, base: RunConfig, kind: str, known: dict[Path, PaperArm]) -> PaperArm:
    """A run with a seed of its own that chooses a setting of an arm, and waits for what its first run waits for."""
    return _placed(replace(arm, base=base, seeds=(TUNING_SEED,), start_seed=arm.seeds[0]), kind, known)


def _placed(arm: PaperArm, kind: str, known: dict[Path, PaperArm]) -> PaperArm:
    """The arm in its folder, which is the same for the same content; where one is known there, with its seeds too."""
    config, content = arm.base, arm.base.identity()
    for name in ("seed", "keep_weights"):
        content.pop(name, None)
    before = (arm.start, *arm.choosers)
    content["waits for"] = [other.folder.name for other in before if other is not None]  # which has their own digest
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
    arm.folder = arm.folder / kind / config.workload / f"{config.optimizer}-{digest}"
    there = known.setdefault(arm.folder, arm)
    there.seeds = sorted({*there.seeds, *arm.seeds})
    there.base = replace(there.base, keep_weights=there.base.keep_weights or config.keep_weights)
    return there


def _shares(cell: PlannedCell, scale: str) -> tuple[float, float]:
    """The shares of the workload's budget, and of that of the one before it, that a cell's run has."""
    cells = [(cell.row, cell.column)]
    cells += [(r, c) for r, c, _ in cell.table.planned(scale) if c.workload == cell.column.workload]
    budgets = [_ratio(column.budget) * _ratio(row.budget) for row, column in cells]
    before = [_ratio(column.before) for _, column in cells]
    if scale == SCALES[-1]:
        return budgets[0], before[0]
    return max(FLOOR, budgets[0] / max(budgets)), max(FLOOR, before[0] / max(before))


def _config(
    cell: PlannedCell,
    workload: Workload,
    chosen: RunConfig,
    share: float,
    fixed: Settings,
    changed: Settings | None = None,
) -> RunConfig:
    table, column = cell.table, cell.column
    paper, spec = chosen.scale == SCALES[-1], get_optimizer(cell.row.optimizer)
    published = table.published(spec.name, workload.name, column) if paper else merged((), {})
    if paper:
        budget = published_run(published, workload, column, chosen, share, spec.passes)
    else:
        batch_size = max(1, round(workload.batch_size * column.batch_factor))
        examples = (chosen.steps or workload.steps) * share * workload.batch_size
        budget = replace(chosen, batch_size=batch_size, steps=max(1, round(examples / batch_size)))
    if chosen.steps:
        budget = replace(budget, steps=chosen.steps * spec.passes)
    config = complete(workload, spec, budget)
    stated, origin = published.run.get("settings", {}), config.origin
    settings = {**config.settings, **stated, **fixed}
    if published.source:
        origin = Origin(kind="published", source=published.source)
    if paper:
        guesses = dict.fromkeys([*(() if "lr" in stated else ("lr",)), *published.guess])
        origin = replace(origin, guesses=tuple(name for name in guesses if name not in fixed))
    if column.batch_size is not None and "lr" not in stated and config.batch_size != workload.batch_size:
        settings["lr"] = float(f"{settings['lr'] * math.sqrt(config.batch_size / workload.batch_size):.4g}")
        origin = replace(origin, batch_sizes=(config.batch_size, workload.batch_size))
    origin = replace(origin, fixed=tuple(fixed), at_edge=origin.at_edge and "lr" not in fixed)
    floor = published.run["min_lr"] / settings["lr"] if "min_lr" in published.run else config.floor
    steps = {"steps": config.steps} if chosen.steps and paper else {}  # else `tuned_for` says it
    if changed or steps:
        settings |= changed or {}
        origin = replace(origin, changed={**origin.changed, **(changed or {}), **steps})
    return replace(config, settings=settings, origin=origin, floor=floor)


def published_run(
    published: PublishedSettings, workload: Workload, column: TableColumn, chosen: RunConfig, share: float, passes: int
) -> RunConfig:
    """The choices with the published fields of a run; settings and lowest rate are still to come.

    Epochs of warm-up, of cooldown and between evaluations are so many, however long the run; the columns are epochs, so
    that an optimizer with two gradients per update (SAM) has twice as many gradients.
    """
    run = {name: value for name, value in published.run.items() if name not in ("settings", "min_lr")}
    batch_size = column.batch_size or run.get("batch_size") or workload.batch_size
    extra = _ratio(run["cooldown"]) / share if "cooldown" in run else 0.0
    steps = (chosen.steps or workload.steps) * workload.batch_size / batch_size
    if chosen.steps:  # the user's, in place of published ones
        run = {name: value for name, value in run.items() if name not in ("steps", "stop_after")}
    steps = run.pop("steps", steps)
    if "warmup" in run:
        run["warmup"] = min(1.0, _ratio(run["warmup"]) / share / (1 + extra))
    every = max(1, round(workload.eval_every * workload.batch_size / batch_size)) * passes
    run |= {"batch_size": batch_size, "cooldown": extra / (1 + extra), "eval_every": chosen.eval_every or every}
    return replace(chosen, **run, steps=max(1, round(steps * share * (1 + extra))) * passes)


def _ratio(pair: Sequence[float]) -> float:
    return pair[0] / pair[1]
