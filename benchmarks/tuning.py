"""The tables of docs/tuning.md: each rule of `suggest_from_adamw` with its source, and how it fares elsewhere.

tests/benchmarks/test_tuning.py holds the package's numbers to the records; `derived` recomputes those of our studies.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

from common import read, table
from stored import StoredStudy, collected, studies

from adan.suggestion import B1, LR_RATIO, Point, Rule, Suggestion, Task, suggest_from_adamw
from adan_bench.config import RunRecord
from adan_bench.records.stats import WIDTH_TOLERANCE, best_trial, rank, welch

RULES = {"lr ÷ AdamW's": LR_RATIO, "b1": B1}
TASKS = {task: f"`{task}`" if task else "not given" for task in LR_RATIO}
#: Studies that no rule was fitted to, by the task that a user would name.
OTHERS: dict[Task | None, str] = {
    "lm": "gpt-tiny gpt-30m gpt-30m-again bert bert-again lstm-8-again transformer-xl",
    "moe": "moe",
    "finetune": "bert-cola bert-cola-again bert-sst2 bert-sst2-again",
    "vision": "resnet34-30 resnet34-30-again convnext-25 convnext-25-again mae-50 mae-50-again mae-50-full detr-bccd",
    "rl": "tianshou-hopper",
    None: "cora",
}
SWEPT = {"gpt": "GPT", "vit-25": "ViT", "lstm-8-again": "LSTM", "resnet34-30": "ResNet-34, 5 epochs"}


def lr(run: RunRecord) -> float:
    return float(run.config.settings["lr"])


def tuned(study: StoredStudy) -> tuple[RunRecord, RunRecord]:
    """The best trials of AdamW, or of Adam where a study has no AdamW, and of Adan."""
    baseline = "adamw" if "adamw" in study.search else "adam"
    return best_trial(study.search[baseline]), best_trial(study.search["adan"])


def by_b1(trials: Sequence[RunRecord]) -> dict[float, float]:
    """b1 → the best validation result that a trial with it had."""
    runs = collected(trials, lambda config: float(config.settings["betas"][0]))
    return {b1: value for b1 in sorted(runs) if (value := best_trial(runs[b1]).final) is not None}


def derived(setting: str, study: StoredStudy) -> tuple[float, str]:
    """A rule's number as the trials of a study give it, and the numbers behind it in words."""
    theirs, ours = tuned(study)
    if setting != "b1":
        return lr(ours) / lr(theirs), f"lr {lr(ours):g}, {theirs.config.optimizer} {lr(theirs):g}"
    shown = ", ".join(f"{value:.4f} ({b1:g})" for b1, value in by_b1(study.search["adan"]).items())
    return ours.config.settings["betas"][0], f"{ours.metric} {shown}"


def rules() -> str:
    """Each rule with the tasks that it serves; two values are for two lengths of a run."""

    def said(setting: str, point: Point) -> str:
        at = f" at {point.steps:,}" if point.steps else ""
        numbers = "paper" if point.paper else derived(setting, studies()[point.source])[1]
        return f"{point.value:g}{at} ({point.source}: {numbers})"

    lines = []
    for setting, of_setting in RULES.items():
        tasks: dict[Rule, list[str]] = {}
        for task, rule in of_setting.items():
            tasks.setdefault(rule, []).append(TASKS[task])
        for rule, names in tasks.items():
            lines.append([setting, ", ".join(names), " → ".join(said(setting, point) for point in rule.points)])
    return table(["", "task", "value at a number of steps"], lines)


def b1_length() -> str:
    runs = [*(run for g in studies()["b1-length-gpt"].groups for run in g.runs), *studies()["gpt"].search["adan"]]
    lines = []
    for steps, own in sorted(collected(runs, lambda config: config.steps).items()):
        best = by_b1(own)
        lines.append([f"{steps:,} steps", *(f"{best[b1]:.3f}" if b1 in best else "" for b1 in (0.9, 0.95, 0.98))])
    return table(["GPT, validation loss", "b1 = 0.9", "0.95", "0.98"], lines)


def swept(name: str, optimizer: str) -> list[RunRecord]:
    """Runs of a sweep and of the search before it that differ in the learning rate alone, in its order; one seed."""
    runs = [run for g in studies()[f"sensitivity-{name}"].groups if g.optimizer == optimizer for run in g.runs]
    settings = {**runs[0].config.settings, "lr": None}
    runs += [run for run in studies()[name].search[optimizer] if {**run.config.settings, "lr": None} == settings]
    return sorted({lr(run): run for run in runs}.values(), key=lr)


def width(runs: Sequence[RunRecord]) -> tuple[float, bool]:
    """The factor that the rates within 2% of the best result span, and whether both its ends were seen.

    Between two rates the result is taken to be linear in log lr.
    """
    best = min(range(len(runs)), key=lambda i: rank(runs[i]))
    limit = rank(runs[best]) + WIDTH_TOLERANCE * abs(rank(runs[best]))

    def end(outward: Sequence[RunRecord]) -> tuple[float, bool]:
        for inner, outer in itertools.pairwise(outward):
            if rank(outer) > limit:
                share = (limit - rank(inner)) / (rank(outer) - rank(inner))
                return lr(inner) * (lr(outer) / lr(inner)) ** share, True
        return lr(outward[-1]), False

    low, high = end(runs[best::-1]), end(runs[best:])
    return high[0] / low[0], low[1] and high[1]


def widths() -> str:
    lines = []
    for name, title in SWEPT.items():
        spans = [width(swept(name, optimizer)) for optimizer in ("adan", "adamw")]
        lines.append([title, *(f"{'' if seen else '≥ '}×{factor:.1f}" for factor, seen in spans)])
    return table(["rates within 2% of the best span", "Adan", "AdamW"], lines)


def short_runs() -> str:
    losses: dict[str, dict[float, float]] = {}
    for run in read("short-runs.json")["runs"]:
        name = f"{run['optimizer']}, ({', '.join(map(str, run['betas']))})"
        losses.setdefault(name, {})[run["lr"]] = statistics.fmean(seed["validation"] for seed in run["seeds"])
    rates = sorted({rate for own in losses.values() for rate in own})
    lines = [[name, *(f"{own[rate]:.3f}" if rate in own else "" for rate in rates)] for name, own in losses.items()]
    return table(["", *(f"lr {rate:g}" for rate in rates)], lines)


def held_out() -> str:
    """Adan at the suggestion beside AdamW, on workloads of the harness that no rule was fitted to."""
    data, lines = read("held-out.json"), []
    for name, row in data["workloads"].items():
        d = welch(row["adan"]["values"], row["adamw"]["values"])
        means = {who: statistics.fmean(row[who]["values"]) for who in ("adamw", "adan")}
        results = [f"{mean:.4g} at {row[who]['settings']['lr']:g}" for who, mean in means.items()]
        gap = f"{d.mean:+.2g} [{d.low:+.2g}, {d.high:+.2g}]".replace("-", "−")
        lines.append([f"`{name}`, {row['metric']} {'↑' if row['higher_is_better'] else '↓'}", *results, gap])
    return table(["workload", "AdamW at lr", "Adan at lr", "Adan minus AdamW"], lines)


def nearest(s: Suggestion, trials: Sequence[RunRecord]) -> RunRecord | None:
    """The trial of Adan nearest to a suggestion, where one has its b1 and is less than a factor of 1.5 away."""

    def distance(run: RunRecord) -> tuple[float, float]:
        decay = run.config.settings.get("weight_decay", 0.0)
        return round(abs(math.log(lr(run) / s.lr)), 6), abs(decay - s.weight_decay)

    same = [run for run in trials if abs(run.config.settings["betas"][0] - s.betas[0]) < 0.01 and run.final is not None]
    return min((run for run in same if distance(run)[0] < math.log(1.5)), key=distance, default=None)


def other_studies() -> str:
    """The ratio of rates that tuning chose in studies that no rule was fitted to, beside the suggested one."""
    lines, outcomes = [], []
    for task, names in OTHERS.items():
        ratios, wins = [], []
        for study in map(studies().__getitem__, names.split()):
            theirs, ours = tuned(study)
            base = {key: value for key, value in theirs.config.settings.items() if key in ("weight_decay", "betas")}
            s = suggest_from_adamw(lr(theirs), **base, total_steps=ours.config.steps, task=task)
            ratios.append(f"{s.lr / lr(theirs):.2g} → {lr(ours) / lr(theirs):.2g} (`{study.name}`)")
            if near := nearest(s, study.search["adan"]):
                wins.append(rank(near) < rank(theirs))
        lines.append([TASKS[task], ", ".join(ratios), f"{sum(wins)} of {len(wins)}"])
        outcomes += wins
    lines.append(["all", "", f"{sum(outcomes)} of {len(outcomes)}"])
    return table(["task", "lr ÷ AdamW's, suggested → chosen", "better near the suggestion"], lines)


TABLES = (rules, b1_length, widths, short_runs, held_out, other_studies)
