"""Today's optimizers, workload by workload: the tables of docs/results.md and README.md, once a search is stored."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from common import table
from ladder import law, rungs
from results_page import DATA, NAMES, Stored, Unit, against_adamw, rivals_by_workload, unit_of
from stored import Contestant, SeedGroup

from adan_bench.config import RunRecord
from adan_bench.records.stats import Verdict


def todays_optimizers(stored: Stored) -> str:
    """A table per workload of which a search is stored."""
    parts, gaps = [], against_adamw(stored)
    for label, own in rivals_by_workload(stored).items():
        (ladder,) = (row.get("ladder", "") for row in DATA["field"] if row["label"] == label)
        shown = _table(own, gaps[label], rungs(stored, ladder).get("adamw", {}))
        parts += [f"### {label}", shown, _facts(own)]
    return "\n\n".join(parts)


def field_in_short(stored: Stored) -> str:
    """README's table, in the order of the first workload: for each, how far from AdamW's result, and when as good."""
    head, gaps = [""], against_adamw(stored)
    lines: dict[str, list[str]] = {}
    for label, own in rivals_by_workload(stored).items():
        unit, adamw = unit_of(own[0].runs[0]), _adamw(own)
        head += [f"{label}: {DATA['leads'][unit.axis][0]} minus AdamW's", "steps to AdamW's result"]
        for rival in own:
            gap = gaps[label].get(rival.optimizer)
            after = f"{steps:,.0f}" if (steps := _reached(rival, adamw)[0]) < math.inf else "not reached"
            lead = unit.signed(gap.difference.mean) if gap else "0" if rival.groups else "no seed finished"
            line = lines.setdefault(rival.optimizer, [_marked(rival, NAMES[rival.optimizer])])
            line += [_marked(rival, cell) for cell in (lead, after)]
    return table(head, [*lines.values()]) if lines else ""


def _adamw(own: Sequence[Contestant]) -> Contestant:
    return next(rival for rival in own if rival.optimizer == "adamw")


def _table(own: Sequence[Contestant], gaps: Mapping[str, Verdict], ladder: Mapping[int, SeedGroup]) -> str:
    fit = law(ladder) if len(ladder) > 3 else None
    unit, adamw = unit_of(own[0].runs[0]), _adamw(own)
    head = ["", "optimizer", f"{unit.name} {'↑' if own[0].groups[0].higher else '↓'}", "minus AdamW", "trials"]
    head += ["as good as AdamW after", "state bytes per parameter"] + ["AdamW's steps for this result"] * bool(fit)
    lines = []
    for rank, rival in enumerate(own, 1):
        line = [str(rank), NAMES[rival.optimizer]]
        if rival.groups:
            sizes = [(run.result or {}).get("state_bytes_per_parameter", math.nan) for run in rival.runs]
            steps, seconds = _reached(rival, adamw)
            reached = f"{steps:,.0f} steps, {seconds:,.0f} s" if steps < math.inf else "not reached"
            line += [_result(rival, unit), _said(rival, gaps, unit), _trials(rival), reached, f"{max(sizes):.1f}"]
            line += [_steps(fit.steps(rival.result.mean), ladder)] if fit else []
        else:
            line += ["no seed finished", "", _trials(rival), *[""] * (len(head) - 5)]
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


def _trials(rival: Contestant) -> str:
    lost = sum(trial.diverged for trial in rival.trials)
    return str(len(rival.trials)) + (f" ({lost} diverged)" if lost else "")


def _reached(rival: Contestant, adamw: Contestant) -> tuple[float, float]:
    """The median of the steps and seconds after which a run is as good as AdamW's mean at the end."""
    target, sign = adamw.result.mean, -1 if adamw.groups[0].higher else 1

    def first(run: RunRecord) -> tuple[float, float]:
        curve = run.curve("eval", run.metric)
        hits = [(step, at) for step, at, value in curve if rival is not adamw and sign * value <= sign * target]
        return hits[0] if hits else (curve[-1][:2] if rival is adamw else (math.inf, math.inf))

    steps, seconds = zip(*map(first, rival.runs), strict=True) if rival.runs else ([math.inf], [math.inf])
    return statistics.median_high(steps), statistics.median_high(seconds)


def _steps(steps: float, ladder: Mapping[int, SeedGroup]) -> str:
    low, high = min(ladder), max(ladder)
    return f"below {low:,}" if steps < low else f"above {high:,}" if steps > high else f"{float(f'{steps:.3g}'):,.0f}"


def _facts(own: Sequence[Contestant]) -> str:
    """The number of searches and seeds, the machine, and how many runs shared it."""
    runs, searches = [run for rival in own for run in rival.runs], max(len(rival.groups) for rival in own)
    seeds = "/".join(dict.fromkeys(str(group.n) for rival in own for group in rival.groups))
    text = f"{('One search', 'Two searches')[searches - 1]}, {seeds} seeds{' of each' * (searches > 1)}; "
    edges = [NAMES[rival.optimizer] for rival in own if any(g.first.config.origin.at_edge for g in rival.groups)]
    text += f"near an end of its range is the rate of {', '.join(edges)}; " if edges else ""
    places = " or ".join(dict.fromkeys(str(run.environment.get("gpu") or run.environment["cpu"]) for run in runs))
    if (jobs := max(run.config.jobs for run in runs)) > 1:
        return f"{text}up to {jobs} runs at a time on one {places}, so that seconds say little."
    return f"{text}{places}."
