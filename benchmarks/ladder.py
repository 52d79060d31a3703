"""The ladder: runs of several lengths, tuned at each; what a length is worth to one optimizer in steps of another."""

from __future__ import annotations

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


def law(own: Rungs) -> PowerLaw:
    return PowerLaw.of({steps: group.result.mean for steps, group in own.items()})


def ladders(stored: Stored) -> str:
    """A table per ladder of which enough is stored to fit: losses by length, and the ratios of steps at equal loss."""
    every = {row["label"].partition(", ")[0]: rungs(stored, row.get("ladder", "")) for row in DATA["field"]}
    return "\n\n".join(_table(own) for own in every.values() if _complete(own))


def _complete(own: Mapping[str, Rungs]) -> bool:
    lengths = [set(ladder) for ladder in own.values()]
    return {"adan", "adamw"} <= own.keys() and len(lengths[0]) > 3 and all(other == lengths[0] for other in lengths)


def _table(own: Mapping[str, Rungs]) -> str:
    unit, laws = unit_of(next(iter(own["adan"].values())).first), {name: law(ladder) for name, ladder in own.items()}
    names = sorted(own, key=["adan", "adamw", *own].index)
    rivals = [name for name in names if name != "adamw"]
    head = [f"steps: {unit.name} ↓", *(NAMES[name] for name in names)]
    head += [f"{NAMES[name]}'s steps for AdamW's loss" for name in rivals]
    lines = []
    for steps in own["adamw"]:
        cells = [f"{unit.spread(own[name][steps].final())} ({_chosen(own[name][steps])})" for name in names]
        lines.append([f"{steps:,}", *cells, *(_ratio(laws, name, steps) for name in rivals)])
    fits = ", ".join(f"{NAMES[name]} {fit.a:.3f} + {fit.b:.3g}·T^−{fit.c:.3f}" for name, fit in laws.items())
    seeds = "/".join(dict.fromkeys(str(group.n) for ladder in own.values() for group in ladder.values()))
    return f"{table(head, lines)}\n\nFits of the loss after T steps: {fits}; {seeds} seeds per length."


def _chosen(group: SeedGroup) -> str:
    """The rate and the decay of momentum."""
    b1 = group.settings.get("momentum", group.settings["betas"][0])
    return f"lr {group.settings['lr']:.2g}, b1 {b1:g}"


def _ratio(laws: Mapping[str, PowerLaw], name: str, steps: int) -> str:
    found = steps_ratio(laws[name], laws["adamw"], steps, [*laws.values()])
    return f"×{found.mean:.2f}" + (f" [{found.low:.2f}, {found.high:.2f}]" if found.low is not None else "")
