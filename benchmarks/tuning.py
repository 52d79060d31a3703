"""The tables of docs/tuning.md: each rule of `suggest_from_adamw` with its record, and how it fares elsewhere.

`derived` recomputes a rule's number from the records; tests/benchmarks/test_tuning.py holds the package to it.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evidence.compare import Verdict, welch
from evidence.jobs import Record, read, score
from evidence.search import TUNING_SEED, Study
from evidence.sections.parts import NAMES, RUNS, table
from evidence.studies import HOPPER, STUDIES

from adan.hyperparameters import recipes
from adan.suggestion import B1, LR_RATIO, Point, Suggestion, Task, suggest_from_adamw
from adan_bench.config import Origin

ROOT = Path(__file__).resolve().parent.parent
Records = dict[str, Record]

RULES = {"lr ÷ AdamW's": LR_RATIO, "b1": B1}
KINDS: dict[Task | None, str] = {
    "vision": "vision",
    "lm": "language",
    "moe": "mixture of experts",
    "finetune": "fine-tuning",
    "rl": "reinforcement learning",
    None: "unknown",
}
#: Studies that no rule was fitted to, by the task that a user would name.
OTHERS: dict[str, Task | None] = {
    "gpt-tiny": "lm",
    "gpt-30m": "lm",
    "gpt-30m-again": "lm",
    "bert": "lm",
    "bert-again": "lm",
    "lstm-8-again": "lm",
    "transformer-xl": "lm",
    "moe": "moe",
    "bert-cola": "finetune",
    "bert-cola-again": "finetune",
    "bert-sst2": "finetune",
    "bert-sst2-again": "finetune",
    "cora": None,
    "resnet34-30": "vision",
    "resnet34-30-again": "vision",
    "convnext-25": "vision",
    "convnext-25-again": "vision",
    "mae-50": "vision",
    "mae-50-again": "vision",
    "mae-50-full": "vision",
    "detr-bccd": "vision",
    "tianshou-hopper": "rl",
}
#: Recipes of `adan.recipes` behind the points of the paper.
PUBLISHED = {
    "ViT on ImageNet": "vit",
    "Transformer-XL": "transformer-xl",
    "BERT on GLUE": "bert-finetune",
    "PPO": "rl-ppo",
    "default betas": "default",
}


def tuned(name: str, records: Records) -> tuple[str, dict[str, Any], dict[str, Any]] | None:
    """AdamW, or Adam where a study has no AdamW; its tuned settings and Adan's. None where trials are left."""
    study = {**STUDIES, HOPPER.name: HOPPER}.get(name)
    if not isinstance(study, Study):
        return None
    other = "adamw" if any(entry.optimizer == "adamw" for entry in study.entries) else "adam"
    theirs, ours = study.best(other, records), study.best("adan", records)
    return None if theirs is None or ours is None else (other, theirs, ours)


def trials(name: str, records: Records, length: int | None = None) -> list[Record]:
    """The finished trials of Adan in a study, of one length if it has several."""
    return [
        record
        for record in records.values()
        if (record["job"]["study"], record["job"]["optimizer"], record["seed"]) == (name, "adan", TUNING_SEED)
        and record["status"] == "finished"
        and length in (None, record["job"]["length"])
    ]


def search(name: str, optimizer: str, records: Records) -> list[Record]:
    """The trials of a study, of which another study may have made some."""
    study = STUDIES[name]
    assert isinstance(study, Study)
    return [records[job.key] for job in study.asked(study.entry(optimizer), records)]


def by_b1(records: list[Record]) -> dict[float, float]:
    """b1 → the best validation result that a trial with it had."""
    best: dict[float, Record] = {}
    for record in records:
        b1 = record["job"]["settings"]["betas"][0]
        if b1 not in best or score(record) > score(best[b1]):
            best[b1] = record
    return {b1: record["final"][record["metric"]] for b1, record in sorted(best.items())}


def differing_in_b1(records: list[Record]) -> list[Record]:
    """The trials that have others beside them with the same settings but for b1."""

    def rest(record: Record) -> tuple[float, ...]:
        job = record["job"]["settings"]
        return job["lr"], job["weight_decay"], *job["betas"][1:]

    count = Counter(map(rest, records))
    return [record for record in records if count[rest(record)] > 1]


def published(name: str) -> list[dict[str, Any]]:
    """The settings of one of the paper's tables."""
    data = json.loads((ROOT / "src" / "adan_bench" / "tables" / f"{name}.json").read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = data["settings"]
    return rows


def published_ratio(source: str) -> tuple[float, str]:
    """Adan's lr over that of the optimizer it is compared with, as published."""
    if source == "BERT on GLUE":
        lrs = {(row["workload"], row["optimizer"]): row["settings"]["lr"] for row in published("bert")}
        ratios = [lr / lrs[task, "adam"] for (task, who), lr in lrs.items() if who == "adan" and "glue" in task]
        words = f"median of {len(ratios)} tasks, {min(ratios):g} to {max(ratios):g}"
        return statistics.median(ratios), words
    recipe = recipes[PUBLISHED[source]]
    assert recipe.lr is not None
    if source == "Transformer-XL":
        lr = next(row["settings"]["lr"] for row in published("transformer-xl") if row["optimizer"] == "adam")
        return recipe.lr / lr, f"lr {recipe.lr:g}, the official Adam's {lr:g}"
    row = next(row for row in published("vit-swin") if row["optimizer"] == "adamw" and "vit-s" in row["workload"])
    lr = row["settings"]["lr"] * recipe.batch_size / row["batch_size"]
    return recipe.lr / lr, f"lr {recipe.lr:g}, DeiT's AdamW at that batch {lr:g}"


def derived(setting: str, point: Point, records: Records) -> tuple[float, str]:
    """A point's value as its source has it, and the numbers behind it in words."""
    if point.paper:
        if setting != "b1":
            return published_ratio(point.source)
        betas = recipes[PUBLISHED[point.source]].betas
        return betas[0], f"betas {betas}"
    choice = tuned(point.source, records)
    assert choice is not None, f"{point.source} has trials left"
    other, theirs, ours = choice
    if setting != "b1":
        return ours["lr"] / theirs["lr"], f"tuned lr {ours['lr']:g}, {NAMES[other]}'s {theirs['lr']:g}"
    candidates = differing_in_b1(trials(point.source, records))
    shown = ", ".join(f"{value:.4f} with {b1:g}" for b1, value in by_b1(candidates).items())
    best = max(search(point.source, "adan", records), key=score)
    if best not in candidates:
        decay = best["job"]["settings"]["weight_decay"]
        shown += f"; chosen: {best['final'][best['metric']]:.4f} with {ours['betas'][0]:g} and decay {decay:g}"
    return ours["betas"][0], f"validation {best['metric']} {shown}"


def rows() -> Iterator[tuple[str, list[str], Point]]:
    """Every point of every rule, with the kinds of model that it serves."""
    for setting, of_setting in RULES.items():
        kinds: dict[Point, list[str]] = {}
        for task, rule in of_setting.items():
            for point in rule.points:
                kinds.setdefault(point, []).append(KINDS[task])
        for point, names in kinds.items():
            yield setting, names, point


def rules() -> str:
    records = read(RUNS)
    lines = []
    for setting, names, point in rows():
        source = f"paper, {point.source}" if point.paper else f"record `{point.source}`"
        at = f"{point.steps:,}" if point.steps else "any"
        lines.append([setting, ", ".join(names), at, f"{point.value:g}", source, derived(setting, point, records)[1]])
    return table(["", "kind of model", "steps", "value", "source", "numbers"], lines)


def b1_by_length() -> str:
    """The best of three learning rates for each b1, at each length."""
    records = read(RUNS)
    study = "b1-length-gpt"
    lengths = {record["job"]["length"] for record in trials(study, records)}
    by_length = {length: by_b1(trials(study, records, length=length)) for length in lengths}
    by_length[2_000] = by_b1(trials("gpt", records))
    columns = sorted({b1 for values in by_length.values() for b1 in values})
    lines = [
        [f"{length:,} steps", *(f"{values[b1]:.3f}" if b1 in values else "" for b1 in columns)]
        for length, values in sorted(by_length.items())
    ]
    return table(["GPT, validation loss", *(f"b1 = {b1:g}" for b1 in columns)], lines)


def settings(values: dict[str, Any]) -> str:
    b1 = f", b1 {values['betas'][0]:g}" if "betas" in values else ""
    return f"lr {values['lr']:g}{b1}"


def held_out() -> str:
    """Adan at the suggestion beside AdamW, on workloads of the harness that no rule was fitted to."""
    data: dict[str, Any] = json.loads((ROOT / "results" / "held-out.json").read_text(encoding="utf-8"))
    lines: list[list[str]] = []
    words: dict[str, list[str]] = {}
    for name, row in data["workloads"].items():
        ours, theirs = row["adan"]["values"], row["adamw"]["values"]
        verdict = Verdict(welch(ours, theirs), row["higher_is_better"])
        d = verdict.difference
        words.setdefault(verdict.word, []).append(f"`{name}`")
        arrow = "↑" if row["higher_is_better"] else "↓"
        tuned_or_not = "untuned" if Origin.from_json(row["origin"]).flaw == "untuned" else "tuned"
        lines.append(
            [
                f"`{name}`, {row['steps']} steps, {row['metric']} {arrow}",
                f"{row['adamw']['settings']['lr']:g}, {tuned_or_not}",
                settings(row["adan"]["settings"]),
                f"{statistics.fmean(theirs):.4g}",
                f"{statistics.fmean(ours):.4g}",
                f"{d.mean:+.3g} [{d.low:+.3g}, {d.high:+.3g}]: {verdict.word}".replace("-", "−"),
            ]
        )
    head = ["workload", "AdamW's lr", "suggestion", "AdamW", "Adan", "Adan minus AdamW"]
    said = " and ".join(f"{word} on {', '.join(words.get(word, ['none']))}" for word in ("better", "worse"))
    e = data["environment"]
    return (
        f"{table(head, lines)}\n\nAdan at the suggestion is significantly {said}. Means of n = {data['seeds']} seeds, "
        f"95% intervals by Welch's t test, without correction; torch {e['packages']['torch']}, {e['cpu']}, commit "
        f"{e['commit'][:7]}."
    )


def nearest(s: Suggestion, name: str, records: Records) -> Record | None:
    """The trial of Adan nearest to a suggestion, where one has its b1 and is less than a factor of 1.5 away."""

    def distance(record: Record) -> tuple[float, float]:
        settings = record["job"]["settings"]
        return round(abs(math.log(settings["lr"] / s.lr)), 6), abs(settings.get("weight_decay", 0.0) - s.weight_decay)

    candidates = [r for r in search(name, "adan", records) if abs(r["job"]["settings"]["betas"][0] - s.betas[0]) < 0.01]
    near = [r for r in candidates if r["status"] == "finished" and distance(r)[0] < math.log(1.5)]
    return min(near, key=distance, default=None)


def elsewhere() -> str:
    """What tuning chose in studies that no rule was fitted to, beside what the suggestion would have been."""
    records = read(RUNS)
    lines, wins = [], []
    for name, task in OTHERS.items():
        choice = tuned(name, records)
        if choice is None:
            continue
        other, theirs, ours = choice
        best = {who: max(search(name, who, records), key=score) for who in (other, "adan")}
        steps = best["adan"]["steps"]
        decay, betas = theirs.get("weight_decay", 0.0), tuple(theirs["betas"])
        s = suggest_from_adamw(theirs["lr"], weight_decay=decay, betas=betas, total_steps=steps, task=task)
        result = {who: f"{r['final'][r['metric']]:.4g}" for who, r in best.items()}
        arrow = "↑" if best["adan"]["higher_is_better"] else "↓"
        if near := nearest(s, name, records):
            wins.append(score(near) > score(best[other]))
        lines.append(
            [
                f"`{name}`, {steps:,} steps, {best['adan']['metric']} {arrow}",
                f"{NAMES[other]}, lr {theirs['lr']:g}: {result[other]}",
                settings(s.options()),
                f"lr {near['job']['settings']['lr']:g}: {near['final'][near['metric']]:.4g}" if near else "none",
                f"{settings(ours)}: {result['adan']}",
                f"{ours['lr'] / theirs['lr']:.2g}",
            ]
        )
    head = ["study", "tuned", "suggestion for Adan", "nearest trial", "what tuning chose for Adan", "lr ÷ lr"]
    beats = f"{sum(wins)} of {len(wins)}"
    said = f"At the trial nearest to the suggestion, Adan beats the tuned baseline in {beats} studies."
    return f"{table(head, lines)}\n\n{said}"


def harness() -> str:
    """Adan's tuned lr over AdamW's on every workload of the harness where the search found both."""
    workloads = json.loads((ROOT / "src" / "adan_bench" / "training" / "tuned.json").read_text(encoding="utf-8"))[
        "workloads"
    ]
    tuned = [row for name, row in workloads.items() if "@" not in name and {"adan", "adamw"} <= row.keys()]
    both = [row for row in tuned if not (row["adan"]["at_edge"] or row["adamw"]["at_edge"])]
    steps = [row["adan"]["steps"] for row in both]
    ratios = [row["adan"]["settings"]["lr"] / row["adamw"]["settings"]["lr"] for row in both]
    return (
        f"How far off can it be? On {len(ratios)} workloads of the harness, with runs of {min(steps)} to {max(steps)} "
        "steps and learning rates a factor of 3.2 apart, both optimizers were tuned with eight trials: Adan's lr ÷ "
        f"AdamW's lies between {min(ratios):.1g} and {max(ratios):.2g}, with a geometric mean of "
        f"{statistics.geometric_mean(ratios):.1f}. {len(tuned) - len(both)} more are left out: on them, one "
        "optimizer's best rate was at the edge of those tried."
    )
