"""The commands of the paper's theory: its claims with their numbers, and its constants."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from adan_bench.cli.common import EXIT_FAILED, Json, Out, Workload, grid, run_flags, say
from adan_bench.config import RunConfig
from adan_bench.errors import UsageError

app = typer.Typer(
    help="Check the paper's theory numerically, in one to two minutes. Exit code 1: a check failed.",
    add_completion=False,
)


@app.callback(invoke_without_command=True)
def theory(
    context: typer.Context,
    out: Out = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Run only this study, e.g. lemma-1; repeatable.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check the paper's lemmas, propositions and rates in fp64."""
    if context.invoked_subcommand is not None:
        if out or only or as_json:
            flag = "--out" if out else "--only" if only else "--json"
            name = context.invoked_subcommand
            raise UsageError(f"{flag}: before {name} it is an option of theory alone; put those of {name} after it")
        return
    import torch

    from adan_bench.reports.theory import choose, numbers, write

    chosen, folder = choose(only or []), out or context.obj.new_folder()
    torch.set_num_threads(1)  # networks of a thousand parameters: a second thread only costs
    console, studies = Console(quiet=as_json), []
    for number, (name, study) in enumerate(chosen.items(), 1):
        say(console, f"[{number}/{len(chosen)}] {name} …")
        studies.append(study())
        page = write(studies, folder)  # after every study: a check cut short keeps those that it has
        rows = []
        for check in studies[-1].checks:
            if as_json:
                print(json.dumps({"event": "check", "study": studies[-1].name, **check.to_json()}), flush=True)
            rows.append((f"{check.name}\n{check.claim}", *numbers(check)))
        claims = grid(studies[-1].texts[0], ("claim", "measured", "bound", ""), rows)
        claims.show_lines = True
        for shown in (claims, *(grid(table.title, table.head, table.rows) for table in studies[-1].tables)):
            console.print(shown)
    failed = [check.name for study in studies for check in study.checks if not check.passed]
    if as_json:
        print(json.dumps({"event": "report", "path": str(page), "failed": failed}))
    else:
        say(console, f"{len(failed)} failed; report: {page.resolve().as_uri()}")
    raise typer.Exit(EXIT_FAILED if failed else 0)


@app.command()
@run_flags("steps", "seed", "device", "data", "script", "scale", "threads")
def constants(
    workload: Workload = "",
    optimizer: Annotated[str, typer.Option(help="A name from `adan-bench list optimizers`.")] = "adan",
    as_json: Json = False,
    *,
    chosen: RunConfig,
) -> None:
    """Measure the bounds c∞ and c₂ of the gradients on a workload, and evaluate the paper's Table 1 with them."""
    from adan_bench.theory.complexity import measure, table
    from adan_bench.training.configure import configure
    from adan_bench.training.optimizers import get_optimizer
    from adan_bench.workloads.registry import get_workload

    config = configure(get_workload(workload, chosen.scale), get_optimizer(optimizer), chosen)
    constants, seen = measure(config)
    if as_json:
        print(json.dumps({"event": "constants", "workload": workload, "steps": len(seen), **asdict(constants)}))
        return
    shown = table(constants, 0.1, f"{workload}, {optimizer}, {len(seen)} gradients")
    Console().print(grid(shown.title, shown.head, shown.rows))
