"""The tables and figures of docs/results.md, from the stored studies; results_page.json says which make which rows.

A difference counts where its interval excludes 0, by Welch's t test, corrected by Holm over all rows of the page that
have one. Sentences are written by hand; tests/benchmarks/test_results_page.py holds them to the numbers.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from common import table
from figures import Curve, Effect, Forest, Panel, Picture
from inference import Estimate, FamilySummary, estimate, holm, random_effects
from stored import Contestant, SeedGroup, StoredStudy, rivals

from adan_bench.config import RunRecord
from adan_bench.records.stats import Interval, Verdict
from adan_bench.reports.html import COLORS, style_of

Stored = Mapping[str, StoredStudy]
DATA: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
NAMES: dict[str, str] = DATA["names"]


@dataclass(frozen=True)
class Unit:
    """How a metric is shown. axis: the forest for its differences; share: of a run, which its curves leave out."""

    name: str
    factor: float = 1
    digits: int = 4
    axis: str = "loss"
    share: float = 0.2

    def __call__(self, value: float) -> str:
        return f"{value * self.factor:,.{self.digits}f}"

    def spread(self, of: Interval) -> str:
        return self(of.mean) + (f" ± {self(of.half)}" if of.half is not None else "")

    def signed(self, value: float) -> str:
        return f"{value * self.factor:+,.{self.digits}f}".replace("-", "−")

    def gap(self, lead: Verdict) -> str:
        """A difference with its interval."""
        gap = lead.difference
        ends = ", ".join(self.signed(end) for end in (gap.low, gap.high) if end is not None)
        return self.signed(gap.mean) + (f" [{ends}]" if ends else "")

    def said(self, lead: Verdict) -> str:
        """A difference with its interval and verdict."""
        return f"{self.gap(lead)}: {lead.word}"

    def finding(self, lead: Verdict) -> str:
        """A difference with its interval and, where it is significant, its verdict."""
        return self.gap(lead) if lead.word == UNCLEAR else self.said(lead)


UNITS = {key: Unit(**unit) for key, unit in DATA["units"].items()}  # by workload where it decides, else by metric
AXES: dict[str, tuple[str, float, int]] = DATA["axes"]  # label, end and digits of each forest's axis
UNCLEAR = "not significant"
CLAIMED = 5  # seeds that a claim needs
SHADES = {"better": COLORS[3][0], "worse": COLORS[0][0], UNCLEAR: "#888888"}


def unit_of(run: RunRecord) -> Unit:
    return UNITS.get(run.config.workload) or UNITS.get(run.metric) or Unit(run.metric)


def together(names: str, stored: Stored, batch_size: int = 0) -> list[SeedGroup]:
    """The groups of one or more studies, Adan's first, at one batch size where they have several."""
    groups = [group for name in names.split() for group in stored[name].compared()]
    return [g for g in groups if batch_size in (0, g.first.config.batch_size)]


# Comparisons


@dataclass(frozen=True)
class Contest:
    """Adan and its baselines; left: the rows to correct for, as Holm counts them.

    also: Adan and the best baseline in other searches.
    """

    label: str
    adan: SeedGroup
    others: Sequence[SeedGroup]
    left: int = 1
    also: Sequence[tuple[SeedGroup, SeedGroup]] = ()

    @cached_property
    def best(self) -> SeedGroup:
        """The best baseline; one without diverged seeds, where there is one."""
        return max(self.others, key=lambda g: (not g.diverged, g.final().mean * (1 if g.higher else -1)))

    @property
    def tests(self) -> int:
        """The comparisons to correct for: results choose among the baselines of each row."""
        return self.left * len(self.others)

    @cached_property
    def lead(self) -> Verdict:
        return self.adan.minus(self.best, self.tests)

    @property
    def p(self) -> float:
        return len(self.others) * (self.adan.result - self.best.result).p

    @property
    def agreeing(self) -> int:
        """How many searches have this row's verdict, "not significant" included; the others' is not corrected."""
        return 1 + [ours.minus(theirs).word for ours, theirs in self.also].count(self.lead.word)

    @property
    def is_confirmed(self) -> bool:
        """Whether it is bold: significant, five seeds, several searches that all agree (docs/protocol.md, its end)."""
        seeds = min(self.adan.n, self.best.n)
        return self.lead.word != UNCLEAR and seeds >= CLAIMED and 1 < self.agreeing == 1 + len(self.also)

    @property
    def unit(self) -> Unit:
        return unit_of(self.adan.first)

    @property
    def is_wide(self) -> bool:
        """Whether the interval, uncorrected, is wider than ±20% of the baseline's result, and so says little."""
        half = self.adan.minus(self.best).difference.half
        return half is not None and half > 0.2 * abs(self.best.final().mean)

    @property
    def effect(self) -> Effect:
        """The lead on its axis, positive where Adan is better."""
        scale = math.log if self.adan.first.metric == "perplexity" else float
        ours, theirs = (estimate([scale(v) for v in group.by_seed().values()]) for group in (self.adan, self.best))
        gap, axis = (ours - theirs).interval(self.tests), self.unit.axis
        share = {"points": 100.0, "loss": 1.0, "reward": 100 / abs(self.best.final().mean)}[axis]
        share *= 1 if self.adan.higher else -1
        low, high = sorted(round(share * end, 4) for end in (gap.low, gap.high) if end is not None)
        mean = round(share * gap.mean, 4)
        text = f"{mean:+.{AXES[axis][2]}f} vs {NAMES[self.best.optimizer]}".replace("-", "−")
        is_open = self.lead.word != UNCLEAR and not self.is_confirmed
        return Effect(self.label, mean, low, high, SHADES[self.lead.word], text, is_open)


def rivals_by_workload(stored: Stored) -> dict[str, list[Contestant]]:
    """Today's optimizers by workload, over the searches that are stored, best first."""
    named = {row["label"]: [stored[name] for name in row["studies"].split() if name in stored] for row in DATA["field"]}
    found = {label: rivals(searches) for label, searches in named.items() if searches}
    return {label: own for label, own in found.items() if any(r.optimizer == "adamw" and r.groups for r in own)}


def contests(stored: Stored, kind: str = "rows") -> list[Contest]:
    """The comparisons of a kind: the rows after searches, those of published recipes, or those with half the steps."""
    return _compared(stored)[0][kind]


def against_adamw(stored: Stored) -> dict[str, dict[str, Verdict]]:
    """The differences of a workload's optimizers from AdamW, which has none itself."""
    return _compared(stored)[1]


def _compared(stored: Stored) -> tuple[dict[str, list[Contest]], dict[str, dict[str, Verdict]]]:
    """All differences of the page, corrected together."""
    kinds = {kind: [_contest(row, stored) for row in DATA[kind]] for kind in ("rows", "recipes", "halves")}
    every = rivals_by_workload(stored)
    pairs = [(label, rival, adamw_of(own)) for label, own in every.items() for rival in own if rival.groups]
    pairs = [(label, rival, adamw) for label, rival, adamw in pairs if rival is not adamw]
    p_values = [contest.p for own in kinds.values() for contest in own]
    left = iter(holm([*p_values, *((rival.result - adamw.result).p for _, rival, adamw in pairs)]))
    kinds = {kind: [replace(contest, left=next(left)) for contest in own] for kind, own in kinds.items()}
    field: dict[str, dict[str, Verdict]] = {label: {} for label in every}
    for label, rival, adamw in pairs:
        field[label][rival.optimizer] = rival.minus(adamw, next(left))
    return kinds, field


def _contest(row: Mapping[str, Any], stored: Stored) -> Contest:
    whole, *others = together(row["studies"], stored, row.get("batch_size", 0))
    adan = together(row["half"], stored)[0] if "half" in row else whole
    contest = Contest(row["label"], adan, others)
    also = [pair for other in row.get("also", ()) for pair in _again(other, contest.best.optimizer, stored)]
    return replace(contest, also=also)


def _again(row: Mapping[str, str], baseline: str, stored: Stored) -> list[tuple[SeedGroup, SeedGroup]]:
    """Adan and a baseline in another search, if both are stored with enough seeds."""
    names = row.get("half", row["studies"]), row["studies"]
    if not stored.keys() >= {*" ".join(names).split()}:
        return []
    ours, groups = (together(own, stored) for own in names)
    return [(adan, group) for adan in ours[:1] for group in groups if group.optimizer == baseline]


def adamw_of(own: Sequence[Contestant]) -> Contestant:
    return next(rival for rival in own if rival.optimizer == "adamw")


# Tables


def compared(kind: str, stored: Stored, *, noisy: bool = False) -> str:
    """The comparisons of a kind, noisy rows apart; those with half the steps also with Adan's result after all."""
    lines = []
    for row, r in zip(DATA[kind], contests(stored, kind), strict=True):
        if kind == "rows" and r.is_wide != noisy:
            continue
        ours = [r.adan, *(together(row["studies"], stored)[:1] if "half" in row else ())]
        best = f"{NAMES[r.best.optimizer]} {r.unit.spread(r.best.final())}"
        best += f" (of {len(r.others)})" if len(r.others) > 1 else ""
        n = "/".join(dict.fromkeys(group.counted for group in (r.adan, r.best)))
        gap = f"**{r.unit.finding(r.lead)}**" if r.is_confirmed else r.unit.finding(r.lead)
        searches = f"{r.agreeing} of {1 + len(r.also)}" if r.also else "1"
        results = [*(r.unit.spread(group.final()) for group in ours), best, gap, n, searches]
        lines.append([f"{r.label}: {r.adan.first.metric}", *results])
    adan = ["Adan, half the steps", "Adan, all"] if kind == "halves" else ["Adan"]
    head = ["", *adan, "best baseline", "difference", "seeds", "searches"]
    if kind == "recipes":  # published settings: no search
        head, lines = head[:-1], [line[:-1] for line in lines]
    return table(head, lines)


def by_family(stored: Stored) -> dict[str, dict[str, list[Estimate]]]:
    """Logarithms of the ratios of Adan's error to AdamW's, by kind of error and family of models.

    Errors are losses and logarithms of perplexities, or what accuracies lack of 100%. Where there is no AdamW, Adam
    stands in. Rows with wide intervals are left out, among them all rewards.
    """
    pairs: list[tuple[str, Sequence[SeedGroup], Sequence[SeedGroup]]] = []
    for row in contests(stored):
        if not row.is_wide:
            named = {group.optimizer: group for group in row.others}
            pairs.append((row.label, [row.adan], [named.get("adamw") or named["adam"]]))
    for label, own in rivals_by_workload(stored).items():
        found = {rival.optimizer: rival.groups for rival in own}
        pairs += [(label, found["adan"], found["adamw"])] if found["adan"] and found["adamw"] else []
    kinds: dict[str, dict[str, list[Estimate]]] = {}
    for label, ours, theirs in pairs:
        kind = DATA["errors"][unit_of(ours[0].first).axis]
        rows = kinds.setdefault(kind, {}).setdefault(family(label), [])
        rows.append(_log_error(ours) - _log_error(theirs))
    return kinds


def family(label: str) -> str:
    """The family of models of a row."""
    model = label.partition(",")[0]
    return str(DATA["same_family"].get(model, model))


def _log_error(groups: Sequence[SeedGroup]) -> Estimate:
    def error(run: RunRecord, value: float) -> float:
        return value if run.metric == "loss" else math.log(value) if run.metric == "perplexity" else 1 - value

    mean = estimate(*([error(group.first, value) for value in group.by_seed().values()] for group in groups))
    return replace(mean, mean=math.log(mean.mean), variance=mean.variance / mean.mean**2)


def family_effect(rows: Sequence[Estimate]) -> tuple[float, float]:
    """The mean of a family's rows and its variance: rows differ, and share searches, so that errors do not cancel."""
    means = [row.mean for row in rows]
    error = statistics.fmean(math.sqrt(row.variance) for row in rows)
    return statistics.fmean(means), error**2 + (statistics.variance(means) / len(means) if len(means) > 1 else 0.0)


def percent(*log_ratios: float | None) -> str:
    found = [f"{100 * math.expm1(ratio):+.1f}%" for ratio in log_ratios if ratio is not None]
    return " to ".join(found).replace("-", "−")


def summary(found: Mapping[str, Sequence[Estimate]]) -> FamilySummary:
    return random_effects([family_effect(rows) for rows in found.values()])


def families(stored: Stored) -> str:
    """Adan's error against AdamW's in percent: family by family, their mean, and where one more may lie."""
    lines = []
    for kind, found in by_family(stored).items():
        total = summary(found)
        each = ", ".join(f"{name} {percent(family_effect(rows)[0])}" for name, rows in found.items())
        mean = f"{percent(total.mean.mean)}, {percent(total.mean.low, total.mean.high)}"
        lines.append([kind, each, mean, percent(total.one_more.low, total.one_more.high)])
    return table(["Adan's error against AdamW's", "each family", "their mean, 95% interval", "one more family"], lines)


def words(settings: Mapping[str, Any]) -> str:
    """An optimizer's settings in words, but what is 0."""
    parts = []
    for key, value in settings.items():
        name = {"weight_decay": "decay"}.get(key, key.replace("_", " "))
        if isinstance(value, bool):
            parts.append(name if value else f"no {name}")
        elif isinstance(value, str | Mapping):
            parts.append(f"{name} {value if isinstance(value, str) else words(value)}")
        elif value or key == "weight_decay":
            values = value if isinstance(value, list | tuple) else [value]
            parts.append(f"{name} {', '.join(f'{v:g}' for v in values)}")
    return ", ".join(parts)


# Figures

SWEEPS: dict[str, tuple[str, float]] = DATA["sweeps"]  # titles, and how much worse than the best is still shown


def line_style(optimizer: str) -> dict[str, str]:
    first = ["adan", "adamw", "adam", "lamb", "sgd", "adabelief"]
    today = ["adan", "adamw", "muon", "soap", "ademamix", "mars", "nadamw", "schedule-free", "lion"]
    return style_of(optimizer, first if optimizer in first else today)


def band(group: SeedGroup, x: Sequence[float], values: Sequence[Iterable[float]], label: str, **style: bool) -> Curve:
    """The mean of the seeds at every x, with the lowest and the highest."""
    columns = [[unit_of(group.first).factor * value for value in at] for at in values]
    means, low, high = ([round(f(at), 4) for at in columns] for f in (statistics.fmean, min, max))
    color = line_style(group.optimizer)["light"]
    return Curve(color, label or NAMES[group.optimizer], list(x), means, low, high, **style)


def panel(title: str, x_label: str, unit: Unit, lines: list[Curve], share: float) -> Panel:
    """Curves, with a vertical axis for what comes after a share of a run."""
    late = [end for line in lines for ends in (line.low, line.high) for end in ends[int(share * len(line.x)) :]]
    room = 0.04 * (max(late) - min(late))
    return Panel(title, x_label, unit.name, lines, round(min(late) - room, 4), round(max(late) + room, 4))


def curves(title: str, names: str, stored: Stored, half: str = "") -> Panel:
    """The metric over a run, with Adan's at half the length where a study has that."""
    study = stored[names.split()[0]]
    whole = over_run(title, together(names, stored), study.length, study.unit)
    if half:  # the axes stay those of the whole length
        shorter = stored[half.split()[0]]
        label = f"Adan, {shorter.length:,} {shorter.unit}"
        whole.lines.append(_over_run(together(half, stored)[0], shorter.length, label, dashed=True))
    return whole


def over_run(title: str, groups: Sequence[SeedGroup], length: int, unit: str) -> Panel:
    """The metric over a run of so many epochs or steps."""
    shown = unit_of(groups[0].first)
    lines = [_over_run(group, length) for group in sorted(groups, key=lambda group: -group.result.mean)]  # as they end
    return panel(title, unit.removesuffix("s"), shown, lines, shown.share)


def _over_run(group: SeedGroup, length: int, label: str = "", dashed: bool = False) -> Curve:
    steps, values = zip(*group.curve(), strict=True)
    x = [step * length / group.first.config.steps for step in steps]
    return band(group, x, values, label, dashed=dashed or bool(line_style(group.optimizer)["dash"]))


def over_field(row: Mapping[str, Any], own: Sequence[Contestant]) -> Panel:
    """The first search of each of today's optimizers on a workload."""
    groups = [rival.groups[0] for rival in own if rival.groups]
    epochs = row.get("epochs", 0)
    return over_run(row["label"], groups, epochs or groups[0].first.config.steps, "epochs" if epochs else "steps")


def over_sizes(stored: Stored) -> Panel:
    all_groups = stored["batch-size-vit"].compared()
    swept = {NAMES[who]: [g for g in all_groups if g.optimizer == who] for who in ("adan", "adamw", "lamb")}
    swept["Adan, b1 = 0.9"] = stored["batch-size-vit-b1"].compared()
    lines = []
    for label, groups in swept.items():
        x, values = [float(g.first.config.batch_size) for g in groups], [g.by_seed().values() for g in groups]
        lines.append(band(groups[0], x, values, label, dashed="b1" in label, points=True))
    return replace(panel("25 epochs", "batch size", UNITS["accuracy"], lines, 0), log_x=True)


def over_rates(name: str, title: str, room: float, stored: Stored) -> Panel:
    """Validation results over learning rates; what is worse than the best by more than `room` is not shown."""
    groups = stored[f"sensitivity-{name}"].groups
    unit, sign = unit_of(groups[0].first), 1 if groups[0].higher else -1
    lines = []
    for who in ("adan", "adamw"):
        finals = {g.settings["lr"]: round(unit.factor * g.final().mean, 4) for g in groups if g.optimizer == who}
        rates = sorted(finals)
        lines.append(Curve(line_style(who)["light"], NAMES[who], rates, [finals[rate] for rate in rates], points=True))
    best = sign * max(sign * y for line in lines for y in line.y)
    low, high = sorted((best - sign * room, best + sign * room / 20))
    y_label = unit.name.replace("test", "validation")
    return Panel(title, "learning rate", y_label, lines, round(low, 4), round(high, 4), log_x=True)


def pictures(stored: Stored) -> dict[str, Picture]:
    """All figures of the pages by file name."""
    rows = contests(stored)
    forests = [Forest(*AXES[axis][:2], [r.effect for r in rows if r.unit.axis == axis]) for axis in AXES]
    figures: dict[str, list[Panel | Forest]] = {"all": [*forests], "batch-size": [over_sizes(stored)]}
    figures["lr"] = [over_rates(name, *of, stored) for name, of in SWEEPS.items()]
    halves = {row["studies"]: row["half"] for row in DATA["halves"]}
    for row in (row for row in [*DATA["rows"], *DATA["recipes"]] if "batch_size" not in row):
        own = figures.setdefault(family(row["label"]).lower(), [])
        own.append(curves(row["label"], row["studies"], stored, halves.get(row["studies"], "")))
    every = rivals_by_workload(stored)
    figures["field"] = [over_field(row, every[row["label"]]) for row in DATA["field"] if row["label"] in every]
    return {f"results-{name}.svg": picture for name, picture in figures.items()}
