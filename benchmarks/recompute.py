"""The rows of docs/results.md once more: from the records' raw lines, without the harness's code, by SciPy's tests.

`python benchmarks/recompute.py` prints them, and exits with 1 where the page says something else. What is shared with
`results_page.py` is data: which studies make a row, which runs belong to a study, and how many digits are shown. All
draws of a bootstrap over two searches are enumerated here.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from scipy.stats import t, ttest_ind

ROOT = Path(__file__).resolve().parent.parent
FEWEST = 3  # seeds; with fewer nothing is compared
PAGE: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results_page.json").read_text(encoding="utf-8"))


class RawRun(NamedTuple):
    """One line. value: of the metric at the end, None where the run did not finish."""

    optimizer: str
    settings: str
    batch_size: int
    workload: str
    metric: str
    higher_is_better: bool
    status: str
    value: float | None


@cache
def runs_by_study() -> dict[str, list[RawRun]]:
    """The reported runs of every study, of both formats."""
    evidence = ROOT / "results" / "evidence"
    by_key = {line["key"]: _first_format(line) for line in _lines(evidence / "runs.jsonl")}
    found = {
        name: [by_key[key] for group in facts["groups"] for key in group["runs"] if key in by_key]
        for name, facts in json.loads((evidence / "studies.json").read_text(encoding="utf-8")).items()
    }
    for file in sorted((ROOT / "results" / "studies").glob("*.jsonl")):
        own = [_newer(line) for line in _lines(file) if line["config"]["role"] == "run"]
        found.setdefault(file.stem, own)
    return found


def _lines(file: Path) -> list[Any]:
    return [json.loads(text) for text in file.read_text(encoding="utf-8").splitlines()]


def _first_format(line: Any) -> RawRun:
    job, metric = line["job"], line["metric"]
    value = line["final"][metric] if line["status"] == "finished" else None
    size = job["options"].get("batch_size", 0)
    settings, higher = json.dumps(job["settings"], sort_keys=True), line["higher_is_better"]
    return RawRun(job["optimizer"], settings, size, job["problem"], metric, higher, line["status"], value)


def _newer(line: Any) -> RawRun:
    config, result, facts = line["config"], line["result"] or {"status": "unfinished"}, line["workload"]
    value = result["final"][facts["metric"]] if result["status"] == "finished" else None
    settings = json.dumps(config["settings"], sort_keys=True)
    name, higher = config["label"] or config["optimizer"], facts["higher_is_better"]
    return RawRun(
        name, settings, config["batch_size"], config["workload"], facts["metric"], higher, result["status"], value
    )


class RawGroup(NamedTuple):
    """The runs of an optimizer with the same settings."""

    first: RawRun
    values: list[float]
    diverged: int

    def text(self, factor: float, digits: int) -> str:
        values = [factor * value for value in self.values]
        half = t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
        return f"{statistics.fmean(values):,.{digits}f} ± {half:,.{digits}f}"


def _groups(runs: list[RawRun], batch_size: int) -> list[RawGroup]:
    """Adan's first; none where one of a study has too few seeds."""
    every: dict[tuple[str, str, int], list[RawRun]] = {}
    for run in runs:
        every.setdefault((run.optimizer, run.settings, run.batch_size), []).append(run)
    found = [
        RawGroup(own[0], [run.value for run in own if run.value is not None], [r.status for r in own].count("diverged"))
        for own in every.values()
    ]
    found = [group for group in found if group.values]
    if any(len(group.values) < FEWEST for group in found):
        return []
    found = [group for group in found if batch_size in (0, group.first.batch_size)]
    return sorted(found, key=lambda group: group.first.optimizer != "adan")


def compared() -> Iterator[tuple[Any, RawGroup, RawGroup, list[RawGroup]]]:
    """For each row of the page: its data, Adan, the best baseline and all baselines."""
    stored = runs_by_study()
    for row in PAGE["rows"]:
        studies = [_groups(stored[name], row.get("batch_size", 0)) for name in row["studies"].split()]
        adan, *others = [group for groups in studies for group in groups]
        sign = 1 if adan.first.higher_is_better else -1
        yield row, adan, max(others, key=lambda g: (not g.diverged, sign * statistics.fmean(g.values))), others


def _holm(p_values: list[float]) -> list[int]:
    """The comparisons that each has to be corrected for."""
    ordered, m = sorted(p_values), len(p_values)
    stop = next((i for i, p in enumerate(ordered) if p > 0.05 / (m - i)), m - 1)
    return [m - min(ordered.index(p), stop) for p in p_values]


def _word(low: float, high: float, higher_is_better: bool, diverged: tuple[int, int]) -> str:
    better = (low > 0) == higher_is_better
    return "not significant" if low <= 0 <= high or diverged[not better] else "better" if better else "worse"


def _said(unit: Any, gap: float, low: float, high: float, word: str) -> str:
    factor, digits = unit.get("factor", 1), unit.get("digits", 4)
    ends = [f"{factor * value:+,.{digits}f}".replace("-", "−") for value in (gap, low, high)]
    return f"{ends[0]} [{ends[1]}, {ends[2]}]: {word}"


def _unit(run: RawRun) -> Any:
    return PAGE["units"].get(run.workload) or PAGE["units"][run.metric]


def rows() -> Iterator[list[str]]:
    """For each row of the page: its label, Adan's result, the best baseline's and the difference, as text."""
    every = list(compared())
    tests = [ttest_ind(adan.values, best.values, equal_var=False) for _, adan, best, _ in every]
    for (row, adan, best, others), test, left in zip(every, tests, lefts(), strict=False):
        low, high = test.confidence_interval(1 - 0.05 / (left * len(others)))
        word = _word(low, high, adan.first.higher_is_better, (adan.diverged, best.diverged))
        gap = statistics.fmean(adan.values) - statistics.fmean(best.values)
        unit, name = _unit(adan.first), PAGE["names"][best.first.optimizer]
        texts = [group.text(unit.get("factor", 1), unit.get("digits", 4)) for group in (adan, best)]
        yield [row["label"], texts[0], f"{name} {texts[1]}", _said(unit, gap, low, high, word)]


def lefts() -> list[int]:
    """Holm's corrections of all rows, then of the field's differences from AdamW."""
    p_values = [
        len(others) * ttest_ind(adan.values, best.values, equal_var=False).pvalue
        for _, adan, best, others in compared()
    ]
    gaps = [rival.drawn.minus(adamw.drawn) for _, adamw, rival in against_adamw()]
    return _holm([*p_values, *(2 * t.sf(abs(gap.mean) / gap.variance**0.5, gap.freedom) for gap in gaps)])


# Today's optimizers


class Drawn(NamedTuple):
    """A mean, with the variance of a bootstrap over searches and their seeds."""

    mean: float
    variance: float
    freedom: float

    def minus(self, other: Drawn) -> Drawn:
        variance = self.variance + other.variance
        freedom = variance**2 / (self.variance**2 / self.freedom + other.variance**2 / other.freedom)
        return Drawn(self.mean - other.mean, variance, freedom)

    def half(self, comparisons: int = 1) -> float:
        return float(t.isf(0.025 / comparisons, self.freedom)) * math.sqrt(self.variance)


def _drawn(searches: list[list[float]]) -> Drawn:
    """Deviations are stretched by √(n / (n − 1)), so that those of few values have the variance of the population."""

    def stretched(values: list[float]) -> list[float]:
        mean = statistics.fmean(values)
        return [math.sqrt(len(values) / max(1, len(values) - 1)) * (value - mean) for value in values]

    means = [statistics.fmean(values) for values in searches]
    freedom = sum(len(values) - 1 for values in searches)
    of_seeds = [statistics.pvariance(stretched(values)) / len(values) for values in searches]
    draws = list(product(zip(stretched(means), of_seeds, strict=True), repeat=len(searches)))
    between = statistics.pvariance(statistics.fmean(mean for mean, _ in draw) for draw in draws)
    within = statistics.fmean(statistics.fmean(error for _, error in draw) for draw in draws) / len(searches)
    return Drawn(statistics.fmean(means), between + within, freedom)


class RawRival(NamedTuple):
    """An optimizer of a study of the field, its results search by search."""

    optimizer: str
    first: RawRun
    searches: list[list[float]]
    diverged: int
    trials: str
    drawn: Drawn


@cache
def field() -> dict[str, list[RawRival]]:
    """By workload, best first; without those that have no result."""
    found = {}
    for row in PAGE["field"]:
        files = [ROOT / "results" / "studies" / f"{name}.jsonl" for name in row["studies"].split()]
        searches = [
            [(line["config"]["role"], _newer(line)) for line in _lines(file)] for file in files if file.exists()
        ]
        rivals = []
        for name in dict.fromkeys(run.optimizer for lines in searches for _, run in lines):
            own = [[run for role, run in lines if run.optimizer == name and role == "run"] for lines in searches]
            values = [[run.value for run in runs if run.value is not None] for runs in own]
            tried = [
                run.status for lines in searches for role, run in lines if run.optimizer == name and role == "tune"
            ]
            lost = [run.status for runs in own for run in runs].count("diverged"), tried.count("diverged")
            if values := [of for of in values if of]:
                trials = f"{len(tried)} ({lost[1]} diverged)" if lost[1] else str(len(tried))
                rivals.append(RawRival(name, own[0][0], values, lost[0], trials, _drawn(values)))
        if any(rival.optimizer == "adamw" for rival in rivals):
            sign = -1 if rivals[0].first.higher_is_better else 1
            found[row["label"]] = sorted(rivals, key=lambda rival: (rival.diverged > 0, sign * rival.drawn.mean))
    return found


def against_adamw() -> list[tuple[str, RawRival, RawRival]]:
    """The workload, AdamW and another, for each difference of the field."""
    return [
        (label, adamw, rival)
        for label, own in field().items()
        for adamw in own
        for rival in own
        if adamw.optimizer == "adamw" != rival.optimizer
    ]


def field_rows() -> Iterator[list[str]]:
    """For each optimizer of each workload: its name, result, difference from AdamW and trials, as text."""
    gaps = {(label, rival.optimizer): rival.drawn.minus(adamw.drawn) for label, adamw, rival in against_adamw()}
    left = dict(zip(gaps, lefts()[len(PAGE["rows"]) :], strict=True))
    for label, own in field().items():
        for rival in own:
            unit, said = _unit(rival.first), ""
            factor, digits = unit.get("factor", 1), unit.get("digits", 4)
            if gap := gaps.get((label, rival.optimizer)):
                half = gap.half(left[label, rival.optimizer])
                (lost,) = (adamw.diverged for adamw in own if adamw.optimizer == "adamw")
                ends = gap.mean - half, gap.mean + half
                word = _word(*ends, rival.first.higher_is_better, (rival.diverged, lost))
                once = " in one search" if len(rival.searches) == 1 and word != "not significant" else ""
                said = _said(unit, gap.mean, *ends, word + once)
            result = f"{factor * rival.drawn.mean:,.{digits}f} ± {factor * rival.drawn.half():,.{digits}f}"
            result += f" ({rival.diverged} diverged)" if rival.diverged else ""
            yield [PAGE["names"][rival.optimizer], result, said, rival.trials]


# Families


def families() -> Iterator[list[str]]:
    """For each kind of error: its name, each family's percent, the mean's and the expected range of one more."""
    pairs = []
    for row, adan, best, others in compared():
        low, high = ttest_ind(adan.values, best.values, equal_var=False).confidence_interval(0.95)
        if "untuned" not in row["label"] and high - low <= 0.4 * abs(statistics.fmean(best.values)):
            (base,) = [g for g in others if g.first.optimizer == "adamw"] or others
            pairs.append((row["label"], adan.first, [adan.values], [base.values]))
    named = {(label, rival.optimizer): rival for label, own in field().items() for rival in own}
    for label in field():
        if (label, "adan") in named:
            ours, theirs = named[label, "adan"], named[label, "adamw"]
            pairs.append((label, ours.first, ours.searches, theirs.searches))
    kinds: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for label, first, *sides in pairs:
        model, gap = label.split(",")[0], [0.0, 0.0]
        for sign, searches in zip((1, -1), sides, strict=True):
            drawn = _drawn([[_error(value, first.metric) for value in values] for values in searches])
            gap[0], gap[1] = gap[0] + sign * math.log(drawn.mean), gap[1] + drawn.variance / drawn.mean**2
        kind = kinds.setdefault(PAGE["errors"][_unit(first).get("axis", "loss")], {})
        kind.setdefault(PAGE["same_family"].get(model, model), []).append((gap[0], gap[1]))
    for name, found in kinds.items():
        effects = {family: _family(own) for family, own in found.items()}
        yield [
            name,
            ", ".join(f"{family} {_percent(mean)}" for family, (mean, _) in effects.items()),
            *_pooled(list(effects.values())),
        ]


def _error(value: float, metric: str) -> float:
    return value if metric == "loss" else math.log(value) if metric == "perplexity" else 1 - value


def _percent(*logs: float) -> str:
    return " to ".join(f"{100 * (math.exp(log) - 1):+.1f}%".replace("-", "−") for log in logs)


def _family(rows: list[tuple[float, float]]) -> tuple[float, float]:
    means, k = [mean for mean, _ in rows], len(rows)
    between = statistics.variance(means) / k if k > 1 else 0
    return sum(means) / k, (sum(math.sqrt(variance) for _, variance in rows) / k) ** 2 + between


def _pooled(effects: list[tuple[float, float]]) -> list[str]:
    """DerSimonian and Laird's mean with Hartung and Knapp's interval, and the range of one more effect."""
    y, v = zip(*effects, strict=True)
    k, w = len(y), [1 / variance for variance in v]
    fixed = sum(a * b for a, b in zip(w, y, strict=True)) / sum(w)
    q = sum(a * (b - fixed) ** 2 for a, b in zip(w, y, strict=True))
    tau2 = max(0, (q - k + 1) / (sum(w) - sum(a * a for a in w) / sum(w)))
    w = [1 / (variance + tau2) for variance in v]
    mean = sum(a * b for a, b in zip(w, y, strict=True)) / sum(w)
    spread = sum(a * (b - mean) ** 2 for a, b in zip(w, y, strict=True)) / (k - 1)
    variance = max(1, spread) / sum(w)
    half, more = t.isf(0.025, k - 1) * variance**0.5, t.isf(0.025, k - 2) * (tau2 + variance) ** 0.5
    ends = _percent(mean - half, mean + half)
    return [f"{_percent(mean)}, {ends}", _percent(mean - more, mean + more)]


# The page


def differences() -> list[str]:
    """What the page says otherwise."""
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    found = []
    for (label, adan, best, _, _, difference), again in zip(_tables(text, "overview"), rows(), strict=True):
        found += _unlike([label.split(": ")[0], adan, best.split(" (of ")[0], difference], again)
    shown = [[cell.strip("*") for cell in line] for line in _tables(text, "field")]
    shown = [[line[1], line[2], line[3], line[5]] for line in shown if line[2] != "no seed finished"]
    for cells, again in zip(shown, field_rows(), strict=True):
        found += _unlike(cells, again)
    for cells, again in zip(_tables(text, "families"), families(), strict=True):
        found += _unlike(cells, again)
    return found


def _tables(text: str, name: str) -> list[list[str]]:
    """The lines of the tables between a page's markers, without their heads."""
    lines = text.split(f"<!-- table {name} -->")[1].split("<!-- end -->")[0].splitlines()
    heads = {i - above for i, line in enumerate(lines) if line.startswith("| ---") for above in (0, 1)}
    found = [line.strip("|").split("|") for i, line in enumerate(lines) if line.startswith("|") and i not in heads]
    return [[cell.strip() for cell in cells] for cells in found]


def _unlike(shown: list[str], again: list[str]) -> list[str]:
    return [f"{again[0]}: the page has {a}, the records {b}" for a, b in zip(shown, again, strict=True) if a != b]


if __name__ == "__main__":
    for found in (*rows(), *field_rows(), *families()):
        print(" | ".join(found))
    print(*(wrong := differences()), sep="\n")
    sys.exit(bool(wrong))
