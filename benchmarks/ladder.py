"""The ladder: runs of several lengths, tuned at each; what a length is worth to one optimizer in steps of another."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

from common import table
from inference import PowerLaw, steps_ratio
from results_page import DATA, NAMES, Stored, unit_of
from stored import SeedGroup

Rungs = Mapping[int, SeedGroup]


def rungs(stored: Stored, name: str) -> dict[str, dict[int, SeedGroup]]:
    """The groups of the studies NAME-…, by optimizer and number of steps."""
    found: dict[str, dict[int, SeedGroup]] = {}
    groups = (g for study in stored.values() if name and study.name.startswith(f"{name}-") for g in study.groups)
    for group in sorted(groups, key=lambda group: group.first.config.steps):
        found.setdefault(group.optimizer, {})[group.first.config.steps] = group
    return found


def laws(own: Mapping[str, Rungs]) -> dict[str, PowerLaw]:
    """The fits of all optimizers, nothing where there are too few lengths; at each, all have the same error."""
    lengths = {steps for ladder in own.values() for steps in ladder}
    found = {steps: [ladder[steps].result for ladder in own.values() if steps in ladder] for steps in sorted(lengths)}
    errors = {steps: math.sqrt(statistics.fmean(r.variance for r in results)) for steps, results in found.items()}
    complete = len(lengths) > 3 and all(len(results) == len(own) for results in found.values())
    means = {name: {steps: group.result.mean for steps, group in ladder.items()} for name, ladder in own.items()}
    return {name: PowerLaw.of(of, errors) for name, of in means.items()} if complete else {}


def ladders(stored: Stored) -> str:
    """A table per ladder of which enough is stored to fit: losses by length, and the ratios of steps at equal loss."""
    every = (rungs(stored, row.get("ladder", "")) for row in DATA["field"])
    return "\n\n".join(_table(own, fits) for own in every if (fits := laws(own)))


def _table(own: Mapping[str, Rungs], fits: Mapping[str, PowerLaw]) -> str:
    unit = unit_of(next(iter(own["adan"].values())).first)
    names = sorted(own, key=["adan", "adamw", *own].index)
    rivals = [name for name in names if name != "adamw"]
    head = [f"steps: {unit.name} ↓", *(NAMES[name] for name in names)]
    head += [f"{NAMES[name]}'s steps for AdamW's loss" for name in rivals]
    lines = []
    for steps in own["adamw"]:
        cells = [f"{unit.spread(own[name][steps].final())} ({_chosen(own[name][steps])})" for name in names]
        lines.append([f"{steps:,}", *cells, *(_ratio(fits, name, steps) for name in rivals)])
    said = ", ".join(f"{NAMES[name]} {fit.a:.3f} + {fit.b:.3g}·T^−{fit.c:.3f}" for name, fit in fits.items())
    seeds = "/".join(dict.fromkeys(str(group.n) for ladder in own.values() for group in ladder.values()))
    text = f"Fits of the loss after T steps: {said}; {seeds} seeds per length. †: beyond the lengths run."
    return f"{table(head, lines)}\n\n{text}"


def _chosen(group: SeedGroup) -> str:
    """The rate and the decay of momentum."""
    b1 = group.settings.get("momentum", group.settings["betas"][0])
    return f"lr {group.settings['lr']:.2g}, b1 {b1:g}"


def _ratio(fits: Mapping[str, PowerLaw], name: str, steps: int) -> str:
    """With its interval, and a dagger where the steps are outside the lengths that were run."""
    found = steps_ratio(fits[name], fits["adamw"], steps, [*fits.values()])
    inside = min(fits[name].errors) <= steps * found.mean <= max(fits[name].errors)
    interval = f" [{found.low:.2f}, {found.high:.2f}]" if found.low is not None else ""
    return f"×{found.mean:.2f}{'' if inside else '†'}{interval}"
