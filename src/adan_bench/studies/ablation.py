"""The paper's table "component" on any workload: what each part of Adan adds.

The rows are AdamW, Adan with AdamW's decay, Adan, and Adan with restarts: what users train with. AdamW has its own
settings for the workload, the others Adan's, tuned where they are tuned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from adan_bench.config import RunConfig, RunRecord
from adan_bench.errors import UsageError
from adan_bench.records.store import check_empty, read_run
from adan_bench.studies.paper import execute, present
from adan_bench.studies.plan import plan
from adan_bench.tables import TRAINING_LOSS, TableColumn, figure, tables
from adan_bench.training.cluster import open_pool
from adan_bench.training.jobs import OnEvent


@dataclass(frozen=True)
class ComponentResult:
    """One row of the table, by seed: training loss over the last tenth, metric at the end, how many restarts.

    A run that diverged has no loss and no metric.
    """

    name: str
    losses: list[float]
    metrics: list[float]
    restarts: list[int]
    radius: float | None
    paper: float | None


def ablate(
    workload: str,
    seeds: int,
    chosen: RunConfig,
    out: Path,
    radius: float | None = None,
    resume: bool = False,
    on_event: OnEvent | None = None,
) -> tuple[list[ComponentResult], list[RunRecord]]:
    """Run the four rows with every seed; and the records of all runs, pilots too, for a report."""
    check_empty(out, resume)
    published = tables()["components"]
    rows = tuple(replace(row, values=row.values[:1], budget=(1, 1)) for row in published.rows)
    column = TableColumn(workload, workload, metric=TRAINING_LOSS)
    table = replace(published, columns=(column,), rows=rows, settings=(), run={})
    run_plan = present(plan([table], chosen, out, seeds, radius))
    for cell in run_plan.cells:
        if cell.absent:
            raise UsageError(cell.absent)
    execute(run_plan, open_pool(out, chosen), resume, on_event)
    records = {path: read_run(path) for path in run_plan.runs if (path / "config.json").exists()}
    results = []
    for cell in run_plan.cells:
        runs = [records[run.path] for run in cell.runs if run.path in records]
        restarts = [(r.result or {}).get("restarts") or {"count": 0} for r in runs]
        rule = runs[0].config.settings.get("restart") if runs else None
        results.append(
            ComponentResult(
                cell.row.head,
                [loss for r in runs if r.status == "finished" and (loss := r.training_loss) is not None],
                [r.final for r in runs if r.final is not None],
                [int(entry["count"]) for entry in restarts],
                None if rule is None else rule["radius"],
                figure(cell.printed),
            )
        )
    return results, list(records.values())
