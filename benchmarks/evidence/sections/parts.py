"""What every section is made of: units, tables, curves, comparisons and the sentences about them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adan_bench.records.stats import Interval
from adan_bench.reports.palette import style_of
from evidence.compare import Group, Records, best_baseline, compared, groups, reaches, verdict
from evidence.figures import Line, Panel
from evidence.optimizers import SGD_MOMENTUM
from evidence.search import Follow, Study

ROOT = Path(__file__).resolve().parents[3]
RUNS = ROOT / "results" / "evidence" / "runs.jsonl"
NAMES = {"adan": "Adan", "adamw": "AdamW", "adam": "Adam", "lamb": "LAMB", "sgd": "SGD", "adabelief": "AdaBelief"}


# Words


@dataclass(frozen=True)
class Unit:
    """How a metric is shown. family: which metrics a figure may show on one axis."""

    name: str
    factor: float
    digits: int
    of_difference: str
    family: str

    def __call__(self, value: float) -> str:
        return f"{value * self.factor:,.{self.digits}f}"

    def spread(self, interval: Interval) -> str:
        return self(interval.mean) + (f" ± {self(interval.half)}" if interval.half is not None else "")

    def change(self, interval: Interval) -> str:
        ends = (
            ""
            if interval.low is None or interval.high is None
            else f" [{self.signed(interval.low)}, {self.signed(interval.high)}]"
        )
        return f"{self.signed(interval.mean)}{ends}"

    def signed(self, value: float) -> str:
        return f"{value * self.factor:+,.{self.digits}f}".replace("-", "−")


ACCURACY = Unit("test accuracy, %", 100, 2, " points", "points")
BOX_AP = Unit("test box AP, %", 100, 1, " points", "points")
LOSS = Unit("test loss, nats per byte", 1, 4, " nats", "loss")
PERPLEXITY = Unit("test perplexity", 1, 2, "", "perplexity")
REWARD = Unit("episode reward", 1, 0, "", "reward")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *map(list, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def joined(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def settings(values: dict[str, Any]) -> str:
    """All of an optimizer's settings but what is 0."""
    names = {"weight_decay": "decay"}
    parts = []
    for key, value in values.items():
        if isinstance(value, list):
            parts.append(f"{key} " + ", ".join(f"{v:g}" for v in value))
        elif value is True:
            parts.append(key.replace("_", " "))
        elif value or key == "weight_decay":
            parts.append(f"{names.get(key, key)} {value:g}")
    return ", ".join(parts)


def comparison(results: list[Group], unit: Unit) -> str:
    """One row per optimizer, with Adan's lead over it."""
    first, others = results[0], results[1:]
    rows = []
    for group in results:
        momentum = {"momentum": SGD_MOMENTUM} if group.optimizer == "sgd" else {}
        chosen = settings({"lr": group.settings["lr"], **momentum, **group.settings})
        row = [NAMES[group.optimizer], chosen, group.counted, unit.spread(group.final())]
        loss = group.final("train_loss").mean
        row.append(f"{loss:.3f}" if loss >= 0.01 else f"{loss:.1g}")
        lead = verdict(first, group, len(others)) if group is not first else None
        row.append(f"{unit.change(lead.difference)}: {lead.word}" if lead else "")
        rows.append(row)
    head = ["optimizer", "settings", "n", unit.name, "training loss", "Adan − this optimizer"]
    return table(head, rows)


# Curves


def color(optimizer: str) -> str:
    return style_of(optimizer, list(NAMES))["light"]


def curve(group: Group, unit: Unit, label: str = "", dashed: bool = False) -> Line:
    points = group.curve()
    means, low, high = ([round(unit.factor * f(ys), 4) for _, ys in points] for f in (statistics.fmean, min, max))
    return Line(
        color(group.optimizer), label or NAMES[group.optimizer], [x for x, _ in points], means, low, high, dashed
    )


def curves(title: str, x_label: str, unit: Unit, lines: list[Line], share: float = 0.2) -> Panel:
    """A panel of curves; its vertical axis holds what comes after this share of a run."""
    late = [
        value
        for line in lines
        for i in range(int(share * len(line.x)), len(line.x))
        for value in (line.low[i], line.high[i])
    ]
    room = 0.04 * (max(late) - min(late))
    return Panel(title, x_label, unit.name, lines, round(min(late) - room, 4), round(max(late) + room, 4))


# Studies


@dataclass
class Section:
    """A part of the page.

    halves: the verdicts on Adan with half the length of the best other. searches: what other searches found.
    """

    heading: str
    body: list[str]
    figure: str = ""
    panels: list[Panel] = field(default_factory=list)
    halves: list[str] = field(default_factory=list)
    searches: list[str] = field(default_factory=list)


def paper(name: str, row: str, column: str) -> str:
    """A figure of the paper, as printed."""
    data = json.loads((ROOT / "src" / "adan_bench" / "tables" / f"{name}.json").read_text(encoding="utf-8"))
    at = [c["head"] for c in data["columns"]].index(column)
    return str(next(r["values"][at] for r in data["rows"] if r["head"] == row))


def minutes(records: Records, *studies: Study | Follow) -> str:
    """A GPU's time for studies, trials included: each run's seconds over the number of runs that shared the GPU."""
    jobs = [job for study in studies for job in study.reported(records)]
    for study in studies:
        if isinstance(study, Study):
            jobs += [job for entry in study.entries for job in study.asked(entry, records)]
    runs = [records[key] for key in {job.key for job in jobs} if key in records]
    seconds = sum(r["wall_seconds"] / r["environment"]["workers"] for r in runs)
    value, unit = (f"{seconds / 60:.0f}", "minute") if seconds < 3600 else (f"{seconds / 3600:.1f}", "hour")
    return f"{value} GPU-{unit}{'' if value == '1' else 's'}"


def recipes(results: list[Group]) -> str:
    """How far apart the decay of published settings is, of which a comparison says as much as of optimizers."""
    shares = {g.optimizer: g.settings["lr"] * g.settings["weight_decay"] for g in results}
    losses = {g.optimizer: g.final("train_loss").mean for g in results}
    highest = max(losses, key=losses.__getitem__)
    return (
        "This compares published recipes, not optimizers alone: a step of Adan shrinks the weights by lr·λ = "
        f"{shares['adan']:.2g}, one of AdamW by {shares['adamw']:.2g}, and the highest training loss is "
        f"{NAMES[highest]}'s."
    )


def half_length(section: Section, half: Group, full: Sequence[Group], unit: Unit, others: Sequence[Group] = ()) -> None:
    """Adan with half the length against the others with all of it, and its curve.

    full: Adan's group first. others: the baselines with half the length, where they were run.
    """
    leads = {group.optimizer: verdict(half, group, len(full) - 1) for group in full[1:]}
    listed = [f"{NAMES[name]} {unit.change(lead.difference)}: {lead.word}" for name, lead in leads.items()]
    length = f"{half.length:,} {half.records[0]['job']['unit']}"
    section.body.append(
        f"**Half the length**: Adan after {length}, {unit(half.final().mean)} (n = {half.counted}), minus the others "
        f"after {full[0].length:,}: {'; '.join(listed)}."
    )
    section.halves.append(leads[best_baseline(full).optimizer].word)
    own = {g.optimizer: verdict(short, g, 1) for g in full[1:] for short in others if short.optimizer == g.optimizer}
    if level := {name: lead for name, lead in own.items() if lead.word == "not significant"}:
        gaps = joined([f"{NAMES[name]} {unit.change(lead.difference)}" for name, lead in level.items()])
        section.body.append(
            f"This says little: after {length}, other optimizers are not significantly behind their own result after "
            f"{full[0].length:,} either ({gaps})."
        )
    elif not others and (itself := verdict(half, full[0], 1)).word != "worse":
        section.body.append(
            f"This says little: Adan itself is not worse after {length} than after {full[0].length:,} "
            f"({unit.change(itself.difference)}), so the longer runs may overfit, and the others were not run at half "
            "the length."
        )
    section.panels[-1].lines.append(curve(half, unit, f"Adan, {length}", dashed=True))


EARLY = 0.95


def early(results: Sequence[Group]) -> tuple[float, list[float | None]]:
    """A share of the best final result, and when each group's mean first reaches it."""
    target = EARLY * max(group.final().mean for group in results)
    return target, [reaches(group, target) for group in results]


def early_text(results: list[Group], unit: Unit, counted: str) -> str:
    target, places = early(results)
    when = ["never" if at is None else f"after {at:,.0f} {counted}" for at in places]
    listed = joined([f"{NAMES[group.optimizer]} {at}" for group, at in zip(results, when, strict=True)])
    return f"The mean reaches {unit(target)}%, {EARLY:.0%} of the best final one: {listed}."


def latest(records: Records, *searches: Study) -> Study:
    """The last of several searches for the same comparison that can be compared; the first one until then."""
    return next((study for study in reversed(searches) if compared(study, records)), searches[0])


def other_search(study: Study | Follow, why: str, unit: Unit, records: Records) -> str:
    """What another search for the same comparison found. why: what was different or wrong with it."""
    results = compared(study, records)
    listed = joined([f"{NAMES[group.optimizer]} {unit.spread(group.final())}" for group in results])
    n = joined(list(dict.fromkeys(group.counted for group in results)))
    return f"`{study.name}` {why}; its results: {listed} (n = {n})."


def together(study: Study | Follow, also: Study | Follow | None, records: Records) -> list[Group]:
    """The groups of a study and of one with further optimizers, Adan's first; none where the first lacks runs."""
    results = compared(study, records)
    return [*results, *compared(also, records)] if results and also else results


def add_study(
    study: Study | Follow,
    unit: Unit,
    section: Section,
    intro: str,
    records: Records,
    also: Study | Follow | None = None,
    title: str = "",
    share: float = 0.2,
) -> bool:
    """What a study is, the comparison, a panel. also: further optimizers. False where it has too few runs to compare.

    share: of a run, which the panel's vertical axis leaves out.
    """
    results = together(study, also, records)
    if not results:
        if unfinished := groups(study, records):
            listed = [
                f"{NAMES[g.optimizer]} {joined([unit(value) for value in g.by_seed().values()])}" for g in unfinished
            ]
            begun = f"{intro.format(size=unfinished[0].size)} **Unfinished**, with too few seeds to compare them"
            section.body.append(f"{begun}; {unit.name}, so far: {'; '.join(listed)}.")
        return False
    first, best = results[0], best_baseline(results)
    spent = minutes(records, study, *([also] if also else []))
    section.body += [f"{intro.format(size=first.size)} {spent}.", comparison(results, unit)]
    lines = [curve(group, unit) for group in results]
    counted = first.records[0]["job"]["unit"]
    title = title or unit.name.partition(",")[0]
    section.panels.append(curves(title, counted.removesuffix("s"), unit, lines, share))
    cosine = "schedule" not in first.options  # where the rate drops at once, that is what a mean follows
    if cosine and (at := reaches(first, best.final().mean)):
        at_all = f"{at:,.0f} of {first.length:,} {counted}"
        section.body.append(f"Adan's mean reaches the final result of {NAMES[best.optimizer]} after {at_all}.")
    if unit.family == "points":
        section.body.append(early_text(results, unit, counted))
    return True
