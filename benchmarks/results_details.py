"""The tables of docs/results-details.md: settings, seeds and search of every stored study."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from textwrap import fill

from common import ROOT, table
from results_page import DATA, NAMES, Stored, together, unit_of, words
from stored import EVIDENCE, SeedGroup, StoredStudy, by_key, by_optimizer

from adan_bench.config import RunRecord
from adan_bench.records.stats import MIN_SEEDS, grouped

PAGE = ROOT / "docs" / "results-details.md"
#: Studies whose groups are one table, by the first of them; the others have none of their own.
TABLES = {row["studies"].split()[0]: row["studies"] for kind in ("rows", "recipes") for row in DATA[kind]}
BESIDE = {name for names in TABLES.values() for name in names.split()[1:]}
wrap = partial(fill, width=120, break_long_words=False, break_on_hyphens=False)


def others(stored: Stored) -> str:
    """The studies that have no place of their own on the page."""
    placed = re.findall(r"^<!-- table study:(\S+) -->$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    found = [f"### `{name}`\n\n{described(name, stored)}" for name in stored if name not in placed]
    return "\n\n".join(["## Newer studies", *found] if found else [])


def described(name: str, stored: Stored) -> str:
    """A study's facts, its results where no other's table has them, and its search."""
    study = stored[name]
    groups, trials = study.groups, [r for own in study.search.values() for r in own]
    parts = [wrap(facts(study, [r for g in groups for r in g.runs] + trials))]
    if groups and groups[0].first.config.role == "tune":  # a sweep with the tuning seed, of which nothing is chosen
        parts.append(searched(by_optimizer(g.first for g in groups), {}))
    elif groups and name not in BESIDE:
        parts.append(compared(together(TABLES.get(name, name), stored) or groups))
    return "\n\n".join([*parts, searched(study.search, study.chosen)] if trials else parts)


def facts(study: StoredStudy, runs: Sequence[RunRecord]) -> str:
    """What was trained, how long, and where its settings come from."""
    config, size = runs[0].config, runs[0].environment["parameters"]
    lengths = sorted({(r.config.steps, r.config.batch_size) for r in runs if r.config.role == config.role})
    parts = [
        f"`{config.workload}` with {f'{size / 1e6:.1f} M' if size > 5e4 else f'{size:,}'} parameters",
        f"{study.length:,} epochs" if study.unit == "epochs" else "",
        f"{', '.join(f'{steps:,} steps of {batch_size:,}' for steps, batch_size in lengths)}",
        f"schedule {config.schedule}, {'bf16' if config.bf16 else 'fp32'}",
        f"starts from `{study.starts_from}`" if study.starts_from else "",
        f"settings of {study.settings_of}" if study.settings_of else "",
    ]
    if study.planned_trials is not None:
        at = f"of {study.tune_length:,} {study.unit}" if study.tune_length else "of full length"
        trials, most = study.planned_trials, max(map(len, study.search.values()), default=0)
        given = "settings of its file" if config.study else "published settings"
        again = f", and {most - trials} with the best on other seeds" if config.study and most > trials else ""
        parts.append(f"{trials} trials per optimizer {at}{again}" if trials else given)
    if config.device != "cpu":
        ends = [(r.result or {}, r.config.jobs) for r in {r.path: r for r in runs}.values()]
        seconds = sum(end.get("wall_seconds", end.get("seconds", 0)) / jobs for end, jobs in ends)
        parts.append(f"{seconds / 60:.1f} GPU-minutes")
    return "; ".join(filter(None, parts)) + "."


def compared(groups: Sequence[SeedGroup]) -> str:
    """One row per group, with plain Adan's lead over each other of the same batch size, corrected for their number."""
    adans = [g for g in groups if g.optimizer == "adan"]
    fewest = [g for g in adans if len(g.settings) == min(len(g.settings) for g in adans)]
    plain = {g.first.config.batch_size: g for g in fewest}
    if len(plain) < len(fewest) or any(g.n < MIN_SEEDS for g in groups):  # none is the plain one, or too few seeds
        plain = {}
    tests = sum(g.first.config.batch_size in plain for g in groups) - len(plain)
    several = len({g.first.config.batch_size for g in groups}) > 1
    lines = []
    for g in groups:
        unit, loss, size = unit_of(g.first), g.training_loss(), g.first.config.batch_size
        adan = plain.get(size, g)
        settings = (f"batch size {size}, " if several else "") + words(g.first.config.tuned)
        n = g.counted + (f" of {g.planned}" if g.n + g.diverged < g.planned else "")
        training = (f"{loss:.3f}" if abs(loss) >= 0.01 else f"{loss:.1g}").replace("-", "−")
        gap = unit.said(adan.minus(g, tests)) if adan is not g else ""
        lines.append([NAMES.get(g.optimizer, g.optimizer), settings, n, unit.spread(g.final()), training, gap])
    head = ["optimizer", "settings", "n", unit_of(groups[0].first).name, "training loss", "Adan − this optimizer"]
    return table(head, lines)


def searched(search: Mapping[str, Sequence[RunRecord]], chosen: Mapping[str, RunRecord]) -> str:
    """Each optimizer's trials in their order, with validation results; the chosen settings are bold."""
    lines = []
    for optimizer, trials in search.items():
        base, best = trials[0].config.tuned, chosen.get(optimizer)
        said = []
        for own in grouped(trials, lambda r: [r.config.tuned, r.config.steps]):
            changed = {
                key: value for key, value in own[0].config.tuned.items() if key == "lr" or value != base.get(key)
            }
            values = ["not finite" if r.final is None else f"{r.final:.5g}" for r in own]
            text = f"{words(changed)}: {', '.join(values)}"
            said.append(f"**{text}**" if best in own else text)
        rates = [r.lr for r in trials]
        ends = {min(rates): "the smallest", max(rates): "the largest"}
        end = ends.get(best.lr, "") if best else ""
        others = words({key: value for key, value in base.items() if key != "lr"})
        lines.append([NAMES.get(optimizer, optimizer), others, "; ".join(said), end])
    return table(["optimizer", "settings", f"validation {trials[0].metric} of the trials", "chosen rate is"], lines)


def abandoned(name: str, _: Stored) -> str:
    """The seeds of a file of runs that were given up; those of a format beside today's fp32 runs."""
    today = by_key(EVIDENCE / "runs.jsonl").values()
    seeds = [r for r in by_key(EVIDENCE / f"{name}.jsonl").values() if r.config.role == "run"]
    lines = []
    for runs in grouped(seeds, lambda r: [r.config.workload, r.config.steps, r.config.settings]):
        config, unit, group = runs[0].config, unit_of(runs[0]), SeedGroup(tuple(runs))
        plain = {key: value for key, value in config.settings.items() if key != "state_format"}
        same = replace(config, settings=plain, seed=0, compile=False, jobs=1)
        fp32 = tuple(r for r in today if replace(r.config, seed=0, compile=False, jobs=1) == same)
        compare = plain != config.settings and group.n >= MIN_SEEDS
        gap = unit.said(group.minus(SeedGroup(fp32))) if compare else ""
        label = f"`{config.workload}`, {config.steps:,} steps: {unit.name}"
        result = [str(group.n), unit.spread(group.final()), gap]
        lines.append([label, NAMES[group.optimizer], words(config.settings), *result])
    return table(["", "optimizer", "settings", "n", "result", "minus fp32"], lines)
