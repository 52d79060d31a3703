"""The page of `adan-bench suggest`: settings for a full run, the short runs behind them, and the lines to paste."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from adan_bench.config import RunRecord
from adan_bench.records.stats import summarize_trials
from adan_bench.records.suggestion import LOSS, MeasuredSuggestion
from adan_bench.reports import html
from adan_bench.reports.comparison import chart_data, environments_part


def write_suggestions(
    found: Mapping[tuple[str, str], MeasuredSuggestion], records: Sequence[RunRecord], folder: Path
) -> Path:
    """Write suggestion.html and suggestion.md into the folder; the path of the page."""
    parts = []
    for (workload, name), s in found.items():
        head = ("lr", LOSS, "")
        lines = [html.paragraph(line) for line in s.summary().splitlines()]
        lines += [html.items(s.doubts()), html.table(head, s.rows(), kind="bars"), html.code(s.code())]
        parts.append(html.section(f"{workload}: {name}", *lines))
    summaries = summarize_trials(records)
    charts = [html.PagePart(html.heading(s.name).html + html.chart("rates", i).html) for i, s in enumerate(summaries)]
    about = f"{len(records)} short runs by adan-bench suggest, with a seed that no comparison uses."
    whole = [*parts, html.section("Learning rates", *charts), environments_part(records)]
    report = html.page("Settings suggested", about, whole, chart_data(summaries))
    return report.write(folder / "suggestion.html")
