"""The command `list`: workloads, optimizers, the paper's tables, and studies."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from adan_bench.cli import paper, study
from adan_bench.cli.common import Json


class Listed(str, Enum):
    workloads = "workloads"
    optimizers = "optimizers"
    tables = "tables"
    studies = "studies"


def list_(
    kind: Annotated[Listed, typer.Argument()] = Listed.workloads,
    script: Annotated[Path | None, typer.Option(help="A Python file with your own workloads and optimizers.")] = None,
    as_json: Json = False,
) -> None:
    """Show the workloads, the optimizers, the paper's tables, or the bundled studies."""
    if script is not None:
        from adan_bench.training.scripts import load_script

        load_script(script)
    details, listed = LISTS[kind]
    rows = listed()
    if as_json:
        print(json.dumps(rows))
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")  # a name is never cut, at no width
    table.add_column(overflow="fold")
    for row in rows:
        name, what = list(row.values())[:2]
        table.add_row(escape(name), escape(what))
        table.add_row("", f"[dim]{escape(details.format(**row))}[/dim]")
    Console().print(table, highlight=False)


def _workload_rows() -> list[dict[str, Any]]:
    from adan_bench.workloads.registry import workloads

    return [
        {
            "name": w.name,
            "what": w.summary,
            "metric": f"{w.metric} {'≥' if w.higher_is_better else '≤'} {w.target:g}",
            "steps": w.steps,
            "batch": w.batch_size,
            "data": ", ".join(w.needs) or "bundled",
            "scales": ", ".join(w.scales),
        }
        for w in workloads().values()
    ]


def _optimizer_rows() -> list[dict[str, Any]]:
    from adan_bench.studies.comparison import learning_rates
    from adan_bench.training.optimizers import known

    rows = []
    for spec in known().values():
        low, high = learning_rates(spec, 2)
        then = "; ".join(f"{key}={value}" for choice in spec.choices for key, value in choice.items()) or "more rates"
        facts = {"lr": f"{low:g} … {high:g}", "then": then, "passes": spec.passes}
        rows.append({"name": spec.name, "from": spec.target, **facts})
    return rows


#: The second line of an entry, and the entries.
LISTS = {
    Listed.workloads: ("{metric} · {steps} steps of {batch} · data: {data} · scales: {scales}", _workload_rows),
    Listed.optimizers: ("tuned over lr {lr}, then {then} · gradients per update: {passes}", _optimizer_rows),
    Listed.tables: ("{place} · {cells} cells · run: {run here}", paper.rows),
    Listed.studies: ("{on} · {who} · {trials}, {seeds}", study.rows),
}
