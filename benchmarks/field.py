"""Today's optimizers, workload by workload: the tables of docs/results.md and README.md, once a search is stored."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from common import read, table
from inference import PowerLaw
from ladder import ladder
from results_page import DATA, NAMES, UNCLEAR, Stored, Unit, adamw_of, against_adamw, rivals_by_workload, unit_of
from stored import Contestant

from adan_bench.records.stats import Verdict


def todays_optimizers(chapter: str, stored: Stored) -> str:
    """The table of each workload of a chapter of which a search is stored."""
    parts, every, gaps = [], rivals_by_workload(stored), against_adamw(stored)
    for label in (row["label"] for row in DATA["field"] if row["chapter"] == chapter and row["label"] in every):
        own = every[label]
        parts += [f"### {label}", _table(own, gaps[label], Clock.of(stored, label, own)), _facts(own)]
    return "\n\n".join(parts)


def field_in_short(stored: Stored) -> str:
    """README's table: of the first workload, whoever is no worse than AdamW, best first, with their costs."""
    if not (every := rivals_by_workload(stored)):
        return ""
    label, own = next(iter(every.items()))
    unit, adamw = unit_of(own[0].runs[0]), adamw_of(own)
    base = {group.first.config.study: group.result.mean for group in adamw.groups}  # else its mean over searches
    clock = Clock.of(stored, label, own)
    head = [label, f"{DATA['leads'][unit.axis]} minus AdamW's, each search", "state bytes per parameter"]
    head += ["time for the same loss"] * clock.is_set
    lines = []
    for rival in own[: own.index(adamw) + 1]:
        means = [(group.result.mean, base.get(group.first.config.study, adamw.result.mean)) for group in rival.groups]
        gaps = [unit.signed(ours - theirs) for ours, theirs in means]
        line = [NAMES[rival.optimizer], ", ".join(gaps) if rival is not adamw else "0", _state_bytes(rival)]
        line += [f"×{clock.same_loss(rival):.2f}" if clock.times(rival) else ""] if clock.is_set else []
        lines.append([_marked(rival, cell) if cell else "" for cell in line])
    return table(head, lines)


@dataclass(frozen=True)
class Clock:
    """AdamW's steps for a loss, by its fit over a ladder of lengths, and milliseconds per step, where measured."""

    adamw: Contestant
    fit: PowerLaw | None
    milliseconds: Mapping[str, float]

    @classmethod
    def of(cls, stored: Stored, label: str, own: Sequence[Contestant]) -> Clock:
        (row,) = (row for row in DATA["field"] if row["label"] == label)
        lengths, times = ladder(stored, row.get("ladder", "")), read("field-time.json")
        timed = times["rows"] if times["study"] in row["studies"].split() else {}
        milliseconds = {name: statistics.fmean(row["milliseconds"]) for name, row in timed.items()}
        return cls(adamw_of(own), lengths.fits["adamw"] if lengths and lengths.has_floor else None, milliseconds)

    @property
    def is_set(self) -> bool:
        return self.fit is not None and bool(self.milliseconds)

    def times(self, rival: Contestant) -> bool:
        return rival.optimizer in self.milliseconds

    def same_loss(self, rival: Contestant) -> float:
        """The time for the result of a run; AdamW's for that result is 1."""
        assert self.fit is not None
        needed, spent = (self.fit.steps(x.result.mean) for x in (rival, self.adamw))
        return self.milliseconds[rival.optimizer] / self.milliseconds["adamw"] * spent / needed


def searches(stored: Stored) -> str:
    """One workload tuned in several ways: how much of a difference from AdamW is due to the search."""
    rivals, lines = ("adan", "muon"), []
    for row in DATA["searches"]:
        groups = {g.optimizer: g for name in row["studies"].split() if name in stored for g in stored[name].groups}
        if (adamw := groups.get("adamw")) is None:
            continue
        unit, ours = unit_of(adamw.first), [groups.get(name) for name in rivals]
        gaps = [unit.gap(group.minus(adamw)) if group else "" for group in ours]
        seeds = "/".join(dict.fromkeys(str(group.n) for group in (adamw, *ours) if group))
        label = row["label"] + (f", {unit.name} ↑" if adamw.higher else "")
        lines.append([label, unit.spread(adamw.final()), *gaps, seeds])
    return table(["search", "AdamW", *(f"{NAMES[name]} minus AdamW" for name in rivals), "seeds"], lines)


def _table(own: Sequence[Contestant], gaps: Mapping[str, Verdict], clock: Clock) -> str:
    unit, fit = unit_of(own[0].runs[0]), clock.fit
    head = ["optimizer", f"{unit.name} {'↑' if own[0].groups[0].higher else '↓'}", "minus AdamW"]
    head += ["AdamW's steps for this result"] * (fit is not None)
    head += ["ms per step", "time, AdamW's = 1"] * clock.is_set + ["state bytes per parameter"]
    lines = []
    for rival in own:
        line = [NAMES[rival.optimizer]]
        if rival.groups:
            line += [_result(rival, unit), _said(rival, gaps, unit)]
            line += [_steps(fit.steps(rival.result.mean), fit.errors)] if fit else []
            if clock.is_set:
                timed = clock.times(rival)
                line += [f"{clock.milliseconds[rival.optimizer]:.2f}" if timed else ""]
                line += [f"{clock.same_loss(rival):.2f}" if timed else ""]
            line.append(_state_bytes(rival))
        else:
            line += ["no seed finished", *[""] * (len(head) - 2)]
        lines.append([_marked(rival, cell) if cell else "" for cell in line])
    return table(head, lines)


def _state_bytes(rival: Contestant) -> str:
    return f"{max((run.result or {}).get('state_bytes_per_parameter', math.nan) for run in rival.runs):.1f}"


def _marked(rival: Contestant, text: str) -> str:
    return f"**{text}**" if rival.optimizer == "adan" else text


def _result(rival: Contestant, unit: Unit) -> str:
    lost = f" ({rival.diverged} diverged)" if rival.diverged else ""
    return unit.spread(rival.result.interval()) + lost


def _said(rival: Contestant, gaps: Mapping[str, Verdict], unit: Unit) -> str:
    """The difference and, where it is significant, its verdict, which one search alone does not make a claim."""
    if rival.optimizer not in gaps:
        return ""
    gap = gaps[rival.optimizer]
    return unit.finding(gap) + " (one search)" * (gap.word != UNCLEAR and len(rival.groups) == 1)


def _steps(steps: float, lengths: Collection[int]) -> str:
    low, high = min(lengths), max(lengths)
    return f"below {low:,}" if steps < low else f"above {high:,}" if steps > high else f"{float(f'{steps:.3g}'):,.0f}"


def _facts(own: Sequence[Contestant]) -> str:
    """The number of searches, trials and seeds, and the machine."""
    runs, searches = [run for rival in own for run in rival.runs], [len(rival.groups) for rival in own if rival.groups]
    seeds = "/".join(dict.fromkeys(str(group.n) for rival in own for group in rival.groups))
    trials = [trial for rival in own for trial in rival.trials]
    most, several = max(searches), sum(n > 1 for n in searches)
    if min(searches) == most:
        who = {1: "One search", 2: "Two searches"}.get(most, f"{most} searches")
    else:
        who = f"{several} optimizer{'s' * (several > 1)} searched {'twice' if most == 2 else 'more than once'}"
    text = f"{who}, {seeds} seeds{' of each' * (most > 1)}, "
    text += f"{len(trials)} trials"
    text += f", {lost} of them diverged; " if (lost := sum(trial.diverged for trial in trials)) else "; "
    edges = [NAMES[rival.optimizer] for rival in own if any(g.first.config.origin.at_edge for g in rival.groups)]
    text += f"near an end of its range is the rate of {', '.join(edges)}; " if edges else ""
    places = " or ".join(dict.fromkeys(str(run.environment.get("gpu") or run.environment["cpu"]) for run in runs))
    return f"{text}{places}."
