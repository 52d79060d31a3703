"""The ladder: runs of several lengths, tuned at each; what a length is worth to one optimizer in steps of another."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

from common import table
from figures import Curve, Panel, Picture
from inference import PowerLaw, steps_ratio
from results_page import DATA, NAMES, Stored, Unit, band, line_style, panel, unit_of
from stored import SeedGroup

from adan_bench.records.stats import Interval

Rungs = Mapping[int, SeedGroup]


def rungs(stored: Stored, name: str) -> dict[str, dict[int, SeedGroup]]:
    """The groups of the studies NAME-…, by optimizer and number of steps."""
    found: dict[str, dict[int, SeedGroup]] = {}
    groups = (g for study in stored.values() if name and study.name.startswith(f"{name}-") for g in study.groups)
    for group in sorted(groups, key=lambda group: group.first.config.steps):
        found.setdefault(group.optimizer, {})[group.first.config.steps] = group
    return found


@dataclass(frozen=True)
class Ladder:
    """Adan, AdamW and others at several lengths; those that were run at all of them have a fit.

    seeds: the degrees of freedom of the errors at a length.
    """

    own: Mapping[str, Rungs]
    fits: Mapping[str, PowerLaw]
    seeds: int

    @classmethod
    def of(cls, own: Mapping[str, Rungs]) -> Ladder | None:
        """None where not both Adan and AdamW were run at the same two lengths or more. All have the same errors."""
        if higher := {group.first.metric for of in own.values() for group in of.values() if group.higher}:
            raise ValueError(f"a ladder is of losses, which fall as a power of the steps, not of {', '.join(higher)}")
        lengths = sorted(own.get("adamw", {}))
        if len(lengths) < 2 or own.get("adan", {}).keys() != {*lengths}:
            return None
        at = {steps: [ladder[steps] for ladder in own.values() if steps in ladder] for steps in lengths}
        errors = {steps: math.sqrt(statistics.fmean(g.result.variance for g in of)) for steps, of in at.items()}
        means = {name: {steps: group.result.mean for steps, group in ladder.items()} for name, ladder in own.items()}
        fits = {name: PowerLaw.of(of, errors) for name, of in means.items() if of.keys() == {*lengths}}
        return cls(own, fits, min(sum(group.n - 1 for group in of) for of in at.values()))

    @property
    def lengths(self) -> list[int]:
        return [*self.own["adamw"]]

    @property
    def names(self) -> list[str]:
        """The optimizers, Adan and AdamW first."""
        return sorted(self.own, key=["adan", "adamw", *self.own].index)

    @property
    def rivals(self) -> list[str]:
        """The optimizers with a ratio of steps to AdamW's."""
        return [name for name in self.names if name in self.fits and name != "adamw"]

    @property
    def unit(self) -> Unit:
        return unit_of(self.own["adamw"][self.lengths[0]].first)

    @property
    def has_floor(self) -> bool:
        """Whether there are enough lengths to fit what the loss tends to."""
        return self.fits["adamw"].parameters == 3

    def ratio(self, name: str, steps: int) -> Interval:
        """The steps for AdamW's loss after some steps, divided by these."""
        return steps_ratio(self.fits[name], self.fits["adamw"], steps, [*self.fits.values()], self.seeds)

    def is_inside(self, name: str, steps: int) -> bool:
        """Whether these steps are within the lengths that were run: else the ratio is an extrapolation."""
        return self.lengths[0] <= steps * self.ratio(name, steps).mean <= self.lengths[-1]


def ladder(stored: Stored, name: str) -> Ladder | None:
    return Ladder.of(rungs(stored, name)) if name else None


def ladders(stored: Stored) -> str:
    """A table per ladder of which two lengths are stored: losses by length, and the ratios of steps at equal loss."""
    parts = []
    for name, label in DATA["ladders"].items():
        if (found := ladder(stored, name)) is not None:
            parts += [f"### {label}", _table(found)]
    return "\n\n".join(parts)


def in_short(stored: Stored) -> str:
    """README's sentence: the steps to AdamW's loss at the longest length, for each optimizer run at all lengths."""
    said = []
    for name, label in DATA["ladders"].items():
        if (found := ladder(stored, name)) is not None:
            longest = found.lengths[-1]
            ratios = (f"{NAMES[rival]} {_ratio(found, rival, longest)}" for rival in found.rivals)
            said.append(f"{label.rpartition(', ')[2]}, {longest:,} steps: {', '.join(ratios)}.")
    return f"Steps to AdamW's loss. {' '.join(said)}" if said else ""


def pictures(stored: Stored) -> dict[str, Picture]:
    """A figure per ladder by file name."""
    panels = {f"results-{name}.svg": over_lengths(stored, name) for name in DATA["ladders"]}
    return {file: panel for file, panel in panels.items() if panel}


def over_lengths(stored: Stored, name: str) -> list[Panel]:
    """The losses at each length, and the share of AdamW's steps that the same loss takes, where no extrapolation."""
    if (found := ladder(stored, name)) is None or not found.has_floor:  # a table says as much of fewer lengths
        return []
    losses = []
    for own in found.own.values():
        values = [group.by_seed().values() for group in own.values()]
        losses.append(band(next(iter(own.values())), [*own], values, "", points=True))
    shares = [Curve("#555555", "half of AdamW's steps", [*found.lengths], [0.5] * len(found.lengths), dashed=True)]
    for who in found.rivals:
        inside = [steps for steps in found.lengths if found.is_inside(who, steps)]
        ratios = [found.ratio(who, steps) for steps in inside]
        means, low, high = (
            [round(end or 0.0, 4) for end in ends]
            for ends in zip(*((r.mean, r.low, r.high) for r in ratios), strict=True)
        )
        shares.append(Curve(line_style(who)["light"], NAMES[who], [*inside], means, low, high, points=True))
    left = panel("the same steps", "steps", found.unit, losses, 0)
    right = Panel("the same loss", "AdamW's steps", "share of AdamW's steps", shares, 0.0, 1.1)
    return [replace(each, log_x=True) for each in (left, right)]


def _table(found: Ladder) -> str:
    own, names, rivals = found.own, found.names, found.rivals
    head = [f"steps: {found.unit.name} ↓", *(NAMES[name] for name in names)]
    head += [f"{NAMES[name]}'s steps for AdamW's loss" for name in rivals]
    lines = []
    for steps in found.lengths:
        groups = [own[name].get(steps) for name in names]
        cells = [found.unit.spread(group.final()) if group else "" for group in groups]
        lines.append([f"{steps:,}", *cells, *(_ratio(found, name, steps) for name in rivals)])
    seeds = "/".join(dict.fromkeys(str(group.n) for ladder in own.values() for group in ladder.values()))
    text = f"{seeds} seeds per length. †: beyond the lengths run."
    said = (f"{NAMES[name]} {f.a:.3f} + {f.b:.3g}·T^−{f.c:.3f}" for name, f in found.fits.items())
    text += f" Fits of the loss after T steps: {', '.join(said)}." if found.has_floor else " No floor fitted."
    return f"{table(head, lines)}\n\n{text}"


def _ratio(found: Ladder, name: str, steps: int) -> str:
    """With its interval, and a dagger where the steps are outside the lengths that were run."""
    ratio = found.ratio(name, steps)
    interval = f" [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio.low is not None else ""
    return f"×{ratio.mean:.2f}{'' if found.is_inside(name, steps) else '†'}{interval}"
