"""The paper's tables, run again: which runs a table needs, making them, and what came out beside what was published.

At the scale "paper" a run has the settings that the paper states, or refers to; what it leaves open is the harness's
default. At "smoke" and "small" models and data are others, so the settings are the harness's own (tuned where somebody
tuned them), except where the table is about settings. A run that several tables need is made once.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from adan_bench.records.environment import describe
from adan_bench.records.store import finite, read_run, write_json
from adan_bench.spec import SCALES, RunConfig, RunRecord, Settings, UsageError, Workload
from adan_bench.studies import speed
from adan_bench.studies.ablation import configure_row, pilot_radius, training_loss
from adan_bench.tables import UNSTATED, Column, Row, Table
from adan_bench.theory.components import ROWS
from adan_bench.training.configure import check_device, configure
from adan_bench.training.optimizers import get_optimizer
from adan_bench.training.pool import Job, OnEvent, Pool
from adan_bench.workloads.registry import get_workload

FLOOR = 1 / 3  # at smaller scales the longest run of a table has its workload's budget, the others no less than this
LOSS = "training loss"  # the metric that no evaluation reports: over the last tenth of a run
SPEED_STEPS = {"smoke": 5, "small": 10, "paper": 200}

DONE, ABSENT, FAILED, DIVERGED = "done", "absent", "failed", "diverged"


@dataclass
class Cell:
    """A cell of a table and what came of it here.

    status: "done", "absent" (what it needs is not here, or its scale does not have it), "failed" or "diverged";
        why: the reason where it is not "done".
    values: by seed, as shares where the table has percents.
    """

    table: Table
    row: Row
    column: Column
    printed: str
    status: str = DONE
    why: str = ""
    values: list[float] = field(default_factory=list)
    seeds: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    paths: list[Path] = field(default_factory=list)

    def fail(self, status: str, why: str) -> None:
        self.status, self.why = status, why

    def to_json(self) -> dict[str, Any]:
        return {
            "row": self.row.head,
            "column": self.column.head,
            "optimizer": self.row.optimizer,
            "workload": self.column.workload or self.column.model,
            "paper": self.printed,
            "status": self.status,
            "why": self.why,
            "seeds": self.seeds,
            "values": self.values,
            **self.facts,
        }


class Reproduction:
    """Runs of some tables under one folder of records."""

    def __init__(
        self,
        tables: Sequence[Table],
        options: RunConfig,
        *,
        out: Path,
        seeds: int | None = None,
        resume: bool = False,
        on_event: OnEvent | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        if options.scale not in SCALES:
            raise UsageError(f"--scale {options.scale}: no such scale; there are: {', '.join(SCALES)}")
        if options.data is not None and not options.data.is_dir():
            raise UsageError(f"--data {options.data}: no such folder")
        check_device(options.device)
        if not resume and out.exists() and any(out.rglob("config.json")):
            raise UsageError(f"--out {out}: it already holds runs; add --resume to go on, or name another folder")
        self.tables, self.options, self.out, self.jobs, self.resume = tables, options, out, options.jobs, resume
        self.seeds, self.on_event, self.tell = seeds, on_event, tell
        self.first: dict[Path, Job] = {}  # pre-training, and all that waits for nothing
        self.second: dict[Path, Job] = {}  # what starts from the weights of a first one
        self.cells = [
            Cell(table, row, column, printed)
            for table in tables
            for row, column, printed in table.planned(options.scale)
        ]

    def run(self) -> dict[str, Any]:
        """Make all runs; the summary that is also written to tables.json."""
        started = time.monotonic()
        self.plan()
        pool = Pool(self.jobs, self.out)
        try:
            pool.run(list(self.first.values()), self.on_event)
            self._skip_orphans()
            pool.run(list(self.second.values()), self.on_event)
        finally:
            pool.close()
        for cell in self._of("train"):
            if cell.status == DONE:
                self._collect(cell)
        self._speed()  # after the runs: nothing else may share the machine
        file = self.out / "tables.json"
        write_json(file, finite(self._summary(time.monotonic() - started)))
        summary: dict[str, Any] = json.loads(file.read_text())
        return summary

    def _of(self, kind: str) -> list[Cell]:
        return [cell for cell in self.cells if cell.table.kind == kind]

    # Which runs

    def plan(self) -> None:
        """Say which runs there are; makes the pilot runs of restarts."""
        self.out.mkdir(parents=True, exist_ok=True)
        for cell in self._of("train"):
            try:
                self._plan(cell)
            except UsageError as error:
                cell.fail(ABSENT, str(error))
            except Exception as error:  # a pilot run that fails must not stop the others
                cell.fail(FAILED, f"{type(error).__name__}: {error}")

    def _plan(self, cell: Cell) -> None:
        cell.seeds = self.seeds or cell.table.runs[self.options.scale].seeds
        assert cell.column.workload is not None
        workload = get_workload(cell.column.workload, self.options.scale)
        share, before_share = self._shares(cell)
        config = self._config(cell, workload, share, cell.row.always)
        before = None
        if workload.after is not None:
            earlier = get_workload(workload.after, self.options.scale)
            before = self._config(cell, earlier, before_share, cell.row.before)
        if cell.row.restart:
            config = self._restarting(config)
        for seed in range(cell.seeds):
            init = None if before is None else self._add(self.first, replace(before, seed=seed, keep_weights=True))
            path = self._add(self.second if init else self.first, replace(config, seed=seed, init=init))
            cell.paths.append(path)
        cell.facts = _facts(config, before)

    def _shares(self, cell: Cell) -> tuple[float, float]:
        """The shares of the workload's budget, and of that of the one before it, that a cell's run has."""
        same = [c for c in self._of("train") if c.table is cell.table and c.column.workload == cell.column.workload]
        budgets = [_ratio(c.column.budget) * _ratio(c.row.budget) for c in (cell, *same)]
        before = [_ratio(c.column.before) for c in (cell, *same)]
        if self.options.scale == SCALES[-1]:
            return budgets[0], before[0]
        return max(FLOOR, budgets[0] / max(budgets)), max(FLOOR, before[0] / max(before))

    def _config(self, cell: Cell, workload: Workload, share: float, always: Settings) -> RunConfig:
        table, row, column = cell.table, cell.row, cell.column
        paper = self.options.scale == SCALES[-1]
        stated = table.stated(row.optimizer, workload.name, column.head) if paper else []
        if paper:
            sizes = [column.batch_size, *(s.batch_size for s in reversed(stated)), workload.batch_size]
            batch_size = next(size for size in sizes if size)
        else:
            batch_size = max(1, round(workload.batch_size * column.batch_factor))
        growth = batch_size / workload.batch_size
        warmups = [_ratio(s.warmup) for s in stated if s.warmup is not None]
        if paper and table.warmup is not None:
            warmups.append(_ratio(table.warmup))
        options = replace(
            self.options,
            batch_size=batch_size,
            steps=max(1, round(workload.steps * share / growth)),  # the same number of examples
            schedule=(paper and table.schedule) or self.options.schedule,
            # A warm-up is so many epochs, however long the run.
            warmup=min(1.0, warmups[-1] / share) if warmups else self.options.warmup,
        )
        if row.optimizer in ROWS:
            config = configure_row(workload, row.optimizer, options)
        else:
            config = configure(workload, get_optimizer(row.optimizer), options)
        found: Settings = {}
        for s in stated:
            found.update(s.settings)
        settings, origin = {**config.settings, **found, **always}, config.origin
        if paper:
            sources = "; ".join(s.source for s in stated)
            origin = sources if "lr" in found else f"{UNSTATED}: lr; {sources or origin}"
        if column.batch_size is not None and "lr" not in found and growth != 1:
            settings["lr"] = float(f"{settings['lr'] * math.sqrt(growth):.4g}")
            origin += f", lr × √({batch_size}/{workload.batch_size})"
        if always:
            origin += f", {', '.join(always)} as the table says"
        return replace(config, settings=settings, origin=origin, jobs=self.jobs)

    def _restarting(self, config: RunConfig) -> RunConfig:
        """With the restart condition, its radius by a pilot run; measured once and kept in radius.json."""
        file = self.out / "radius.json"
        known = json.loads(file.read_text()) if file.exists() else {}
        key = _digest(config)
        if key not in known:
            flags = ROWS["nesterov-proximal-restart"][0]
            pilot = replace(config, optimizer="nesterov-proximal-restart", settings={**config.settings, **flags})
            known[key] = pilot_radius(pilot)
            if self.options.device != "cpu":
                import torch

                torch.cuda.empty_cache()  # the runs are made by other processes
            write_json(file, known)
            self.tell(f"{config.workload}: radius {known[key]:.4g} of the restart condition by a pilot run")
        radius = {"radius": known[key]}
        settings = radius if config.optimizer in ROWS else {"restart": radius}
        return replace(config, settings={**config.settings, **settings})

    def _add(self, jobs: dict[Path, Job], config: RunConfig) -> Path:
        """The folder of a run, which is the same for the same content."""
        path = self.out / "runs" / config.workload / f"{config.optimizer}-{_digest(config)}" / f"seed-{config.seed}"
        keeps = config.keep_weights or (path in jobs and jobs[path].config.keep_weights)
        jobs[path] = Job(replace(config, keep_weights=keeps), path, self.resume)
        return path

    def _skip_orphans(self) -> None:
        """Leave out what would start from weights that did not come about."""
        for path, job in list(self.second.items()):
            assert job.config.init is not None
            first = read_run(job.config.init)
            if first.status != "finished":
                del self.second[path]
                result = first.result or {}
                why = str(result.get("error", first.status))
                status = DIVERGED if first.status == DIVERGED else ABSENT if result.get("absent") else FAILED
                for cell in self.cells:
                    if path in cell.paths:
                        cell.paths.remove(path)
                        if not cell.paths:
                            cell.fail(status, f"{first.config.workload}, which comes before it: {why}")

    # What came out

    def _collect(self, cell: Cell) -> None:
        records = [read_run(path) for path in cell.paths]
        first = records[0]
        cell.facts["data"] = first.environment.get("data", "")
        cell.facts["parameters"] = first.environment.get("parameters")
        cell.facts["seconds"] = sum((r.result or {}).get("seconds", 0.0) for r in records)
        lost = []
        for record in records:
            result = record.result or {}
            if record.status not in ("finished", "diverged"):
                cell.fail(ABSENT if result.get("absent") else FAILED, str(result.get("error", record.status)))
                continue
            metric = cell.column.metric or record.workload["metric"]
            value = _value(record, metric) if record.status == "finished" else None
            if value is not None:
                cell.values.append(value)
            elif record.status == "finished" and metric not in result["final"]:
                cell.fail(FAILED, f"{record.config.workload} reports no {metric}")
            else:
                lost.append(str(record.config.seed))
        if lost and cell.status == DONE:
            cell.fail(DONE if cell.values else DIVERGED, f"no finite loss or metric with seed {', '.join(lost)}")

    # Step time and memory

    def _speed(self) -> None:
        scale, device = self.options.scale, self.options.device
        how = speed.Measure(scale, device, SPEED_STEPS[scale], bf16=self.options.bf16)
        single, several = self._of("speed"), self._of("parallel")
        if scale != SCALES[0] and device == "cpu":
            for cell in [*single, *several]:
                cell.fail(ABSENT, f"at the scale {scale} these models are for a GPU: give --device cuda")
            return
        if single:
            self._measured(single, lambda models, names: speed.measure(models, names, how, self._tell_case))
        if several:
            import torch

            ranks = 2 if device == "cpu" else torch.cuda.device_count()
            if ranks < 2:
                for cell in several:
                    cell.fail(ABSENT, f"it needs two GPUs, and there is {ranks}")
                return
            file = self.out / "parallel.json"

            def launch(models: list[str], names: list[str]) -> dict[str, Any]:
                speed.launch(models, names, replace(how, parallel="ddp"), ranks, file)
                found: dict[str, Any] = json.loads(file.read_text())
                return found

            self._measured(several, launch)

    def _measured(self, cells: Sequence[Cell], measure: Callable[[list[str], list[str]], dict[str, Any]]) -> None:
        models, names = _unique(c.column.model for c in cells), _unique(c.row.optimizer for c in cells)
        try:
            cases = measure(models, names)["cases"]
        except (UsageError, RuntimeError) as error:
            for cell in cells:
                cell.fail(ABSENT if isinstance(error, UsageError) else FAILED, str(error))
            return
        found = {(case["model"], case["optimizer"]): case for case in cases}
        for cell in cells:
            case = found[cell.column.model, cell.row.optimizer]
            value = case.get(cell.column.metric)
            precision = "bf16 autocast" if case["bf16"] else "fp32"
            note = f"random batches of {case['batch_size']}, {precision}, {case['steps']} steps"
            note += f", {case['ranks']} processes" if case["ranks"] > 1 else ""
            cell.facts = {"data": note, "tiny": case["tiny"]}
            if value is None:
                cell.fail(ABSENT, case.get("error") or "peak memory is counted on GPUs only")
            else:
                cell.values, cell.seeds = [value], 1

    def _tell_case(self, case: Mapping[str, Any]) -> None:
        self.tell(f"{case['model']} {case['optimizer']}: {case.get('error') or format(case['step_ms'], '.1f') + ' ms'}")

    def _summary(self, seconds: float) -> dict[str, Any]:
        found = []
        for table in self.tables:
            cells = [cell for cell in self.cells if cell.table is table]
            found.append({"name": table.name, "place": table.place, "cells": [cell.to_json() for cell in cells]})
        return {
            "scale": self.options.scale,
            "device": self.options.device,
            "bf16": self.options.bf16,
            "seconds": seconds,
            "jobs": self.jobs,
            "runs": len(self.first) + len(self.second),
            "environment": describe(self.options.device),
            "tables": found,
        }


def failures(summary: Mapping[str, Any]) -> list[str]:
    """One line for each cell that failed for another reason than something's absence."""
    return [
        f"{table['name']}: {cell['row']}, {cell['column']}: {cell['why']}"
        for table in summary["tables"]
        for cell in table["cells"]
        if cell["status"] == FAILED
    ]


def _value(record: RunRecord, metric: str) -> float | None:
    if metric == LOSS:
        return training_loss(record)
    assert record.result is not None
    value = record.result["final"].get(metric)
    return None if value is None else float(value)


def _facts(config: RunConfig, before: RunConfig | None) -> dict[str, Any]:
    names = ("settings", "origin", "steps", "batch_size", "schedule", "warmup")
    facts = {name: value for name, value in asdict(config).items() if name in names}
    if before is not None:
        facts["before"] = {name: value for name, value in asdict(before).items() if name in (*names, "workload")}
    return facts


def _digest(config: RunConfig) -> str:
    """Of all that decides the numbers but the seed; where the weights come from is told by their own digest."""
    free = ("seed", "origin", "data", "jobs", "keep_weights", "init")
    content = {key: value for key, value in config.to_json().items() if key not in free}
    content["init"] = None if config.init is None else config.init.parent.name
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


def _ratio(pair: tuple[float, float]) -> float:
    return pair[0] / pair[1]


def _unique(values: Iterable[str | None]) -> list[str]:
    return list(dict.fromkeys(value for value in values if value is not None))
