"""What a reproduction says: the paper's figures beside ours, in Markdown and as a page, from tables.json alone.

Scales differ, so ours and the paper's are never ranked together; what is compared is the order within each.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from adan_bench.records.cells import CellRecord
from adan_bench.records.stats import MIN_SEEDS, interval, usual_range
from adan_bench.records.store import write_bytes
from adan_bench.reports import html
from adan_bench.reports.conclusions import count, described, number, said, spread
from adan_bench.tables import PaperTable, TableColumn, figure, tables

WORDS = {"smoke": "minutes on two cores", "small": "minutes on one GPU", "paper": "published sizes, data and budgets"}
#: What stands in every title and over our figures, so that nobody takes them for the paper's experiment.
KINDS = {"smoke": "toy models and toy data", "small": "smaller models and data", "paper": ""}
#: The mark of a figure whose settings were tuned for runs of another length or batch size.
OTHER = "for another training"
#: That of a figure for which the user changed the steps or a setting of the table.
CHANGED = "changed"

TITLE = "The paper's tables, run again"


class Agreement(NamedTuple):
    """Cells that are run at a scale and those with a result; pairs of rows that differ in the paper's figures and in
    ours, and those that stand in the same order in both.
    """

    planned: int
    done: int
    pairs: int
    same: int


class FigureLine(NamedTuple):
    """A figure of the paper beside ours, or a row of a table of statements; run: whether it is run at this scale."""

    cells: list[str]
    run: bool


@dataclass(frozen=True)
class TableSection:
    """One table as text: what it is, its lines under `head`, what can be said, and how ours came about."""

    place: str
    title: str
    head: tuple[str, ...]
    caption: str
    lines: list[FigureLine]
    agreement: Agreement
    conclusion: str
    how: list[str]
    notes: list[str]
    settings: list[tuple[str, str]]
    curves: list[CellRecord]

    @property
    def run(self) -> list[list[str]]:
        return [line.cells for line in self.lines if line.run]

    @property
    def anchor(self) -> str:
        return self.place.replace(" ", "-").lower()


def sections(summary: Mapping[str, Any], known: Mapping[str, PaperTable] | None = None) -> list[TableSection]:
    known = known or tables()
    return [
        _section(known[entry["name"]], [CellRecord.from_json(cell) for cell in entry["cells"]], summary)
        for entry in summary["tables"]
    ]


def _section(table: PaperTable, cells: Sequence[CellRecord], summary: Mapping[str, Any]) -> TableSection:
    scale, not_run = summary["scale"], "not chosen" if summary.get("only") else "not run at this scale"
    whys = list(dict.fromkeys(cell.why for cell in cells if cell.why))
    lines, title, ours = _lines(table, cells, whys, not_run), f"{table.place}: {table.title}", "ours"
    if table.kind != "statement" and any(printed != "unpublished" for _, _, printed in table.cells()):
        title, ours = titled(title, scale), titled(ours, scale)
    head: tuple[str, ...] = ("problem", "optimizer", "paper", ours, "paper's order", "our order")
    if table.kind == "statement":  # as it is printed, since there is nothing to compare
        head = ("", *(column.head for column in table.columns))
        lines = [FigureLine([row.head, *(value or "" for value in row.values)], True) for row in table.rows]
    agreement = _count(table, cells)
    notes = [f"{mark} {meaning}." for mark, meaning in table.marks.items()] + list(table.notes)
    return TableSection(
        table.place,
        title,
        head,
        f"{table.caption} Figures: {table.metric} ({'higher' if table.higher_is_better else 'lower'} is better).",
        lines,
        agreement,
        _conclude(table, cells, agreement),
        _how(cells, scale),
        notes + [f"({i}) {why}" for i, why in enumerate(whys, 1)],
        [(f"{cell.column}, {cell.row}", _described(cell)) for cell in cells if cell.config is not None],
        list(cells) if any(any(cell.curves) for cell in cells) else [],
    )


def _lines(table: PaperTable, cells: Sequence[CellRecord], whys: Sequence[str], not_run: str) -> list[FigureLine]:
    """Every figure of the paper with ours and the place of each in its column, where both have several."""
    by_place = {(cell.row, cell.column): cell for cell in cells}
    lines = []
    for column in table.columns:
        both = _both(table, column, cells)
        for row, there, printed in table.cells():
            if there is column:
                cell, places = by_place.get((row.head, column.head)), ["", ""]
                if row.head in both[0] and len(both[0]) > 1:
                    places = [_place(row.head, values, table.higher(column)) for values in both]
                mark = "" if cell is None else _tuning(cell)
                text = (_ours(table, cell, whys) if cell is not None else not_run) + (f", {mark}" if mark else "")
                lines.append(FigureLine([column.head, row.head, printed, text, *places], cell is not None))
    return lines


def titled(text: str, scale: str) -> str:
    """A title that says what ours is, where it is not what the paper ran."""
    return f"{text} ({KINDS[scale]})" if KINDS[scale] else text


def _both(
    table: PaperTable, column: TableColumn, cells: Sequence[CellRecord]
) -> tuple[dict[str, float], dict[str, float]]:
    """The paper's figures and ours by row, of the rows that have both.

    A row with lost seeds has no place in the order: the mean of the seeds that went well is no mean of all.
    """
    pairs = [(row.head, figure(printed)) for row, there, printed in table.cells() if there is column]
    center = statistics.median if table.median else statistics.fmean
    ours = {cell.row: center(cell.values) for cell in cells if cell.column == column.head and cell.whole}
    published = {head: value for head, value in pairs if value is not None and head in ours}
    return published, {head: ours[head] for head in published}


def _place(head: str, values: Mapping[str, float], higher: bool) -> str:
    better = sum(value > values[head] if higher else value < values[head] for value in values.values())
    return f"{better + 1}/{len(values)}"


def _ours(table: PaperTable, cell: CellRecord, whys: Sequence[str]) -> str:
    mark = f" ({whys.index(cell.why) + 1})" if cell.why else ""
    if not cell.values:
        return f"{cell.status}{mark}"
    unit = 100 if table.percent else 1
    values = [unit * value for value in cell.values]
    if table.median and len(values) > 1:
        ends = f"{number(min(values))} to {number(max(values))}, n={len(values)}"
        return f"median {number(statistics.median(values))} ({ends}){mark}"
    low, high = usual_range(cell.metric, cell.values)
    return spread(interval(values).within(unit * low, unit * high), values) + mark


def _count(table: PaperTable, cells: Sequence[CellRecord]) -> Agreement:
    same = other = 0
    for column in table.columns:
        published, ours = _both(table, column, cells)
        for a, b in combinations(published, 2):
            sign = (published[a] - published[b]) * (ours[a] - ours[b])
            same, other = same + (sign > 0), other + (sign < 0)
    if any(cell.tiny for cell in cells if cell.values):  # times of tiny versions have no order to compare
        same = other = 0
    return Agreement(len(cells), sum(bool(cell.values) for cell in cells), same + other, same)


def _conclude(table: PaperTable, cells: Sequence[CellRecord], agreement: Agreement) -> str:
    """Say how many pairs of rows stand in the same order in both, and how much that is worth."""
    if table.kind == "statement":
        return "Statements of theory: nothing of it is run."
    text = f"{agreement.done} of {agreement.planned} cells of this scale have a result."
    if agreement.pairs:
        text += f" Pairs of rows that differ in both: {agreement.pairs}; in the paper's order: {agreement.same}."
    seeds = min((len(cell.values) for cell in cells if cell.values), default=MIN_SEEDS)
    if seeds < MIN_SEEDS and table.kind == "train":
        text += f" With {count(seeds, 'seed')} an order is no evidence of a difference."
    if any(cell.tiny for cell in cells if cell.values):
        text += " These are tiny versions: their times say nothing about the published sizes."
    for optimizer, printed in table.variances.items():
        means = [interval(cell.values).mean for cell in cells if cell.optimizer == optimizer and cell.whole]
        if len(means) > 1:
            ours = f"{statistics.pvariance(means):.2e}"
            text += f" Variance over the {len(means)} settings of {optimizer}: {ours}; paper: {printed}."
    return text


def _how(cells: Sequence[CellRecord], scale: str) -> list[str]:
    """Name scale, data and seeds, and say whether the settings make it fair."""
    done = [cell for cell in cells if cell.values]
    if not done:
        return []
    counts = sorted({len(cell.values) for cell in done})
    seeds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    lines = [f"Scale {scale} ({WORDS[scale]}), seeds: {seeds}."]
    about: dict[str, list[str]] = {}
    for cell in done:
        size = f"; {cell.parameters:,} parameters" if cell.parameters else ""
        about.setdefault((cell.data or "data not named") + size, []).append(cell.workload)
    lines += [f"{', '.join(dict.fromkeys(names))}: {text}." for text, names in about.items()]
    marks = {mark for cell in done if (mark := _tuning(cell))}
    if CHANGED in marks:
        lines.append(f"Cells marked “{CHANGED}” had other steps or settings than the table says, see below.")
    if scale == "paper":
        if any(cell.config is not None and cell.config.origin.guesses for cell in done):
            lines.append("Some settings are guesses and untuned, see below: this is not a fair comparison.")
    elif others := sorted(marks - {CHANGED}):
        marked = " or ".join(f"“{mark}”" for mark in others)
        lines.append(f"Settings marked {marked} were not tuned for these runs: this is not a fair comparison.")
    return lines


def _tuning(cell: CellRecord) -> str:
    """The mark of a cell with a result: empty where its settings were tuned for its training."""
    if cell.config is None or not cell.values:
        return ""
    return CHANGED if cell.config.origin.changed else {"elsewhere": OTHER}.get(flaw := cell.config.origin.flaw, flaw)


def _described(cell: CellRecord) -> str:
    """The settings and the training of a cell's runs, and of their pre-training."""
    parts = []
    for config in (cell.config, cell.before):
        if config is not None:
            words = described(config if cell.before is None else replace(config, init=None))
            parts.append(f"{', '.join(words.values())}; {said(config.origin)}")
    return f". Before, {cell.before.workload}: ".join(parts) if cell.before is not None else parts[0]


def overview(summary: Mapping[str, Any]) -> str:
    e = summary["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in e["packages"].items())
    machine = ", ".join(str(part) for part in (e["platform"], e.get("cpu"), e.get("gpu")) if part)
    took = f" in {summary['seconds'] / 60:.1f} minutes"
    if summary.get("training_seconds"):  # of all runs, those made before a --resume among them
        took = f" with {summary['training_seconds'] / 60:.1f} minutes of training in all"
    return (
        f"Scale {summary['scale']}, {count(len(summary['tables']), 'table')}, {count(summary['runs'], 'run')}{took}, "
        f"{summary['jobs']} at a time, on {summary['device']} "
        f"in {'bf16 autocast' if summary['bf16'] else 'fp32'}: {machine}, "
        f"{e['cores']} cores. Python {e['python']}, {versions}; commit {e['commit'] or 'unknown'}. {e['started']}."
    )


def write(summary: Mapping[str, Any], folder: Path, known: Mapping[str, PaperTable] | None = None) -> Path:
    """Write tables.html and tables.md into the folder; the path of the page."""
    from adan_bench.reports.figures import curves_png

    parts = sections(summary, known)
    figures = {section.anchor: curves_png(section.curves) for section in parts if section.curves}
    for anchor, png in figures.items():
        write_bytes(folder / f"{anchor}.png", png)
    return render(summary, parts, figures).write(folder / "tables.html")


def render(summary: Mapping[str, Any], parts: Sequence[TableSection], figures: Mapping[str, bytes]) -> html.PagePart:
    intro = (
        "Unless the scale is “paper”, ours are from smaller models, other data and shorter runs. Do not rank them "
        "with the paper's: only the order within each is compared."
    )
    head = ("", "cells with a result", "pairs in the paper's order")
    counts = [s.agreement for s in parts]
    index = [["", f"{a.done} of {a.planned}", f"{a.same} of {a.pairs}" if a.pairs else ""] for a in counts]
    links = html.table(head, index, before=[html.link(s.anchor, s.title) for s in parts])
    title = titled(TITLE, summary["scale"]) if any(a.planned for a in counts) else TITLE
    parts_of_page = [html.paragraph(intro), html.PagePart(links.html), *(_part(s, figures) for s in parts)]
    return html.page(title, overview(summary), parts_of_page)


def _part(s: TableSection, figures: Mapping[str, bytes]) -> html.PagePart:
    kinds = ["" if line.run else "soft" for line in s.lines]
    return html.section(
        s.title,
        html.paragraph(s.caption, "soft"),
        html.paragraph(s.conclusion, "conclusion"),
        html.image(s.title, figures[s.anchor], f"{s.anchor}.png") if s.anchor in figures else html.PagePart(),
        html.table(s.head, [line.cells for line in s.lines], kinds=kinds, kind="text"),
        html.items(s.how),
        html.items(s.notes),
        html.PagePart(html.folded("Settings", html.facts(s.settings)).html if s.settings else ""),
        anchor=s.anchor,
    )
