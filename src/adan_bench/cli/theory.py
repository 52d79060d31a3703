"""The commands of the paper's theory: its claims with their numbers, its constants, what each part of Adan adds."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from adan_bench.cli.common import EXIT_FAILED, Jobs, Json, Out, Resume, Seeds, run_flags
from adan_bench.cli.invocation import Invocation
from adan_bench.config import RunConfig
from adan_bench.errors import UsageError

app = typer.Typer(help="Check the paper's theory numerically, claim by claim.", add_completion=False)


@app.callback(invoke_without_command=True)
def theory(
    context: typer.Context,
    out: Out = None,
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="One study; may be given again.")] = None,
    as_json: Json = False,
) -> None:
    """Check the paper's lemmas, propositions and rates in fp64, in one to two minutes; exit code 1 where one fails."""
    if context.invoked_subcommand is not None:
        if out or only or as_json:
            flag = "--out" if out else "--only" if only else "--json"
            raise UsageError(f"{flag}: it stands before {context.invoked_subcommand}; give it after, where it has one")
        return
    import torch

    from adan_bench.reports.theory import choose, number, relation, write

    chosen = choose(only or [])
    torch.set_num_threads(1)  # networks of a thousand parameters: a second thread only costs
    console, studies = Console(), []
    for study in chosen:
        studies.append(study())
        grid = Table("claim", "measured", "bound", "", title=studies[-1].title, title_justify="left", show_lines=True)
        for check in studies[-1].checks:
            if as_json:
                print(json.dumps({"event": "check", "study": studies[-1].name, **check.to_json()}), flush=True)
            verdict = "holds" if check.passed else "FAILS"
            grid.add_row(f"{check.name}\n{escape(check.claim)}", number(check.measured), relation(check), verdict)
        if not as_json:
            console.print(grid)
            for table in studies[-1].tables:
                console.print(_grid(table))
    page = write(studies, out or context.obj.new_folder())
    failed = [check.name for study in studies for check in study.checks if not check.passed]
    if as_json:
        print(json.dumps({"event": "report", "path": str(page), "failed": failed}))
    else:
        console.print(f"{len(failed)} failed; report: {page.resolve().as_uri()}", soft_wrap=True, highlight=False)
    raise typer.Exit(EXIT_FAILED if failed else 0)


@app.command()
@run_flags("steps", "seed", "device", "data", "script", "scale", "threads")
def constants(
    workload: Annotated[str, typer.Argument(help="See: adan-bench list workloads.")],
    optimizer: Annotated[str, typer.Option(help="See: adan-bench list optimizers.")] = "adan",
    accuracy: Annotated[float, typer.Option(min=1e-12, max=1, help="ϵ of the complexities.")] = 0.1,
    as_json: Json = False,
    *,
    chosen: RunConfig,
) -> None:
    """Measure c∞ and c₂ on a workload, and evaluate Table 1 with them."""
    from dataclasses import asdict

    from adan_bench.theory.complexity import measure, table
    from adan_bench.training.configure import configure
    from adan_bench.training.optimizers import get_optimizer
    from adan_bench.workloads.registry import get_workload

    config = configure(get_workload(workload, chosen.scale), get_optimizer(optimizer), chosen)
    constants, seen = measure(config)
    if as_json:
        print(json.dumps({"event": "constants", "workload": workload, "steps": len(seen), **asdict(constants)}))
        return
    Console().print(_grid(table(constants, accuracy, f"{workload}, {optimizer}, {len(seen)} gradients")))


def _grid(table: Any) -> Table:
    grid = Table(*map(escape, table.head), title=escape(table.title), title_justify="left")
    for row in table.rows:
        grid.add_row(*map(escape, row))
    return grid


@app.command()
@run_flags("steps", "device", "data", "script", "scale", "threads")
def components(
    workload: Annotated[str, typer.Option(help="See: adan-bench list workloads.")],
    seeds: Seeds = 3,
    radius: Annotated[float | None, typer.Option(min=0, help="R of Eqn 8; by a pilot run unless given.")] = None,
    jobs: Jobs = 1,
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
    *,
    chosen: RunConfig,
    call: Invocation,
) -> None:
    """Take Adan apart: heavy ball, Nesterov, proximal decay, restart, as in the paper's table of components.

    The exit code is 1 where a run failed.
    """
    from dataclasses import asdict

    from adan_bench.cli.progress import showing
    from adan_bench.records.stats import interval, usual_range
    from adan_bench.reports.comparison import write_report
    from adan_bench.reports.conclusions import number, spread
    from adan_bench.studies.ablation import ablate

    console, folder = Console(), call.records_in(out, resume=resume)
    with showing(Console(quiet=as_json), as_json=False) as on_event:
        rows, records = ablate(workload, seeds, chosen, folder, radius, resume, on_event)
    page = write_report(records, folder)
    failed = [record for record in records if record.status == "failed"]
    grid = Table("component", "training loss", "metric", "restarts", "radius", "paper's loss (another model)")
    for row in rows:
        if as_json:
            print(json.dumps({"event": "component", **asdict(row)}))
        shown = [
            spread(interval(values, within=usual_range(metric, values)), values) if values else "–"
            for metric, values in (("loss", row.losses), (records[0].workload["metric"], row.metrics))
        ]
        restarts = ", ".join(str(count) for count in row.restarts)
        grid.add_row(row.name, *shown, restarts, number(row.radius), number(row.paper))
    if as_json:
        print(json.dumps({"event": "report", "path": str(page), "failed": [str(record.path) for record in failed]}))
    else:
        console.print(grid)
        for record in failed[:5]:
            assert record.result is not None
            console.print(f"failed: {record.path}: {record.result.get('error')}", markup=False, soft_wrap=True)
        console.print(f"report: {page.resolve().as_uri()}", soft_wrap=True, highlight=False)
    raise typer.Exit(EXIT_FAILED if failed else 0)
