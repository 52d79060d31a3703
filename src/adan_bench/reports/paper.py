"""What a reproduction says: the paper's figures beside ours, in Markdown and as a page, from tables.json alone.

Scales differ, so ours and the paper's are never ranked together; what is compared is the order within each.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from adan_bench.config import Origin
from adan_bench.records.stats import MIN_SEEDS, interval, usual_range
from adan_bench.records.store import write_bytes
from adan_bench.reports import html
from adan_bench.reports.conclusions import said, spread
from adan_bench.tables import Column, Table, figure, tables

WORDS = {"smoke": "minutes on two cores", "small": "minutes on one GPU", "paper": "published sizes, data and budgets"}
#: What stands in every title and over our figures, so that nobody takes them for the paper's experiment.
KINDS = {"smoke": "toy models and toy data", "small": "smaller models and data", "paper": ""}
#: The mark of a figure whose settings were tuned for runs of another length or batch size.
OTHER = "for another training"

TITLE = "The paper's tables, run again"


class Count(NamedTuple):
    """Cells that are run at a scale and those with a result; pairs of rows that differ in the paper's figures and in
    ours, and those that stand in the same order in both.
    """

    planned: int
    done: int
    pairs: int
    same: int

    @property
    def order(self) -> str:
        return f"{self.same} of {self.pairs}" if self.pairs else ""


class Line(NamedTuple):
    """A cell of the paper's under `head`, or a row of a table of statements; run: whether it is run at this scale."""

    cells: list[str]
    run: bool


@dataclass(frozen=True)
class Section:
    """One table as text: what it is, its lines under `head`, what can be said, and how ours came about."""

    place: str
    title: str
    head: tuple[str, ...]
    caption: str
    lines: list[Line]
    count: Count
    conclusion: str
    how: list[str]
    notes: list[str]
    settings: list[tuple[str, str]]

    @property
    def run(self) -> list[list[str]]:
        return [line.cells for line in self.lines if line.run]

    @property
    def anchor(self) -> str:
        return self.place.replace(" ", "-").lower()


def sections(summary: Mapping[str, Any], known: Mapping[str, Table] | None = None) -> list[Section]:
    known = known or tables()
    return [_section(known[entry["name"]], entry["cells"], summary["scale"]) for entry in summary["tables"]]


def _section(table: Table, cells: Sequence[Mapping[str, Any]], scale: str) -> Section:
    by_place = {(cell["row"], cell["column"]): cell for cell in cells}
    partly = len(_tunings(cells)) > 1  # where all cells are the same, `_how` describes the whole table
    whys: dict[str, int] = {}
    lines = []
    for column in table.columns:
        published, ours = _figures(table, column), _means(column, cells)
        shared = [row for row in published if row in ours]
        for row, there, printed in table.cells():
            if there is column:
                cell = by_place.get((row.head, column.head))
                both = row.head in shared and len(shared) > 1
                places = [
                    _place(row.head, {head: values[head] for head in shared}, table.higher(column)) if both else ""
                    for values in (published, ours)
                ]
                ours_here = _ours(table, cell, whys)
                if partly and cell is not None and cell["values"] and (kind := _tuning(cell)):
                    ours_here += f", {kind}"
                lines.append(Line([column.head, row.head, printed, ours_here, *places], cell is not None))
    head: tuple[str, ...] = ("problem", "optimizer", "paper", titled("ours", scale), "paper's order", "our order")
    title = f"{table.place}: {table.title}"
    if table.kind == "statement":  # as it is printed, since there is nothing to compare
        head = ("", *(column.head for column in table.columns))
        lines = [Line([row.head, *(value or "" for value in row.values)], True) for row in table.rows]
    count = _count(table, cells)
    notes = [f"{mark} {meaning}." for mark, meaning in table.marks.items()] + list(table.notes)
    notes += [f"({index}) {why}" for why, index in whys.items()]
    return Section(
        table.place,
        title if table.kind == "statement" else titled(title, scale),
        head,
        f"{table.caption} Figures: {table.metric} ({'higher' if table.higher_is_better else 'lower'} is better).",
        lines,
        count,
        _conclude(table, cells, count),
        _how(cells, scale),
        notes,
        _settings(cells),
    )


def titled(text: str, scale: str) -> str:
    """A title that says what ours is, where it is not what the paper ran."""
    return f"{text} ({KINDS[scale]})" if KINDS[scale] else text


def _figures(table: Table, column: Column) -> dict[str, float]:
    pairs = [(row.head, figure(printed)) for row, there, printed in table.cells() if there is column]
    return {head: value for head, value in pairs if value is not None}


def _means(column: Column, cells: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of the rows that have a place in the order: the mean of the seeds that went well is no mean of all."""
    return {c["row"]: interval(c["values"]).mean for c in cells if c["column"] == column.head and _whole(c)}


def _whole(cell: Mapping[str, Any]) -> bool:
    """Whether every seed has a value."""
    return bool(cell["values"]) and len(cell["values"]) == int(cell["seeds"])


def _place(head: str, values: Mapping[str, float], higher: bool) -> str:
    better = sum(value > values[head] if higher else value < values[head] for value in values.values())
    return f"{better + 1}/{len(values)}"


def _ours(table: Table, cell: Mapping[str, Any] | None, whys: dict[str, int]) -> str:
    if cell is None:
        return "not run at this scale"
    mark = f" ({whys.setdefault(cell['why'], len(whys) + 1)})" if cell["why"] else ""
    if not cell["values"]:
        return f"{cell['status']}{mark}"
    unit = 100 if table.percent else 1
    values = [unit * value for value in cell["values"]]
    low, high = usual_range(cell.get("metric", ""), cell["values"])
    return spread(interval(values, within=(unit * low, unit * high)), values) + mark


def _count(table: Table, cells: Sequence[Mapping[str, Any]]) -> Count:
    same = other = 0
    for column in table.columns:
        published, ours = _figures(table, column), _means(column, cells)
        for a, b in combinations([head for head in published if head in ours], 2):
            sign = (published[a] - published[b]) * (ours[a] - ours[b])
            same, other = same + (sign > 0), other + (sign < 0)
    done = [cell for cell in cells if cell["values"]]
    if done and done[0].get("tiny", False):  # times of tiny versions have no order to compare
        same = other = 0
    return Count(len(cells), len(done), same + other, same)


def _conclude(table: Table, cells: Sequence[Mapping[str, Any]], count: Count) -> str:
    """How many pairs of rows stand in the same order in both, and how much that is worth."""
    if table.kind == "statement":
        return "Statements of theory: nothing of it is run."
    done = [cell for cell in cells if cell["values"]]
    text = f"{count.done} of {count.planned} cells of this scale have a result."
    tiny = bool(done) and done[0].get("tiny", False)
    if count.pairs:
        text += f" Pairs of rows that differ in both: {count.pairs}; in the paper's order: {count.same}."
    seeds = min((len(cell["values"]) for cell in done), default=0)
    if done and seeds < MIN_SEEDS and table.kind == "train":
        text += f" With {seeds} {'seed' if seeds == 1 else 'seeds'} an order is no evidence of a difference."
    if tiny:
        text += " These are tiny versions: their times say nothing about the published sizes."
    return text + _variances(table, cells)


def _variances(table: Table, cells: Sequence[Mapping[str, Any]]) -> str:
    text = ""
    for optimizer, printed in table.variances.items():
        means = [interval(c["values"]).mean for c in cells if c["optimizer"] == optimizer and _whole(c)]
        if len(means) > 1:
            ours = f"{statistics.pvariance(means):.2e}"
            text += f" Variance over the {len(means)} settings of {optimizer}: {ours}; paper: {printed}."
    return text


def _how(cells: Sequence[Mapping[str, Any]], scale: str) -> list[str]:
    """At which scale, on which data, with how many seeds, and whether the settings make it fair."""
    done = [cell for cell in cells if cell["values"]]
    if not done:
        return []
    lines = [f"Scale {scale} ({WORDS[scale]}), seeds: {_span(len(cell['values']) for cell in done)}."]
    about: dict[str, list[str]] = {}
    for cell in done:
        size = f"; {cell['parameters']:,} parameters" if cell.get("parameters") else ""
        about.setdefault((cell["data"] or "data not named") + size, []).append(cell["workload"])
    lines += [f"{', '.join(dict.fromkeys(names))}: {text}." for text, names in about.items()]
    if scale == "paper":
        if any(_origin(cell).guesses for cell in done):
            lines.append("Some settings are guesses and untuned, see below: this is not a fair comparison.")
    elif len(kinds := _tunings(cells)) > 1:
        marked = " or ".join(f"“{kind}”" for kind in sorted(kinds - {""}))
        lines.append(f"Settings marked {marked} were not tuned for these runs: this is not a fair comparison.")
    elif kinds == {OTHER}:
        lines.append("These settings were tuned for another training: this is not a fair comparison.")
    elif kinds == {"untuned"}:
        lines.append("These settings were not tuned for this scale: this is not a fair comparison.")
    return lines


def _tunings(cells: Sequence[Mapping[str, Any]]) -> set[str]:
    """How the settings of the cells with a result were tuned, as `_tuning` has it."""
    return {_tuning(cell) for cell in cells if cell["values"] and "origin" in cell}


def _tuning(cell: Mapping[str, Any]) -> str:
    """How a cell is marked beside others: empty where its settings were tuned for its training."""
    return {"untuned": "untuned", "elsewhere": OTHER}.get(_origin(cell).flaw, "")


def _origin(cell: Mapping[str, Any]) -> Origin:
    return Origin.from_json(cell.get("origin", {}))


def _span(counts: Any) -> str:
    distinct = sorted(set(counts))
    return " to ".join(map(str, dict.fromkeys((distinct[0], distinct[-1]))))


def _settings(cells: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    rows = []
    for cell in cells:
        if "settings" in cell:
            text = _described(cell)
            if "before" in cell:
                text += f". Before, {cell['before']['workload']}: {_described(cell['before'])}"
            rows.append((f"{cell['column']}, {cell['row']}", text))
    return rows


def _described(facts: Mapping[str, Any]) -> str:
    values = ", ".join(f"{key} {html.plain(value)}" for key, value in facts["settings"].items())
    how = [f"{facts['steps']} steps of {facts['batch_size']}"]
    if facts.get("init"):
        how.append(f"from the weights of {facts['init']}")
    how.append(f"{facts['schedule']} after {facts['warmup']:.1%} of warm-up")
    if facts.get("floor"):
        how.append(f"down to {facts['floor']:.2g} of the rate")
    if facts.get("cooldown"):
        how.append(f"where the last {facts['cooldown']:.1%} stay")
    if facts.get("clip", -1) >= 0:
        how.append(f"clipping at {facts['clip']:g}" if facts["clip"] else "no clipping")
    if facts.get("ema"):
        how.append(f"average of weights with decay {facts['ema']:g}")
    if facts.get("nonmono"):
        how.append(f"the first rate again after {facts['nonmono']} evaluations without a better one")
    how += [f"{name.replace('_', ' ')} {html.plain(value)}" for name, value in (facts.get("training") or {}).items()]
    return f"{values}; {', '.join(how)}; {said(_origin(facts))}"


def overview(summary: Mapping[str, Any]) -> str:
    e = summary["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in e["packages"].items())
    machine = ", ".join(str(part) for part in (e["platform"], e.get("cpu"), e.get("gpu")) if part)
    count = len(summary["tables"])
    return (
        f"Scale {summary['scale']}, {count} {'table' if count == 1 else 'tables'}, {summary['runs']} runs in "
        f"{summary['seconds'] / 60:.1f} minutes, {summary['jobs']} at a time, on {summary['device']} "
        f"in {'bf16 autocast' if summary['bf16'] else 'fp32'}: {machine}, "
        f"{e['cores']} cores. Python {e['python']}, {versions}; commit {e['commit'] or 'unknown'}. {e['started']}."
    )


def write(summary: Mapping[str, Any], folder: Path, known: Mapping[str, Table] | None = None) -> Path:
    """tables.html and tables.md; the path of the page."""
    parts = sections(summary, known)
    page, figures = folder / "tables.html", _figures_of(summary, parts)
    for anchor, png in figures.items():
        write_bytes(folder / f"{anchor}.png", png)
    write_bytes(page, _page(summary, parts, figures).encode())
    write_bytes(folder / "tables.md", _markdown(summary, parts, figures).encode())
    return page


def _figures_of(summary: Mapping[str, Any], parts: Sequence[Section]) -> dict[str, bytes]:
    """The figures of curves as PNG, by the anchor of their section."""
    from adan_bench.reports.figures import curves_png

    return {
        section.anchor: curves_png(entry["cells"])
        for section, entry in zip(parts, summary["tables"], strict=True)
        if any(any(cell.get("curves") or ()) for cell in entry["cells"])
    }


def _title(summary: Mapping[str, Any], parts: Sequence[Section]) -> str:
    return titled(TITLE, summary["scale"]) if any(section.count.planned for section in parts) else TITLE


def _markdown(summary: Mapping[str, Any], tables: Sequence[Section], figures: Mapping[str, bytes]) -> str:
    parts = [f"# {_title(summary, tables)}", "", overview(summary), ""]
    for section in tables:
        parts += [f"## {section.title}", "", section.caption, "", section.conclusion, ""]
        if section.anchor in figures:
            parts += [f"![{section.title}]({section.anchor}.png)", ""]
        if section.run:
            parts += [*html.markdown_table(section.head, section.run, left=2), ""]
        parts += [f"- {line}" for line in (*section.how, *section.notes)] + [""]
    return "\n".join(parts)


def _page(summary: Mapping[str, Any], tables: Sequence[Section], figures: Mapping[str, bytes]) -> str:
    intro = (
        "Unless the scale is “paper”, ours are from smaller models, other data and shorter runs. Do not rank them "
        "with the paper's: only the order within each is compared."
    )
    index = [[f"{s.count.done} of {s.count.planned}", s.count.order] for s in tables]
    links = [html.link(s.anchor, s.title) for s in tables]
    head = ("", "cells with a result", "pairs in the paper's order")
    parts = [html.paragraph(intro), html.table(head, [["", *row] for row in index], before=links)]
    parts += [
        html.section(
            s.title,
            html.paragraph(s.caption, "soft"),
            html.paragraph(s.conclusion, "conclusion"),
            html.image(s.title, figures[s.anchor]) if s.anchor in figures else "",
            html.table(
                s.head, [x.cells for x in s.lines], kinds=["" if x.run else "soft" for x in s.lines], kind="text"
            ),
            html.items(s.how),
            html.items(s.notes),
            html.folded("Settings", html.facts(s.settings)) if s.settings else "",
            anchor=s.anchor,
        )
        for s in tables
    ]
    title = _title(summary, tables)
    return html.page(title, title, overview(summary), parts)
