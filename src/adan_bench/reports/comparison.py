"""The reports of runs and of tuning trials: an HTML page that needs nothing else, and Markdown and PNG for a README."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from adan_bench.config import RunRecord, judged
from adan_bench.records.archive import pack
from adan_bench.records.stats import (
    Interval,
    OptimizerSummary,
    WorkloadSummary,
    performance_profile,
    summarize,
    summarize_trials,
)
from adan_bench.records.store import ARCHIVE, DamagedRecord, finite, write_bytes
from adan_bench.reports import conclusions, html
from adan_bench.reports.conclusions import budget, count, number, spread
from adan_bench.reports.figures import write_figures
from adan_bench.reports.html import style_of

TERMS = (
    "± and [ ]: 95% t interval over seeds; with fewer than three seeds, the range. minus the first: the mean "
    "difference from the first row over the seeds of both, its interval paired by seed and corrected for all pairs. "
    "best: the best evaluation of a run, mean over seeds. Steps and seconds to target: median over seeds until the "
    "metric first reached its target, and how many of the seeds did; a seed that diverges does not count. ms/step: of "
    "a whole training step, median over seeds, and the engine that updated the weights. state B/param: bytes that the "
    "optimizer keeps per trained parameter."
)
CLOCKS = " Seconds are left out where runs did not have the same machine, or not as many runs and threads on it."
RATES = (
    " lr range ±2%: the learning rates around the best whose result is within 2% of it; edge: the best is the lowest "
    "or highest that was tried."
)
SHADED = " A shaded row is better than every other by more than the seeds explain."  # on the page only
COLUMNS = (
    "optimizer", "{metric}", "minus the first", "best", "steps to target", "s to target", "ms/step",
    "state B/param", "lr range ±2%",
)  # fmt: skip


def write_report(
    records: Sequence[RunRecord], folder: Path, damaged: Sequence[DamagedRecord] = ()
) -> tuple[Path, list[WorkloadSummary]]:
    """Write report.html, report.md, the figures, summary.json and runs.jsonl into the folder.

    The path of the page, and what it says. damaged: records that could not be read, which it names before all else.
    """
    summaries = summarize(records)
    report = render(records, summaries, warn(summaries, damaged), write_figures(summaries, folder))
    write_bytes(folder / "summary.json", (json.dumps(finite(in_numbers(summaries)), indent=1) + "\n").encode())
    write_bytes(folder / ARCHIVE, pack(records).encode())
    return report.write(folder / "report.html"), summaries


def warn(summaries: Sequence[WorkloadSummary], damaged: Sequence[DamagedRecord] = ()) -> list[str]:
    """Warnings that a reader needs before any number."""
    kinds = (conclusions.caution, conclusions.unfused, conclusions.repeated)
    texts = [text for kind in kinds if (text := kind(summaries))]
    if damaged:
        texts.append(f"{count(len(damaged), 'record')} left out: {'; '.join(map(str, damaged))}.")
    return texts


def render(
    records: Sequence[RunRecord],
    summaries: Sequence[WorkloadSummary],
    warnings: Sequence[str] = (),
    figures: Mapping[str, str] | None = None,
) -> html.PagePart:
    """The report; figures: by table, the file with its curves, for the Markdown."""
    data, seeds = chart_data(summaries), sorted({r.config.seed for r in records if r.config.role == "run"})
    parts = [
        *(html.paragraph(text, "warning") for text in warnings),
        *(html.paragraph(text, "conclusion") for text in (conclusions.overall(summaries),) if text and summaries[1:]),
        html.paragraph(conclusions.tuning(summaries) if summaries else "There are no runs to report on."),
        *(_section(i, summary, data["styles"], figures or {}) for i, summary in enumerate(summaries)),
        _profile_section(data["profile"], summaries),
        _terms(summaries),
        environments_part(records),
        html.paragraph(f"Seeds {', '.join(map(str, seeds))}. Seconds exclude evaluation.", "soft"),
    ]
    return html.page("Optimizers compared", _overview(records, summaries), parts, data)


def _terms(summaries: Sequence[WorkloadSummary]) -> html.PagePart:
    """What the columns of the tables mean, once for all of them."""
    if not summaries:
        return html.PagePart()
    text = TERMS + ("" if all(summary.one_clock for summary in summaries) else CLOCKS)
    text += RATES if any(o.sensitivity for summary in summaries for o in summary.optimizers) else ""
    return html.section("How to read the tables", html.PagePart(html.paragraph(text + SHADED, "soft").html, text))


def _overview(records: Sequence[RunRecord], summaries: Sequence[WorkloadSummary]) -> str:
    runs = [r for r in records if r.config.role == "run"]
    trials = sum(r.config.role == "tune" for r in records)
    optimizers = len({r.config.name for r in runs})
    workloads = len({r.config.workload for r in runs})
    text = f"{count(workloads, 'workload')}, {count(optimizers, 'optimizer')}, {count(len(runs), 'run')}"
    if len(summaries) > workloads:
        text += f" in {len(summaries)} tables"
    if trials:
        text += f", {count(trials, 'tuning trial')}"
    return f"{text}. Written {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC by adan-bench."


def _section(
    index: int, summary: WorkloadSummary, styles: Mapping[str, Mapping[str, str]], figures: Mapping[str, str]
) -> html.PagePart:
    facts = summary.facts
    notes = sorted({str(o.records[0].environment.get("data", "")) for o in summary.optimizers} - {""})
    sizes = sorted({o.records[0].environment.get("parameters") or 0 for o in summary.optimizers} - {0})
    about = [facts["summary"], *notes]
    if summary.optimizers[0].records[0].config.init is not None:
        about.append(f"starts from {summary.optimizers[0].records[0].config.init}")
    if sizes:
        about.append(f"{sizes[-1]:,} parameters")
    about.append(budget(summary))
    tuned = any(o.sensitivity for o in summary.optimizers)
    best = conclusions.winner(summary)
    firsts = ["first" if o.name == best else "" for o in summary.optimizers]
    origins = [(html.settings(o.settings), conclusions.said(o.origin), *captures(o)) for o in summary.optimizers]
    settings = [(o.name, "; ".join(texts)) for o, texts in zip(summary.optimizers, origins, strict=True)]
    parts = [
        html.paragraph(". ".join(str(part) for part in about) + ".", "soft"),
        html.paragraph(conclusions.conclude(summary), "conclusion"),
        html.table(*table_rows(summary), kinds=firsts, before=swatches(summary, styles)),
        html.items(failures(summary), "warning"),
        html.folded("Settings", html.facts(settings)),
    ]
    if any(r.metrics for o in summary.optimizers for r in o.records):
        name = f"{summary.name}: training and held-out curves"
        parts.append(html.PagePart(html.chart("curves", index).html, f"![{name}]({figures.get(summary.name, '')})"))
    if tuned:
        text = f"{judged(facts)[0]} at the end of each tuning trial, other settings equal (lr: the learning rate)."
        rates = (html.heading("Learning rate"), html.paragraph(text, "soft"), html.chart("rates", index))
        parts += [html.PagePart(part.html) for part in rates]
    return html.section(summary.name, *parts)


def failures(summary: WorkloadSummary) -> list[str]:
    """The errors of runs that failed, each once, with where it was raised and the runs that it ended."""
    runs: dict[str, list[str]] = {}
    for o in summary.optimizers:
        for r in o.records:
            if r.status == "failed" and r.result:
                runs.setdefault(str(r.result["error"]), []).append(f"{o.name} seed {r.config.seed}")
    return [f"{', '.join(who)} failed: {error}" for error, who in runs.items()]


def table_rows(summary: WorkloadSummary) -> tuple[list[str], list[list[str]]]:
    """The table of results as text: head and rows, in the order of the means."""
    head = [column.format(metric=summary.metric_head) for column in COLUMNS]
    gaps = conclusions.behind(summary)
    rows = [_row(o, gaps.get(o.name)) for o in summary.optimizers]
    if not any(o.sensitivity for o in summary.optimizers):  # the last column would be empty
        return head[:-1], [row[:-1] for row in rows]
    return head, rows


def _row(o: OptimizerSummary, gap: Interval | None) -> list[str]:
    bests = [r.result["best"] for r in o.records if r.result and r.result.get("best") is not None]
    final = spread(o.final, list(o.by_seed().values()))
    failed = sum(r.status == "failed" for r in o.records)
    counts = {"diverged": o.diverged, "failed": failed, "unfinished": o.failed - failed}
    lost = [f"{n} {word}" for word, n in counts.items() if n]
    rates = "–"
    if (s := o.sensitivity) is not None:
        rates = f"{s.low:g} … {s.high:g} (×{s.high / s.low:.3g})" + (" edge" if s.at_edge else "")
    return [
        o.name,
        ", ".join([final, *lost]),
        "" if gap is None else _signed(gap),
        number(sum(bests) / len(bests)) if bests else "–",
        *conclusions.costs(o),
        rates,
    ]


def _signed(gap: Interval) -> str:
    """A difference with its interval.

    >>> _signed(Interval(3, 0.0, -0.02, 0.02)), _signed(Interval(2, -1.5, None, None))
    ('+0.0000 [−0.0200, +0.0200]', '−1.500')
    """
    known = [gap.mean] if gap.low is None or gap.high is None else [gap.mean, gap.low, gap.high]
    largest = max(map(abs, known))
    digits = len(number(largest, 4).partition(".")[2]) if largest >= 1e-3 else 6
    mean, *ends = (f"{value:+.{digits}f}".replace("-", "−") for value in known)
    return f"{mean} [{', '.join(ends)}]" if ends else mean


def in_numbers(summaries: Sequence[WorkloadSummary]) -> list[dict[str, Any]]:
    """The content of the tables, for programs: `json.load`, `pandas.json_normalize(…, "optimizers", "workload")`."""
    return [
        {
            "workload": s.name,
            **{name: s.facts[name] for name in ("metric", "higher_is_better", "target")},
            **{name: getattr(s.config, name) for name in ("steps", "stop_after", "batch_size", "schedule", "device")},
            "unfair": conclusions.unfair(s) or None,
            "winner": conclusions.winner(s),
            "pairs": conclusions.comparisons(s),
            "optimizers": [_numbers(o, gaps.get(o.name)) for o in s.optimizers],
        }
        for s, gaps in ((s, conclusions.behind(s)) for s in summaries)
    ]


def _numbers(o: OptimizerSummary, gap: Interval | None) -> dict[str, Any]:
    names = (
        "steps_to_target", "seconds_to_target", "reached", "diverged", "failed", "seconds_per_step", "engines",
        "state_bytes_per_parameter", "trials",
    )  # fmt: skip
    return {
        "optimizer": o.name,
        "settings": o.settings,
        "origin": o.origin.to_json(),
        **({} if o.final is None else asdict(o.final)),
        "by_seed": o.by_seed(),
        "minus_the_first": None if gap is None else asdict(gap),
        **{name: getattr(o, name) for name in names},
        "learning_rates": None if o.sensitivity is None else asdict(o.sensitivity),
    }


def captures(o: OptimizerSummary) -> list[str]:
    """Whether a CUDA graph held the steps, and why not; on the CPU nothing can be captured, which need not be said."""
    graphs = dict.fromkeys(r.result.get("graph") for r in o.records if r.result and r.config.device != "cpu")
    return [f"steps {how}" for how in graphs if how]


def swatches(summary: WorkloadSummary, styles: Mapping[str, Mapping[str, str]]) -> list[str]:
    return [html.swatch(**styles[o.name]) for o in summary.optimizers]


def chart_data(summaries: Sequence[WorkloadSummary]) -> dict[str, Any]:
    names = list(dict.fromkeys(o.name for s in summaries for o in s.optimizers))
    return {
        "styles": {name: style_of(name, names) for name in names},
        "workloads": [_curves(summary) for summary in summaries],
        "profile": performance_profile(summaries),
    }


def _curves(summary: WorkloadSummary) -> dict[str, Any]:
    def rounded(records: Sequence[RunRecord], kind: str, key: str) -> list[list[tuple[float, ...]]]:
        return [[(at, round(s, 3), float(f"{value:.6g}")) for at, s, value in r.curve(kind, key)] for r in records]

    metric, (by, higher) = summary.facts["metric"], judged(summary.facts)
    optimizers = [
        {
            "name": o.name,
            "train": rounded(o.records, "train", "loss"),
            "eval": rounded(o.records, "eval", metric),
            "rates": None if o.sensitivity is None else asdict(o.sensitivity),
        }
        for o in summary.optimizers
    ]
    how = {"metric": metric, "judged": by, "higher": higher, "target": summary.facts["target"]}
    return {**how, "optimizers": optimizers}


def _profile_section(profile: Mapping[str, Any], summaries: Sequence[WorkloadSummary]) -> html.PagePart:
    if len(summaries) < 2 or not profile:
        return html.PagePart()
    text = (
        "Performance profile: the share of the tables above in which an optimizer met the target (median seed) within "
        "τ times the fewest steps that any optimizer needed. Higher and further left is better; "
        f"{len(summaries)} tables make a picture, not a ranking."
    )
    return html.PagePart(html.section("Across tables", html.paragraph(text, "soft"), html.chart("profile", "yes")).html)


def environments(records: Sequence[RunRecord]) -> list[dict[str, str]]:
    """The different environments that the runs name, each once: commit, versions, hardware, threads and jobs."""
    entries: list[dict[str, str]] = []
    for e in (part for record in records for part in record.surroundings):
        rows = {
            "commit": e.get("commit"),
            "Python": e.get("python"),
            "packages": ", ".join(f"{name} {version}" for name, version in e.get("packages", {}).items()),
            "machine": ", ".join(str(v) for v in (e.get("platform"), e.get("cpu"), e.get("gpu")) if v),
            "cores": f"{e.get('cores')}; {count(e['threads'], 'thread')} per run, {count(e['jobs'], 'run')} at a time",
            "ranks": e["parallel"] and f"{e['ranks']} by {e['parallel']}",
            "command": e.get("command"),
        }
        plain = {key: str(value) for key, value in rows.items() if value}
        if plain not in entries:
            entries.append(plain)
    return entries


def environments_part(records: Sequence[RunRecord]) -> html.PagePart:
    return html.section("Environment", *(html.facts(facts.items()) for facts in environments(records)))


# The page of tuning trials

TRIALS_HEAD = ("optimizer", "{metric}", "lr", "lower and higher lr", "lr range ±2%", "trials", "other settings")
TRIALS_TERMS = (
    "With seeds that no comparison uses. Lower and higher lr: the result at the tried rates next to the best. lr range "
    "±2%: the rates around the best whose result is within 2% of it. edge: the best rate is the lowest or highest that "
    "was tried, so a better one may lie beyond; tune again with more trials. One run each, unless more are named: of "
    "rates that differ less than seeds do, either may be the better one."
)


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
        lines = [
            html.paragraph(f"{budget(summary)}.", "soft"),
            html.table(*tuning_rows(summary), before=swatches(summary, data["styles"])),
            html.PagePart(html.heading("Learning rate").html + html.chart("rates", i).html),
        ]
        parts.append(html.section(summary.name, *lines))
    parts += [html.section("How to read the tables", html.paragraph(TRIALS_TERMS, "soft")), environments_part(records)]
    report = html.page("Settings tuned", f"{count(trials, 'trial')} by adan-bench.", parts, data)
    return report.write(folder / "tuning.html"), summaries


def tuning_rows(summary: WorkloadSummary) -> tuple[list[str], list[list[str]]]:
    """The best trial of every optimizer as text: head and rows, the best first."""
    head = [column.format(metric=summary.metric_head) for column in TRIALS_HEAD]
    return head, [_best_trial_row(o) for o in summary.optimizers]


def _best_trial_row(o: OptimizerSummary) -> list[str]:
    if o.final is None:  # nothing was chosen
        return [o.name, *["–"] * 4, f"{o.trials}, none with a result", ""]
    others = html.settings({key: value for key, value in o.settings.items() if key != "lr"})
    beside, width = "–", "–"
    if (s := o.sensitivity) is not None:
        results = ["not tried", *(number(value) for _, value in s.points), "not tried"]
        i = [rate for rate, _ in s.points].index(s.best_lr)
        beside, width = f"{results[i]}, {results[i + 2]}", f"{s.low:g} … {s.high:g}"
    edge = " (edge)" if s is not None and s.at_edge else ""
    trials = f"{o.trials}, {o.diverged} diverged" if o.diverged else f"{o.trials}"
    trials += f", the best with {o.n} seeds" if o.n > 1 else ""
    return [o.name, number(o.final.mean), f"{o.settings['lr']:g}{edge}", beside, width, trials, others]
