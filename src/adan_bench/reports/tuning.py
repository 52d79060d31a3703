"""The report of a tuning: every optimizer's best settings, and what the rates beside the best one gave."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from adan_bench.config import RunRecord
from adan_bench.records.stats import OptimizerSummary, WorkloadSummary, summarize_trials
from adan_bench.records.store import DamagedRecord, write_bytes
from adan_bench.reports import html
from adan_bench.reports.comparison import chart_data, environments, warn
from adan_bench.reports.conclusions import count, length, number
from adan_bench.reports.palette import style_of

HEAD = ("optimizer", "{metric}", "lr", "lower and higher lr", "lr range ±2%", "trials", "other settings")
TERMS = (
    "From one run each, with a seed that no comparison uses. Lower and higher lr: the {metric} at the tried rates next "
    "to the best. lr range ±2%: the rates around the best whose result is within 2% of it. edge: the best rate is the "
    "lowest or highest that was tried, so a better one may lie beyond; tune again with more trials."
)


def write_tuning(
    records: Sequence[RunRecord], folder: Path, damaged: Sequence[DamagedRecord] = ()
) -> tuple[Path, list[WorkloadSummary]]:
    """Write tuning.html and tuning.md into the folder; the path of the page, and what it says."""
    summaries = summarize_trials(records)
    warnings = warn([], damaged)
    names = list(dict.fromkeys(o.name for summary in summaries for o in summary.optimizers))
    data = {
        "styles": {name: style_of(name, names) for name in names},
        "workloads": [chart_data(summary) for summary in summaries],
        "profile": {},
    }
    trials = sum(o.trials for summary in summaries for o in summary.optimizers)
    title, about = "Settings tuned", f"{count(trials, 'trial')} by adan-bench tune."
    parts = [html.paragraph(text, "warning") for text in warnings]
    markdown = [f"# {title}", "", *(line for text in warnings for line in (f"**{text}**", "")), about, ""]
    for i, summary in enumerate(summaries):
        head, rows = tuning_rows(summary)
        terms = TERMS.format(**summary.facts)
        swatches = [html.swatch(**style_of(o.name, names)) for o in summary.optimizers]
        table, budget = html.table(head, rows, before=swatches), budget_of(summary)
        charts = [html.heading("Learning rate"), html.chart("rates", i)]
        parts.append(
            html.section(summary.name, html.paragraph(budget, "soft"), table, html.paragraph(terms, "soft"), *charts)
        )
        markdown += [f"## {summary.name}", "", budget, "", *html.markdown_table(head, rows), "", terms, ""]
    parts += [html.heading("Environment", 2), *(html.facts(facts.items()) for facts in environments(records))]
    page = folder / "tuning.html"
    write_bytes(page, html.page(title.lower(), title, about, parts, data).encode())
    write_bytes(folder / "tuning.md", "\n".join(markdown).encode())
    return page, summaries


def budget_of(summary: WorkloadSummary) -> str:
    return f"{length(summary)}, {summary.schedule} schedule, {summary.device}."


def tuning_rows(summary: WorkloadSummary) -> tuple[list[str], list[list[str]]]:
    """The best trial of every optimizer as text: head and rows, the best first."""
    arrow = "↑" if summary.higher_is_better else "↓"
    head = [column.format(metric=f"{summary.facts['metric']} {arrow}") for column in HEAD]
    return head, [_row(o) for o in summary.optimizers]


def _row(o: OptimizerSummary) -> list[str]:
    others = ", ".join(f"{key} {html.plain(value)}" for key, value in o.settings.items() if key != "lr")
    beside, width = "–", "–"
    if (s := o.sensitivity) is not None:
        rates = [rate for rate, _ in s.points]
        i = rates.index(s.best_lr)
        values = [number(s.points[k][1]) if 0 <= k < len(rates) else "not tried" for k in (i - 1, i + 1)]
        beside = ", ".join(values)
        width = f"{s.low:g} … {s.high:g}"
    edge = " (edge)" if s is not None and s.at_edge else ""
    best = number(None if o.final is None else o.final.mean)
    lost = f", {o.diverged} diverged" if o.diverged else ""
    return [o.name, best, f"{o.settings['lr']:g}{edge}", beside, width, f"{o.trials}{lost}", others]
