"""A page of the settings of every run at the scale "paper", each beside its source: docs/paper-settings.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from adan_bench.tables import PublishedSettings, Table, tables

LONGEST = 1600  # epochs of a budget: MAE's

INTRODUCTION = """\
# Settings at the scale `paper`

What `adan-bench reproduce --scale paper` runs for each table, and where it comes from. A repository is followed by
paths in it; “paper” is Xie et al. 2024. A setting in *italics* is a guess, since no public source states it. Where the
paper's text and the authors' configurations differ, the configurations are run, and the source names what the paper
states. Schedules are those of [`schedules.py`](../src/adan_bench/training/schedules.py).

`make tables` writes this page from [`src/adan_bench/tables`](../src/adan_bench/tables).
"""


def page() -> str:
    """The whole page, in Markdown."""
    return INTRODUCTION + "".join(_section(table) for table in tables().values() if table.kind == "train")


def _section(table: Table) -> str:
    lines = [f"\n## {table.place}: {table.title}\n"]
    if table.like:
        places = " and ".join(tables()[name].place for name in table.like)
        return "\n".join([*lines, f"The runs, and so the settings, are those of {places}."]) + "\n"
    common = []
    if table.schedule:
        common.append(f"schedule {table.schedule}")
    if table.warmup:
        common.append(_warmup(table.warmup))
    if common:
        lines.append(f"Unless a row says otherwise: {', '.join(common)}.\n")
    lines += ["| optimizer | runs | settings | source |", "| --- | --- | --- | --- |"]
    names = {row.optimizer: row.head for row in reversed(table.rows) if row.study}
    several = [row.optimizer for row in table.rows if row.study]
    for entry in sorted(table.settings, key=lambda entry: several.index(entry.optimizer)):
        name = names[entry.optimizer] if several.count(entry.optimizer) == 1 else entry.optimizer
        runs = ", ".join(entry.column or entry.workload) or "all"
        cells = (name, runs, ", ".join(_parts(entry)), entry.source)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    fixed = [row for row in table.rows if row.fixed or row.before]
    if fixed:
        lines.append(
            "\nVaried by the table: " + ", ".join(sorted({key for r in fixed for key in (*r.fixed, *r.before)})) + "."
        )
    return "\n".join(lines) + "\n"


def _parts(entry: PublishedSettings) -> Iterator[str]:
    """The settings in words, guesses in italics."""
    values: dict[str, str] = {key: f"{key} {_plain(value)}" for key, value in entry.settings.items()}
    if "lr" in entry.guess and "lr" not in values:
        values = {"lr": "lr: tune it", **values}
    if entry.batch_size is not None:
        values["batch_size"] = f"batch {entry.batch_size}"
    if entry.schedule is not None:
        values["schedule"] = entry.schedule
    if entry.warmup is not None:
        values["warmup"] = _warmup(entry.warmup)
    if entry.min_lr is not None:
        values["min_lr"] = f"down to {_plain(entry.min_lr)}"
    if entry.cooldown is not None:
        values["cooldown"] = f"then {_length(entry.cooldown)} more at that rate"
    if entry.clip is not None:
        values["clip"] = f"clip {entry.clip:g}" if entry.clip else "no clipping"
    if entry.ema is not None:
        values["ema"] = f"average of weights {entry.ema:g}"
    if entry.nonmono is not None:
        values["nonmono"] = f"switch to averaged SGD after {entry.nonmono} evaluations"
    values |= {key: f"{key.replace('_', ' ')} {_plain(value)}" for key, value in entry.training.items()}
    for key, text in values.items():
        yield f"*{text}*" if key in entry.guess else text


def _warmup(pair: tuple[float, float]) -> str:
    return f"warm-up of {_length(pair)}" if pair[0] else "no warm-up"


def _length(pair: tuple[float, float]) -> str:
    """Of the workload's whole budget, which is so many epochs, or far more steps."""
    return f"{pair[0]:g} epochs" if pair[1] <= LONGEST else f"{pair[0]:,g} steps"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(_plain(item) for item in value) + ")"
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)
