"""docs/paper-settings.md prints the runs that `adan-bench reproduce --scale paper` plans."""

from __future__ import annotations

from pathlib import Path

import paper_plan

from adan_bench.config import RunConfig
from adan_bench.studies.plan import plan
from adan_bench.tables import tables


def test_the_page_of_settings_prints_the_planned_runs() -> None:
    """Steps, batch, schedule, settings and options of every run, guesses in italics."""
    text = paper_plan.settings()
    for table in tables().values():
        if table.kind != "train" or (table.like and table.curves):
            continue
        part = text.split(f"## {table.place}: ")[1].split("\n## ")[0]
        for cell in plan([table], RunConfig(scale="paper"), Path("runs")).cells:
            for config in [arm.base for arm in (cell.arm, cell.arm.start) if arm] if cell.arm else []:
                words = [f"{config.steps} steps", f"batch {config.batch_size}", f"schedule {config.schedule}"]
                lines = [line for line in part.splitlines() if line.startswith(f"| {cell.row.head} |")]
                assert any(all(word in line for word in words) for line in lines), (table.name, words)
                assert "lr" not in config.origin.guesses or any("*lr " in line for line in lines)
