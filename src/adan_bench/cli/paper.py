"""The commands of the paper's tables: reproduce, speed, and what `list tables` shows."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from adan_bench.cli.common import EXIT_FAILED, Invocation, Json, Set, check_file, grid, run_flags, say
from adan_bench.config import RunConfig

RECORDS = Path(__file__).parents[3] / "results" / "reproduce"  # of a checkout


def rows(records: Path = RECORDS) -> list[dict[str, Any]]:
    """Every table of the paper with what was run of it here, and where the record is."""
    from adan_bench.tables import tables

    runs = []
    for file in sorted(records.glob("*.json")):
        summary = json.loads(file.read_text(encoding="utf-8"))
        for entry in summary["tables"]:
            cells = entry["cells"]
            done = sum(bool(cell["values"]) for cell in cells)
            runs.append((entry["name"], f"{summary['scale']} {done}/{len(cells)}: results/reproduce/{file.name}"))
    return [
        {
            "name": table.name,
            "what": table.title,
            "place": f"{table.place}, {table.label}",
            "cells": len(table.cells()),
            "run here": "; ".join(text for name, text in runs if name == table.name)
            or ("theory: nothing to run" if table.kind == "statement" else "not yet"),
        }
        for table in tables().values()
    ]


@run_flags(
    "scale", "data", "script", "device", "bf16", "accumulate", "threads", "init", "cluster", "ranks", "parallel",
    "steps",
)  # fmt: skip
def reproduce(
    names: Annotated[
        list[str], typer.Argument(metavar="TABLE...", help="Names from `adan-bench list tables`, or 'all'.")
    ],
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds, from 0 on. Default: the table's.")] = None,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes-run-generated-code", help="Confirm that code written by GPT-2 may be run, for HumanEval's pass@k."
        ),
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="ROW,COLUMN", help="Run only this cell, row or column; repeatable.")
    ] = None,
    workload: Annotated[
        str | None, typer.Option(help="Run the table's rows on this workload. Default: that of --script.")
    ] = None,
    radius: Annotated[
        float | None, typer.Option(min=0, help="Radius R of restarts. Default: measured by a pilot run.")
    ] = None,
    set_: Set = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the runs and what is missing, and stop.")] = False,
    as_json: Json = False,
    *,
    chosen: RunConfig,
    call: Invocation,
) -> None:
    """Run tables of the paper again at a chosen scale, and print its numbers next to the new ones."""
    from adan_bench.cli.progress import showing
    from adan_bench.reports import paper as report
    from adan_bench.reports.conclusions import count
    from adan_bench.studies import paper as study
    from adan_bench.studies.plan import on_workload
    from adan_bench.tables import choose
    from adan_bench.workloads.registry import get_workload

    console = Console()
    if workload is not None:
        get_workload(workload, chosen.scale)  # an unknown one would be a table of absent cells
    tables = [table if workload is None else on_workload(table, workload) for table in choose(names)]
    known = {table.name: table for table in tables}
    some: dict[str, Any] = {"only": only or (), "pairs": set_ or (), "radius": radius}

    def show_plan(runs: list[dict[str, Any]]) -> None:
        if as_json:
            print(*(json.dumps({"event": "plan", **run}) for run in runs), sep="\n", flush=True)
        elif dry_run or chosen.scale == "paper":
            reasons = list(dict.fromkeys(run["missing"] for run in runs if run["missing"]))
            rows = [[*_outlined(run), f"({reasons.index(why) + 1})" if (why := run["missing"]) else ""] for run in runs]
            console.print(grid(count(sum(run["runs"] for run in runs), "run"), OUTLINE, rows))
            for number, why in enumerate(reasons, 1):
                say(console, f"({number}) {why}")

    if dry_run:
        return show_plan(study.prepare(tables, chosen, Path("runs"), seeds, **some)[1])
    folder = call.records_in()

    def show_case(case: Any) -> None:
        if not as_json:
            text = case.get("error") or f"{case['step_ms']:.1f} ms"
            say(console, f"{case['model']} {case['optimizer']}: {text}")

    with showing(console, as_json) as on_event:
        runs = (folder, seeds, call.resume, on_event, show_case, call.until, yes)
        summary = study.reproduce(tables, chosen, *runs, **some, on_plan=show_plan)
    page = report.write(summary, folder, known)
    failed = study.failures(summary)
    if as_json:
        print(json.dumps({"event": "report", "path": str(page), "failed": failed}))
    else:
        for section in report.sections(summary, known):
            console.print(grid(section.title, section.head, section.run))
            for line in (section.conclusion, *(f"- {text}" for text in (*section.how, *section.notes)), ""):
                say(console, line)
        for text in (*(f"failed: {line}" for line in failed[:5]), report.overview(summary)):
            say(console, text)
        say(console, f"report: {page.resolve().as_uri()}")
    raise typer.Exit(EXIT_FAILED if failed else 0)


OUTLINE = ("workload", "optimizer", "runs", "devices", "steps", "batch per device", "examples per rank", "missing")


def _outlined(run: dict[str, Any]) -> list[str]:
    """A line of a plan; micro-batches and the runs that only choose settings are said."""
    if not run["runs"]:
        return [str(run["workload"]), run["optimizer"], *[""] * 5]
    role = {"tune": " (trials)", "pilot": " (pilot)"}.get(run["role"], "")
    batch = f"{run['accumulate']} × " if run["accumulate"] > 1 else ""
    counts = [f"{run['runs']:,}", f"{run['devices']:,}", f"{run['steps']:,}", f"{batch}{run['batch_per_device']:,}"]
    return [run["workload"] + role, run["optimizer"], *counts, f"{run['examples_per_rank']:,}"]


#: Of the numbers of a case of `speed`, medians of its steps.
UNITS = {
    "step_ms": "ms per step", "optimizer_ms": "ms per update", "state_bytes": "bytes of states", "peak_gb": "GB peak",
    "tokens_per_second": "tokens/s",
}  # fmt: skip


@run_flags("scale", "device", "bf16", "parallel")
def speed(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL...", help="ViT-B, GPT-2-1B, MoE-8x0.1B, … Default: all of the paper's but the MoEs."
        ),
    ] = None,
    optimizers: Annotated[
        str | None,
        typer.Option(
            help="Names or variants such as adan:state_format=8bit, separated by commas. Default: the paper's."
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps to measure; the paper has 200.")] = 20,
    warmup: Annotated[int, typer.Option(min=0, help="Untimed warm-up steps.")] = 5,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Images (default: 128), or sequences of 1,024 tokens (8), per step. At the scale smoke: 2.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A JSON file for the results.", callback=check_file)] = None,
    as_json: Json = False,
    *,
    chosen: RunConfig,
) -> None:
    """Measure step time, update time and peak memory of the paper's models. The scale smoke has tiny versions."""
    from adan_bench.records.environment import describe
    from adan_bench.records.store import write_json
    from adan_bench.reports.conclusions import number
    from adan_bench.studies import speed as measuring
    from adan_bench.studies.competitors import competitors
    from adan_bench.training.configure import check_device

    check_device(chosen.device)
    console = Console(quiet=as_json or (chosen.parallel is not None and os.environ["RANK"] != "0"))
    names = [rival.name for rival in competitors(optimizers or ",".join(measuring.OPTIMIZERS))]
    text = [name for name, model in measuring.MODELS.items() if model.text]
    which = models or (text if chosen.parallel else [name for name in measuring.MODELS if "MoE" not in name])
    cases: list[Any] = []

    def show(case: Any) -> None:
        cases.append(case)
        if as_json:
            print(json.dumps({"event": "speed", **case}), flush=True)
        shown = [f"{number(case[key])} {unit}" for key, unit in UNITS.items() if case.get(key) is not None]
        if rounds := case.get("rounds_ms"):
            shown[0] += f" ({number(min(rounds))} to {number(max(rounds))} in {len(rounds)} rounds)"
        text = case.get("error") or ", ".join(shown)
        say(console, f"[{len(cases)}/{len(which) * len(names)}] {case['model']} {case['optimizer']}: {text}")
        if out is not None:  # after every case: a measurement cut short keeps those that it has
            out.parent.mkdir(parents=True, exist_ok=True)
            write_json(out, {"environment": describe(chosen.device), "cases": cases})

    measuring.measure(which, names, replace(chosen, steps=steps, batch_size=batch_size or 0), warmup, show)
