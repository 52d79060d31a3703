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
from adan_bench.errors import UsageError

ONE = {"tensors": "tensor", "parameters": "parameter", "matrices": "matrix"}


class Listed(str, Enum):
    workloads = "workloads"
    optimizers = "optimizers"
    tables = "tables"
    studies = "studies"


def list_(
    kind: Annotated[Listed, typer.Argument(help="What to list.")] = Listed.workloads,
    script: Annotated[Path | None, typer.Option(help="List what this Python file of yours registers.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array instead of text.")] = False,
) -> None:
    """List the workloads, the optimizers, the paper's tables, or the bundled studies."""
    details, listed = LISTS[kind]
    rows = listed()
    if script is not None:
        rows = _own(kind, script) or rows
    if as_json:
        print(json.dumps(rows))
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")  # a name is never cut, at no width
    table.add_column(overflow="fold")
    headings: set[str] = set()
    for row in rows:
        name, what = list(row.values())[:2]
        if (heading := row.get("generation", "")) and heading not in headings:
            headings.add(heading)
            table.add_row("", f"[underline]{escape(heading)}[/underline]")
        table.add_row(escape(name), escape(what))
        table.add_row("", f"[dim]{escape(details.format(**row))}[/dim]")
        if unbuilt := row.get("unbuilt"):
            table.add_row("", f"[dim]{escape(unbuilt)}[/dim]")
        for role, counts in row.get("roles", {}).items():
            split = " · ".join(f"{n:,} {ONE.get(key, key) if n == 1 else key}" for key, n in counts.items())
            table.add_row("", f"[dim]{escape(f'{role}: {split}')}[/dim]")
    Console().print(table, highlight=False)


def _own(kind: Listed, script: Path) -> list[dict[str, Any]]:
    """What a script itself registers."""
    from adan_bench.training.optimizers import OWN
    from adan_bench.training.scripts import load_script

    registered = load_script(script)
    if kind is Listed.workloads:
        return [{**row, **_roles(row["name"], script)} for row in _workload_rows() if row["name"] in registered]
    return [row for row in _optimizer_rows() if row["name"] in OWN] if kind is Listed.optimizers else []


def _workload_rows() -> list[dict[str, Any]]:
    from adan_bench.workloads.registry import absent, extras, is_bundled, workloads

    return [
        {
            "name": w.name,
            "what": w.summary,
            "metric": f"{w.metric} {'≥' if w.higher_is_better else '≤'} {w.target:g}",
            "steps": w.steps,
            "batch": w.batch_size,
            "data": ", ".join(w.needs) or ("bundled" if is_bundled(w) else "its own"),
            "scales": ", ".join(w.scales),
            "extra": extras(w),
            "install": f" · needs: pip install '.[{extras(w)}]'" if absent(w) else "",
        }
        for w in workloads().values()
    ]


def _roles(name: str, script: Path) -> dict[str, Any]:
    """The roles of the parameters of a script's workload, or why they cannot be told: it needs data, say."""
    from adan_bench.training.roles import summary
    from adan_bench.training.scripts import where
    from adan_bench.workloads.registry import get_workload

    try:
        task = get_workload(name).task()
        return {"roles": summary(task.model, task.roles)}
    except UsageError as error:
        return {"unbuilt": f"roles unknown: {error}"}
    except Exception as error:  # of the user's own code
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return {"unbuilt": f"roles unknown: {reason} ({where(error, script)})"}


def _optimizer_rows() -> list[dict[str, Any]]:
    from adan_bench.studies.comparison import learning_rates
    from adan_bench.training.optimizers import TODAY, extra, known, package

    rows = []
    for spec in known().values():
        low, high = learning_rates(spec, 2)
        then = "; ".join(f"{key}={value}" for choice in spec.choices for key, value in choice.items()) or "more rates"
        generation = "The script's own"
        if spec.own is None:
            generation = "Newer ones" if spec.year >= TODAY else "Adan, and those that its paper compares it with"
        facts = {"lr": f"{low:g} … {high:g}", "then": then, "passes": spec.passes, "generation": generation}
        facts |= {"year": spec.year or None, "paper": spec.paper, "package": package(spec), "extra": extra(spec)}
        published = f"{spec.year}, {spec.paper} · " if spec.year else ""
        facts["about"] = published + " ".join(filter(None, (package(spec), extra(spec) and f"('.[{extra(spec)}]')")))
        rows.append({"name": spec.name, "from": spec.target, **facts})
    return rows


#: The second line of an entry, and the entries.
LISTS = {
    Listed.workloads: (
        "{metric} · {steps} steps of {batch} · data: {data} · scales: {scales}{install}",
        _workload_rows,
    ),
    Listed.optimizers: ("{about} · tuned over lr {lr}, then {then} · gradients per update: {passes}", _optimizer_rows),
    Listed.tables: ("{place} · {cells} cells · run: {run here}", paper.rows),
    Listed.studies: ("{on} · {who} · {trials}, {seeds}", study.rows),
}
