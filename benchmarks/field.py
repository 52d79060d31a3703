"""Today's optimizers, workload by workload: the tables of docs/results.md and README.md, once a search is stored."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from textwrap import fill

from common import table
from ladder import law, rungs
from results_page import DATA, NAMES, Stored, Unit, against_adamw, rivals_by_workload, unit_of, words
from stored import Contestant, SeedGroup

from adan_bench.config import RunRecord, in_words
from adan_bench.records.stats import Verdict

ABOUT = """\
Each optimizer was searched in the same way, over the same ranges of what they share ([protocol](protocol.md)).
Differences are from AdamW's mean, over seeds and, where there are two, over searches, and corrected with all rows of
this page. Trials are all that were run, those that confirm the best included. To AdamW's result: when a run, in the
median, was first as good as AdamW's runs are at their end. Where its rate is near an end of its range, an optimizer may
do better beyond."""
SETTINGS = ("lr", "momentum", "betas", "weight_decay")


def todays_optimizers(stored: Stored) -> str:
    """A section with a table per workload; nothing while no search is stored."""
    parts = ["## Today's optimizers", ABOUT]
    every, gaps = rivals_by_workload(stored), against_adamw(stored)
    for row in DATA["field"]:
        if own := every.get(row["label"]):
            shown = _table(own, gaps[row["label"]], rungs(stored, row.get("ladder", "")).get("adamw", {}))
            parts += [f"### {row['label']}", shown, _facts(own)]
    return "\n\n".join(parts) if gaps else ""


def field_in_short(stored: Stored) -> str:
    """README's list: for each workload, the optimizers that did better than Adan, and its own place."""
    lines, every = [], against_adamw(stored)
    for label, own in rivals_by_workload(stored).items():
        unit, gaps, said = unit_of(own[0].runs[0]), every[label], []
        for rival in own[: 1 + [rival.optimizer for rival in own].index("adan")]:
            gap = f" {unit.signed(gaps[rival.optimizer].difference.mean)}" if rival.optimizer in gaps else ""
            said.append(NAMES[rival.optimizer] + gap)
        kind = DATA["leads"][unit.axis][0]
        line = f"- {label}, {kind} minus AdamW's: {', '.join(said)}: place {len(said)} of {len(own)}."
        lines.append(fill(line, 120, subsequent_indent="  ", break_on_hyphens=False))
    return "\n".join(["Today's optimizers, best first up to Adan:", "", *lines]) if lines else ""


def _table(own: Sequence[Contestant], gaps: Mapping[str, Verdict], ladder: Mapping[int, SeedGroup]) -> str:
    fit = law(ladder) if len(ladder) > 3 else None
    unit, higher = unit_of(own[0].runs[0]), own[0].groups[0].higher
    adamw = next(rival for rival in own if rival.optimizer == "adamw")
    head = ["", "optimizer", f"{unit.name} {'↑' if higher else '↓'}", "minus AdamW", "chosen settings", "trials"]
    head += ["to AdamW's result", "state bytes per parameter"] + ["AdamW's steps for this result"] * bool(fit)
    lines = []
    for rank, rival in enumerate(own, 1):
        line = [str(rank), NAMES[rival.optimizer]]
        if rival.groups:
            sizes = [(run.result or {}).get("state_bytes_per_parameter", math.nan) for run in rival.runs]
            line += [_result(rival, unit), _said(rival, gaps, unit), "; ".join(map(_settings, rival.groups))]
            line += [_trials(rival), _reached(rival, adamw), f"{max(sizes):.1f}"]
            line += [_steps(fit.steps(rival.result.mean), ladder)] if fit else []
        else:
            line += ["no seed finished", "", "", _trials(rival), *[""] * (len(head) - 6)]
        lines.append([_marked(rival, cell) if cell else "" for cell in line])
    return table(head, lines)


def _marked(rival: Contestant, text: str) -> str:
    return f"**{text}**" if rival.optimizer == "adan" else text


def _result(rival: Contestant, unit: Unit) -> str:
    lost = f" ({rival.diverged} diverged)" if rival.diverged else ""
    return unit.spread(rival.result.interval()) + lost


def _said(rival: Contestant, gaps: Mapping[str, Verdict], unit: Unit) -> str:
    """The difference and its verdict, which one search alone does not make a claim."""
    if rival.optimizer not in gaps:
        return ""
    gap = gaps[rival.optimizer]
    one = " in one search" if len(rival.groups) == 1 and gap.word in ("better", "worse") else ""
    return unit.said(gap) + one


def _settings(group: SeedGroup) -> str:
    config, chosen = group.first.config, {key: group.settings[key] for key in SETTINGS if key in group.settings}
    parts = [words({"lr": chosen.pop("lr")}) + (" (near an end)" if config.origin.at_edge else ""), words(chosen)]
    return ", ".join([*parts, in_words("warmup", config.warmup)])


def _trials(rival: Contestant) -> str:
    lost = sum(trial.diverged for trial in rival.trials)
    return str(len(rival.trials)) + (f" ({lost} diverged)" if lost else "")


def _reached(rival: Contestant, adamw: Contestant) -> str:
    """The median of the steps and seconds after which a run is as good as AdamW's mean at the end."""
    target, sign = adamw.result.mean, -1 if adamw.groups[0].higher else 1

    def first(run: RunRecord) -> tuple[float, float]:
        curve = run.curve("eval", run.metric)
        hits = [(step, at) for step, at, value in curve if rival is not adamw and sign * value <= sign * target]
        return hits[0] if hits else (curve[-1][:2] if rival is adamw else (math.inf, math.inf))

    steps, seconds = (statistics.median_high(column) for column in zip(*map(first, rival.runs), strict=True))
    return f"{steps:,.0f} steps, {seconds:,.0f} s" if steps < math.inf else "not reached"


def _steps(steps: float, ladder: Mapping[int, SeedGroup]) -> str:
    low, high = min(ladder), max(ladder)
    return f"below {low:,}" if steps < low else f"above {high:,}" if steps > high else f"{float(f'{steps:.3g}'):,.0f}"


def _facts(own: Sequence[Contestant]) -> str:
    """The number of searches and seeds, the machine, and how many runs shared it."""
    runs, searches = [run for rival in own for run in rival.runs], max(len(rival.groups) for rival in own)
    seeds = "/".join(dict.fromkeys(str(group.n) for rival in own for group in rival.groups))
    text = f"{('One search', 'Two searches')[searches - 1]}, {seeds} seeds{' of each' * (searches > 1)}; "
    places = " or ".join(dict.fromkeys(str(run.environment.get("gpu") or run.environment["cpu"]) for run in runs))
    if (jobs := max(run.config.jobs for run in runs)) > 1:
        return f"{text}up to {jobs} runs at a time on one {places}, so that seconds say little."
    return f"{text}{places}."
