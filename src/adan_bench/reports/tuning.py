"""The pages of `adan-bench tune` and `suggest`: the settings found, and what other learning rates gave."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from adan_bench.config import RunRecord
from adan_bench.records.stats import OptimizerSummary, WorkloadSummary, summarize_trials
from adan_bench.records.store import DamagedRecord
from adan_bench.reports import html
from adan_bench.reports.comparison import chart_data, environments_part, swatches, warn
from adan_bench.reports.conclusions import budget, count, number

HEAD = ("optimizer", "{metric}", "lr", "lower and higher lr", "lr range ±2%", "trials", "other settings")
TERMS = (
    "With seeds that no comparison uses. Lower and higher lr: the result at the tried rates next "
    "to the best. lr range ±2%: the rates around the best whose result is within 2% of it. edge: the best rate is the "
    "lowest or highest that was tried, so a better one may lie beyond; tune again with more trials."
)
SURE = " One run each, unless more are named: of rates that differ less than seeds do, either may be the better one."


def write_tuning(
    records: Sequence[RunRecord], folder: Path, damaged: Sequence[DamagedRecord] = (), notes: Sequence[str] = ()
) -> tuple[Path, list[WorkloadSummary]]:
    """Write tuning.html and tuning.md into the folder; the path of the page, and what it says.

    notes: paragraphs that stand before all else.
    """
    summaries = summarize_trials(records)
    data = chart_data(summaries)
    trials = sum(o.trials for summary in summaries for o in summary.optimizers)
    parts = [html.paragraph(text, "warning") for text in warn([], damaged)] + [html.paragraph(text) for text in notes]
    for i, summary in enumerate(summaries):
        chosen = " ".join(_chosen(o, summary.facts["metric"]) for o in summary.optimizers)
        lines = [
            html.paragraph(f"{budget(summary)}.", "soft"),
            html.paragraph(chosen + SURE, "conclusion"),
            html.table(*tuning_rows(summary), before=swatches(summary, data["styles"])),
            html.PagePart(html.heading("Learning rate").html + html.chart("rates", i).html),
        ]
        parts.append(html.section(summary.name, *lines))
    parts += [html.section("How to read the tables", html.paragraph(TERMS, "soft")), environments_part(records)]
    report = html.page("Settings tuned", f"{count(trials, 'trial')} by adan-bench.", parts, data)
    return report.write(folder / "tuning.html"), summaries


def tuning_rows(summary: WorkloadSummary) -> tuple[list[str], list[list[str]]]:
    """The best trial of every optimizer as text: head and rows, the best first."""
    head = [column.format(metric=summary.metric_head) for column in HEAD]
    return head, [_row(o) for o in summary.optimizers]


def _chosen(o: OptimizerSummary, metric: str) -> str:
    """What was chosen for an optimizer, and how sure that is."""
    if o.final is None:
        return f"{o.name}: no trial has a result, so nothing was chosen."
    text = f"{o.name}: lr {o.settings['lr']:g} gave the {metric} {number(o.final.mean)}"
    text += f" (mean of {count(o.n, 'seed')})" if o.n > 1 else ""
    if (s := o.sensitivity) is None:
        return f"{text}, the best of {count(o.trials, 'trial')}."
    others = [(lr, value) for lr, value in s.points if value is not None and lr != s.best_lr]
    if not others:
        return f"{text}; no other rate has a result."
    best = o.final.mean
    lr, value = min(others, key=lambda point: abs(point[1] - best))
    text += f", the next best, {lr:g}, {number(value)}"
    return f"{text}; the best is at the edge, so a better one may lie beyond." if s.at_edge else f"{text}."


def _row(o: OptimizerSummary) -> list[str]:
    others = html.settings({key: value for key, value in o.settings.items() if key != "lr"})
    beside, width = "–", "–"
    if (s := o.sensitivity) is not None:
        results = ["not tried", *(number(value) for _, value in s.points), "not tried"]
        i = [rate for rate, _ in s.points].index(s.best_lr)
        beside, width = f"{results[i]}, {results[i + 2]}", f"{s.low:g} … {s.high:g}"
    edge = " (edge)" if s is not None and s.at_edge else ""
    best = number(None if o.final is None else o.final.mean)
    lost = f", {o.diverged} diverged" if o.diverged else ""
    return [o.name, best, f"{o.settings['lr']:g}{edge}", beside, width, f"{o.trials}{lost}", others]
