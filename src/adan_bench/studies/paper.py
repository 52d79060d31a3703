"""The paper's tables, run again: JSON → plan → jobs → records → results beside what was published."""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from adan_bench.config import TRAINING_LOSS, RunConfig, RunRecord, cores
from adan_bench.errors import UsageError
from adan_bench.records.cells import CellRecord
from adan_bench.records.environment import describe
from adan_bench.records.store import RunStore, check_empty, finite, read_run, write_json
from adan_bench.studies import speed
from adan_bench.studies.arms import make
from adan_bench.studies.competitors import competitors
from adan_bench.studies.plan import PaperPlan, PlannedCell, check_only, plan, wanted
from adan_bench.tables import RESTARTS, PaperTable
from adan_bench.task import SCALES, weights_file
from adan_bench.training.configure import check_data_folder, check_device, obstacles
from adan_bench.training.jobs import OnEvent
from adan_bench.training.optimizers import check_values, defaults, get_optimizer
from adan_bench.training.trainer import task_of
from adan_bench.workloads.registry import get_workload

#: How HumanEval is asked, and what differs at each scale. The paper states the temperature; the rest is a guess, which
#: the notes of its table say.
ASKED: dict[str, Any] = {"temperature": 0.8, "tokens": 256, "problems": None, "seed": 0}
HUMANEVAL: dict[str, dict[str, Any]] = {
    "smoke": {"samples": 100, "problems": 2, "tokens": 16},
    "small": {"samples": 100, "problems": 20},
    "paper": {"samples": 200},
}


def reproduce(
    tables: Sequence[PaperTable],
    chosen: RunConfig,
    out: Path,
    seeds: int | None = None,
    resume: bool = False,
    on_event: OnEvent | None = None,
    on_case: Callable[[Mapping[str, Any]], None] = lambda case: None,
    deadline: float | None = None,
    run_code: bool = False,
    *,
    only: Sequence[str] = (),
    pairs: Sequence[str] = (),
    radius: float | None = None,
    on_plan: Callable[[list[dict[str, Any]]], None] = lambda runs: None,
) -> dict[str, Any]:
    """Make all runs of the tables; the summary that is also written to tables.json.

    run_code: whether code that a model wrote may be run, for HumanEval.
    only, pairs: the cells to run, and settings in place of the tables', as the user wrote them.
    radius: of rows with restarts; by a pilot run unless given.
    on_plan: gets what `outline` says before anything runs.
    """
    if chosen.cluster is None:
        check_device(chosen.device, chosen.ranks)
    check_empty(out, resume)
    started = time.monotonic()
    run_plan, runs = prepare(tables, chosen, out, seeds, only, pairs, radius)
    on_plan(runs)
    make([[arm] for arm in run_plan.arms.values()], chosen, out, resume, deadline, on_event)
    scores = humanevals(run_plan, chosen, run_code)
    cases = [_key(cell) for cell in run_plan.cells if cell.column.model]
    if chosen.cluster is None:  # speed after the runs: nothing else may share the machine
        timed = speed.cases(cases, chosen, on_case)
    else:
        reason = "speed is measured on one machine: run this table without --cluster"
        timed = {case: {"absent": reason} for case in cases}
    results = [(cell, _timed(cell, timed) if cell.column.model else collect(cell, scores)) for cell in run_plan.cells]
    results = [(cell, _mean(cell, results) if cell.column.mean else record) for cell, record in results]
    cells = {table.name: [record.to_json() for cell, record in results if cell.table is table] for table in tables}
    summary = {
        "scale": chosen.scale,
        "device": chosen.device,
        "bf16": chosen.bf16,
        "seconds": time.monotonic() - started,
        "training_seconds": sum((RunStore(path).result() or {}).get("seconds", 0.0) for path in run_plan.runs),
        "jobs": chosen.jobs,
        "ranks": chosen.ranks,
        "only": list(only),
        "runs": sum(RunStore(path).ended for path in run_plan.runs),
        "environment": describe(chosen.device if chosen.cluster is None else "cpu"),
        "tables": [{"name": table.name, "place": table.place, "cells": cells[table.name]} for table in tables],
    }
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "tables.json", finite(summary))
    read: dict[str, Any] = json.loads((out / "tables.json").read_text(encoding="utf-8"))
    return read


def prepare(
    tables: Sequence[PaperTable],
    chosen: RunConfig,
    out: Path,
    seeds: int | None = None,
    only: Sequence[str] = (),
    pairs: Sequence[str] = (),
    radius: float | None = None,
) -> tuple[PaperPlan, list[dict[str, Any]]]:
    """The runs of the tables that can be made here, and an outline of all of them; nothing is written or trained."""
    if chosen.scale not in SCALES:
        raise UsageError(f"--scale {chosen.scale}: no such scale; there are: {', '.join(SCALES)}")
    check_data_folder(chosen.data)
    if chosen.init is not None:
        weights_file(chosen.init)
    check_only(tables, chosen.scale, only)
    rows = [row for table in tables for row, _, _ in wanted(table, chosen.scale, only)]
    if radius is not None and not any(row.restart for row in rows):
        raise UsageError(f"--radius {radius:g}: no row of these restarts; leave it out, or run the table components")
    names = dict.fromkeys(row.optimizer for row in rows)
    changed = {c.spec.name: c.settings for c in competitors(",".join(names), pairs)} if pairs else {}
    for name, settings in changed.items():  # a wrong one would be a row without results, after days of the others
        if settings:
            check_values(get_optimizer(name), {**defaults(get_optimizer(name)), **settings})
    whole = plan(tables, chosen, out, seeds, radius, only, changed)
    absent = missing(whole)
    runs = outline(whole, absent)  # before `present` takes seeds away
    return present(whole, absent), runs


def outline(run_plan: PaperPlan, absent: Mapping[Path, str]) -> list[dict[str, Any]]:
    """What a plan's runs are and what they lack here; those that differ in seed or settings alone are one entry."""
    counts: Counter[tuple[tuple[str, Any], ...]] = Counter()
    for arm in run_plan.arms.values():
        config = arm.base
        steps = config.stop_after or config.steps
        entry = {
            "workload": config.workload,
            "optimizer": config.optimizer,
            "role": config.role,
            "devices": config.ranks,
            "steps": steps,
            "batch_per_device": config.batch_size // config.ranks // config.accumulate,
            "accumulate": config.accumulate,
            "examples_per_rank": steps // get_optimizer(config.optimizer).passes * config.batch_size // config.ranks,
            "missing": absent.get(arm.folder, ""),
        }
        counts[tuple(entry.items())] += len(arm.seeds)
    refused = [cell for cell in run_plan.cells if cell.absent]
    return [{**dict(entry), "runs": count} for entry, count in counts.items()] + [
        {"workload": cell.column.workload, "optimizer": cell.row.optimizer, "runs": 0, "missing": cell.absent}
        for cell in refused
    ]


def missing(run_plan: PaperPlan) -> dict[Path, str]:
    """What the arms of a plan lack here, by folder: data, packages, weights, devices.

    A run that would fail only after days of others is built once, on the CPU: at the scale "paper" every one, at the
    others those that start from another's weights; but not those that have ended.
    """
    absent: dict[Path, str] = {}
    built: dict[str, str] = {}
    for folder, arm in run_plan.arms.items():
        config, ended = arm.base, all(RunStore(arm.path(seed)).ended for seed in arm.seeds)
        reasons = obstacles(get_workload(config.workload, config.scale), get_optimizer(config.optimizer), config)
        if reasons:
            absent[folder] = "; ".join(reasons)
        elif (config.scale == SCALES[-1] or arm.start is not None) and not ended:
            key = str((config.workload, config.training, config.init, config.role == "tune", config.batch_size))
            if key not in built:
                built[key] = _built(config)
            if built[key]:
                absent[folder] = built[key]
    return absent


def _built(config: RunConfig) -> str:
    """The reason why the task of a run cannot be built; a fault of the code is left to the run, which records it."""
    try:
        task_of(get_workload(config.workload, config.scale), config, "cpu", 0, config.ranks)
    except UsageError as error:
        return str(error)
    except Exception:
        return ""
    return ""


def present(run_plan: PaperPlan, absent: Mapping[Path, str]) -> PaperPlan:
    """The plan without the runs that this machine cannot make; their cells say what is absent."""
    cells, needed = [], set[Path]()
    for cell in run_plan.cells:
        if cell.arm is not None:
            paths = [path for s in cell.seeds for path in (*cell.arm.waits_for(s), cell.arm.path(s))]
            if whys := [absent[path.parent] for path in paths if path.parent in absent]:
                cell = replace(cell, absent=whys[0], arm=None)
            else:
                needed.update(paths)
        cells.append(cell)
    for arm in run_plan.arms.values():
        arm.seeds = [seed for seed in arm.seeds if arm.path(seed) in needed]
    return PaperPlan(cells, {folder: arm for folder, arm in run_plan.arms.items() if arm.seeds})


def humanevals(run_plan: PaperPlan, chosen: RunConfig, run_code: bool) -> dict[Path, Mapping[str, Any]]:
    """HumanEval's pass@k of the finished runs whose columns show it, by folder; "absent": why there is none."""
    from adan_bench.studies.humaneval import pass_at_k

    how, scores = {**ASKED, **HUMANEVAL[chosen.scale]}, {}
    recorded = {"first" if key == "problems" else key: value for key, value in how.items()}
    for path in dict.fromkeys(path for cell in run_plan.cells if cell.column.evaluation for path in cell.runs):
        if not (path / "weights.pt").exists():
            continue
        file = path / "humaneval.json"
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        if "pass@100" in known and all(known.get(key) == value for key, value in recorded.items()):
            scores[path] = known
        elif not run_code:
            scores[path] = {"absent": "HumanEval runs code that the model wrote: add --yes-run-generated-code"}
        else:
            options = {**how, "seconds": 3.0, "jobs": cores(), "device": chosen.device}
            try:
                scores[path] = pass_at_k(path, chosen.data, ks=(1, 10, 100), **options)
            except UsageError as error:
                scores[path] = {"absent": str(error)}
    return scores


def collect(cell: PlannedCell, scores: Mapping[Path, Mapping[str, Any]]) -> CellRecord:
    """Read the results of a cell's runs from their records; scores: by folder, HumanEval's."""
    if (arm := cell.arm) is None:  # a mean waits for the others
        return _record(cell, "absent", cell.absent)
    reasons = {seed: arm.blocked(seed) for seed in cell.seeds}
    blocked = [reason for reason in reasons.values() if reason is not None]
    records = [read_run(arm.path(seed)) for seed, reason in reasons.items() if reason is None]
    facts: dict[str, Any] = {"seeds": len(cell.seeds), "before": arm.start and arm.start.base}
    if not records:
        return _record(cell, *blocked[0], config=arm.base, **facts)
    metric = cell.column.metric or str(records[0].workload["metric"])
    facts |= {name: records[0].environment[name] for name in ("data", "parameters") if name in records[0].environment}
    facts |= {"metric": metric, "seconds": sum((r.result or {}).get("seconds", 0.0) for r in records)}
    if cell.table.curves:
        curve = ("train", "loss") if metric == TRAINING_LOSS else ("eval", metric)
        facts["curves"] = [[(step, value) for step, _, value in record.curve(*curve)] for record in records]
    status, why = blocked[0] if blocked else ("done", "")
    values, lost = [], []
    for record in records:
        result = record.result or {}
        if record.status not in ("finished", "diverged"):
            status = "absent" if result.get("absent") else "failed"
            why = str(result.get("error", record.status))
        elif record.status == "finished" and cell.column.evaluation:
            score = scores.get(record.path, {"absent": "the run kept no weights"})
            if "absent" in score:
                status, why = "absent", score["absent"]
            else:
                values.append(score[metric])
        elif record.status == "finished" and metric not in (TRAINING_LOSS, RESTARTS, *result["final"]):
            status, why = "failed", f"{record.config.workload} reports no {metric}"
        elif record.status == "finished" and (value := figure_of(record, metric, cell)) is not None:
            values.append(value)
        else:
            lost.append(str(record.config.seed))
    if lost and status == "done":
        status = "done" if values else "diverged"
        why = f"no finite loss or metric with seed {', '.join(lost)}"
    return _record(cell, status, why, values=values, config=records[0].config, **facts)


def _record(cell: PlannedCell, status: str, why: str = "", **facts: Any) -> CellRecord:
    row, column = cell.row, cell.column
    facts |= {"row": row.head, "column": column.head, "optimizer": row.optimizer, "paper": cell.printed}
    return CellRecord(workload=column.workload or column.model or column.head, status=status, why=why, **facts)


def figure_of(record: RunRecord, metric: str, cell: PlannedCell) -> float | None:
    """A number of a finished run: its training loss, or one of its last evaluation or the one its column chooses."""
    if metric == TRAINING_LOSS:
        return record.training_loss
    assert record.result is not None
    if metric == RESTARTS:
        return float((record.result.get("restarts") or {"count": 0})["count"])
    evaluation = record.result["final"]
    if cell.column.chosen_by is not None and record.config.scale == SCALES[-1]:
        key = cell.column.chosen_by
        better = max if cell.table.higher(cell.column) and key != "loss" else min
        there = [line for line in record.metrics if line["kind"] == "eval" and line.get(key) is not None]
        evaluation = better(there, key=lambda line: float(line[key]), default=evaluation)
    value = evaluation.get(metric)
    return None if value is None else float(value)


def _mean(cell: PlannedCell, results: Sequence[tuple[PlannedCell, CellRecord]]) -> CellRecord:
    """The mean of the row's other cells: seed by seed, or of their medians."""
    own = [(there, record) for there, record in results if (there.table, there.row) == (cell.table, cell.row)]
    parts = [record for there, record in own if not there.column.mean]
    for part in parts:
        if len(part.values) < max(1, part.seeds):
            status = "failed" if part.status == "done" else part.status
            return _record(cell, status, f"{part.column}: {part.why}")
    values = [statistics.fmean(values) for values in zip(*(part.values for part in parts), strict=True)]
    if cell.table.median:
        values = [statistics.fmean(statistics.median(part.values) for part in parts)]
    data = "the mean of " + ", ".join(part.column for part in parts)
    return _record(cell, "done", values=values, seeds=len(values), data=data)


def _key(cell: PlannedCell) -> speed.Key:
    assert cell.column.model is not None
    return cell.table.kind, cell.column.model, cell.row.optimizer, cell.column.ranks


def _timed(cell: PlannedCell, timed: Mapping[speed.Key, Mapping[str, Any]]) -> CellRecord:
    case = timed[_key(cell)]
    if "failed" in case:
        return _record(cell, "failed", case["failed"])
    if "absent" in case:
        return _record(cell, "absent", case["absent"])
    precision = "bf16 autocast" if case["bf16"] else "fp32"
    note = f"random batches of {case['batch_size']}, {precision}, {case['steps']} steps"
    note += f", {case['ranks']} processes" if case["ranks"] > 1 else ""
    value = case.get(str(cell.column.metric))
    if value is None:
        why = case.get("error") or "peak memory is counted on GPUs only"
        return _record(cell, "absent", why, data=note, tiny=case["tiny"])
    return _record(cell, "done", values=[value], seeds=1, data=note, tiny=case["tiny"])


def failures(summary: Mapping[str, Any]) -> list[str]:
    """One line for each cell that failed for another reason than something's absence."""
    return [
        f"{table['name']}: {cell['row']}, {cell['column']}: {cell['why']}"
        for table in summary["tables"]
        for cell in table["cells"]
        if cell["status"] == "failed"
    ]
