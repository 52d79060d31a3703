"""The tables of docs/paper-settings.md: the runs that are planned at the scale "paper", each with its source."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from adan_bench.config import RunConfig
from adan_bench.reports.conclusions import described
from adan_bench.reports.html import markdown_table
from adan_bench.studies.plan import PlannedCell, plan
from adan_bench.tables import PaperTable, tables
from adan_bench.task import SCALES


def page() -> str:
    """A section for each table of the paper that trains."""
    return "\n\n".join(_section(table) for table in tables().values() if table.kind == "train")


def _section(table: PaperTable) -> str:
    title = f"## {table.place}: {table.title}\n\n"
    if table.like:
        places = " and ".join(tables()[name].place for name in table.like)
        return f"{title}The runs, and so the settings, are those of {places}."
    cells = [cell for cell in plan([table], RunConfig(scale=SCALES[-1]), Path("runs")).cells if cell.runs]
    rows: dict[tuple[str, ...], list[str]] = {}
    for cell in cells:
        for before, config in _runs(cell):
            guesses = {"floor" if name == "min_lr" else name for name in config.origin.guesses}
            words = [f"*{text}*" if name in guesses else text for name, text in described(config).items()]
            texts = (cell.row.head, before, ", ".join(words), config.origin.source)
            rows.setdefault(texts, []).append(cell.column.head)
    heads = list(dict.fromkeys(cell.column.head for cell in cells))
    sources = list(dict.fromkeys(source for *_, source in rows))
    lines = []
    for (name, before, run, source), columns in rows.items():
        problem = "all" if columns == heads and len(heads) > 1 else ", ".join(dict.fromkeys(columns))
        line = (name, f"{before} before: {problem}" if before else problem, run, str(sources.index(source) + 1))
        lines.append([text.replace("|", "\\|") for text in line])
    text = markdown_table(["optimizer", "problem", "run", "source"], lines, left=4)
    notes = [f"{at}. " + re.sub(r"(?<!\w)_", r"\_", source) for at, source in enumerate(sources, 1)]
    return "\n".join([title + text, "", *notes])


def _runs(cell: PlannedCell) -> Iterator[tuple[str, RunConfig]]:
    """The pre-training of a cell's runs under its workload's name, where there is one, and the run itself."""
    if cell.before is not None:
        yield cell.before.workload, cell.before
    settings = {"restart": "by a pilot run"} if cell.row.restart else {}
    config = cell.runs[0].config
    if rates := cell.table.published(config.optimizer, config.workload, cell.column).rates:
        settings["lr"] = f"of {', '.join(f'{rate:g}' for rate in rates)} by trials"
    yield "", replace(config, init=None, settings={**config.settings, **settings})
