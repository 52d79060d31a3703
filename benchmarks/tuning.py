"""The tables of docs/tuning.md: the searches behind the rules of `suggest_from_adamw`, and other rules beside them.

tests/benchmarks/test_tuning.py holds the package's numbers and the page's sentences to the records.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from common import table
from results_page import DATA, SWEEPS
from stored import StoredStudy, studies

from adan.suggestion import LR_RATIO
from adan_bench.config import RunRecord
from adan_bench.records.stats import WIDTH_TOLERANCE, best_trial, grouped, rank


def tuned(study: StoredStudy) -> tuple[RunRecord, RunRecord]:
    """The best trials of AdamW, or of Adam where a study has no AdamW, and of Adan."""
    baseline = "adamw" if "adamw" in study.search else "adam"
    return best_trial(study.search[baseline]), best_trial(study.search["adan"])


class ChosenRatio(NamedTuple):
    """The ratio of learning rates, Adan's to AdamW's, that tuning chose."""

    study: str
    family: str
    steps: int
    ratio: float


def searches() -> list[ChosenRatio]:
    found = []
    for family, names in DATA["families"].items():
        for name in names.split():
            theirs, ours = tuned(studies()[name])
            found.append(ChosenRatio(name, family, ours.config.steps, ours.lr / theirs.lr))
    return found


def ratios() -> str:
    lines = []
    for family in DATA["families"]:
        chosen = sorted(search.ratio for search in searches() if search.family == family)
        lines.append([family, ", ".join(f"{ratio:.2g}" for ratio in chosen)])
    return table(["family", "lr ÷ AdamW's, one number for each search"], lines)


def errors(predict: Callable[[ChosenRatio, list[ChosenRatio]], float]) -> dict[str, float]:
    """log2 of predicted ÷ chosen ratio by study; a prediction may use the searches of other families."""
    every, found = searches(), {}
    for search in every:
        others = [other for other in every if other.family != search.family]
        found[search.study] = math.log2(predict(search, others) / search.ratio)
    return found


def by_length(search: ChosenRatio, others: list[ChosenRatio]) -> float:
    """The line through the other searches in log steps and log ratio."""
    x, y = ([math.log2(value) for value in values] for values in zip(*(s[2:] for s in others), strict=True))
    slope, start = statistics.linear_regression(x, y)
    return float(2 ** (start + slope * math.log2(search.steps)))


RULES: dict[str, Callable[[ChosenRatio, list[ChosenRatio]], float]] = {
    "1: AdamW's own rate": lambda search, others: 1.0,
    f"**{LR_RATIO:g}**": lambda search, others: LR_RATIO,
    "the other families' mean": lambda search, others: statistics.geometric_mean(s.ratio for s in others),
    "a line in log steps, fitted to the other families": by_length,
}


def rules() -> str:
    """RMS error of each rule, and its searches within a factor of two."""
    lines = []
    for name, predict in RULES.items():
        off = list(errors(predict).values())
        near = sum(abs(error) < 1.001 for error in off)
        lines.append([name, f"{math.sqrt(statistics.fmean(e**2 for e in off)):.2f}", f"{near} of {len(off)}"])
    return table(["lr ÷ AdamW's", "RMS error in log2", "within a factor of two"], lines)


def b1_runs() -> list[tuple[int, str, dict[float, RunRecord]]]:
    """Steps, study, and for each b1 the best run at a learning rate and decay that several b1 were tried with."""
    found = []
    for name, study in studies().items():
        runs = [*study.search.get("adan", ()), *(r for g in study.groups for r in g.runs if name == "b1-length-gpt")]
        best: dict[int, dict[float, RunRecord]] = {}
        for alike in grouped(runs, lambda r: [r.config.steps, {**r.config.settings, "betas": None}]):
            for run in alike if len({r.config.settings["betas"][0] for r in alike}) > 1 else ():
                own, value = best.setdefault(run.config.steps, {}), float(run.config.settings["betas"][0])
                own[value] = min(run, own.get(value, run), key=rank)
        found += [(steps, name, own) for steps, own in best.items()]
    return sorted(found, key=lambda row: row[:2])


def b1() -> str:
    """Table of b1 by length, of runs from scratch; fine-tuning a BERT is told in the text."""
    lines, shown = [], (0.8, 0.9, 0.95, 0.98)
    for steps, name, runs in b1_runs():
        if not name.startswith("bert-"):
            cells = [f"{runs[value].final:.4g}" if value in runs else "" for value in shown]
            lines.append([f"`{name}`, {next(iter(runs.values())).metric}", f"{steps:,}", *cells])
    return table(["validation result", "steps", "b1 = 0.8", *map(str, shown[1:])], lines)


def swept(name: str, optimizer: str) -> list[RunRecord]:
    """Runs of a sweep and of the search before it that differ in the learning rate alone, in its order; one seed."""
    runs = [run for g in studies()[f"sensitivity-{name}"].groups if g.optimizer == optimizer for run in g.runs]
    settings = {**runs[0].config.settings, "lr": None}
    runs += [run for run in studies()[name].search[optimizer] if {**run.config.settings, "lr": None} == settings]
    return sorted({run.lr: run for run in runs}.values(), key=lambda run: run.lr)


def width(runs: Sequence[RunRecord]) -> tuple[float, bool]:
    """The factor that rates within 2% of the best span, by interpolation in log lr, and whether both ends were seen."""
    best = min(range(len(runs)), key=lambda i: rank(runs[i]))
    limit = rank(runs[best]) + WIDTH_TOLERANCE * abs(rank(runs[best]))

    def end(outward: Sequence[RunRecord]) -> tuple[float, bool]:
        for inner, outer in itertools.pairwise(outward):
            if rank(outer) > limit:
                share = (limit - rank(inner)) / (rank(outer) - rank(inner))
                return inner.lr * (outer.lr / inner.lr) ** share, True
        return outward[-1].lr, False

    low, high = end(runs[best::-1]), end(runs[best:])
    return high[0] / low[0], low[1] and high[1]


def widths() -> str:
    lines = []
    for name, (title, _) in SWEEPS.items():
        spans = [width(swept(name, optimizer)) for optimizer in ("adan", "adamw")]
        lines.append([title, *(f"{'' if seen else '≥ '}×{factor:.1f}" for factor, seen in spans)])
    return table(["rates within 2% of the best span", "Adan", "AdamW"], lines)


#: Studies of one setting for every workload, what they train, and the study in which that was tuned.
DEFAULTS = {
    "gpt-tiny": ("GPT, 0.9 M, loss", "gpt-tiny"),
    "gpt": ("GPT, 10.9 M, loss", "gpt"),
    "moe": ("mixture of experts, loss", "moe"),
    "vit-25": ("ViT, accuracy", "vit-25"),
    "mae-50": ("MAE, loss", "mae-50-full"),
    "convnext-25": ("ConvNeXt, accuracy", "convnext-25-wide"),
    "lstm-8": ("LSTM, perplexity", "lstm-8-again"),
    "cora": ("DeepGCN, accuracy", "cora"),
}


def defaults() -> str:
    """Results of one setting for every workload, ± half a 95% interval; then the means with tuning."""
    lines = []
    for name, (title, searched) in DEFAULTS.items():
        own, there = ({g.optimizer: g.final() for g in studies()[x].groups} for x in (f"default-{name}", searched))
        cells = [f"{own[optimizer].mean:.4g} ± {own[optimizer].half:.2g}" for optimizer in ("adan", "adamw", "nadamw")]
        cells += [f"{there[optimizer].mean:.4g}" for optimizer in ("adan", "adamw")]
        lines.append([title, *cells])
    return table(["", "Adan", "AdamW", "NAdamW", "Adan, tuned", "AdamW, tuned"], lines)


TABLES = (ratios, rules, b1, widths, defaults)
