"""The rows of docs/results.md once more: from the records' raw lines, without the harness's code, by SciPy's tests.

`python benchmarks/recompute.py` prints them, and exits with 1 where the page says something else. What is shared with
`results_page.py` is data: which studies make a row, which runs belong to a study, and how many digits are shown. All
draws of a bootstrap over two searches are enumerated here.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares
from scipy.stats import sem, t, ttest_ind

ROOT = Path(__file__).resolve().parent.parent
FEWEST = 3  # seeds; with fewer nothing is compared
CLAIMED = 5  # seeds of what is bold
ERRORS: dict[str, Callable[[float], float]] = {"perplexity": math.log, "loss": float}
PAGE: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results_page.json").read_text(encoding="utf-8"))


class RawRun(NamedTuple):
    """One line. value: of the metric at the end, None where the run did not finish."""

    optimizer: str
    settings: str
    batch_size: int
    steps: int
    workload: str
    metric: str
    higher_is_better: bool
    status: str
    value: float | None


@cache
def runs_by_study() -> dict[str, list[RawRun]]:
    """The reported runs of every study."""
    evidence = ROOT / "results" / "evidence"
    by_key = {line["run"]: _raw(line) for line in _lines(evidence / "runs.jsonl")}
    found = {
        name: [by_key[key] for group in facts["groups"] for key in group["runs"] if key in by_key]
        for name, facts in json.loads((evidence / "studies.json").read_text(encoding="utf-8")).items()
    }
    for file in sorted((ROOT / "results" / "studies").glob("*.jsonl")):
        own = [_raw(line) for line in _lines(file) if line["config"]["role"] == "run"]
        found.setdefault(file.stem, own)
    return found


def _lines(file: Path) -> list[Any]:
    return [json.loads(text) for text in file.read_text(encoding="utf-8").splitlines()]


def _raw(line: Any) -> RawRun:
    config, result, facts = line["config"], line["result"] or {"status": "unfinished"}, line["workload"]
    value = result["final"][facts["metric"]] if result["status"] == "finished" else None
    settings = json.dumps(config["settings"], sort_keys=True)
    name, size, steps = config["label"] or config["optimizer"], config["batch_size"], config["steps"]
    metric, higher = facts["metric"], facts["higher_is_better"]
    return RawRun(name, settings, size, steps, config["workload"], metric, higher, result["status"], value)


class RawGroup(NamedTuple):
    """The runs of an optimizer with the same settings or, in the field, with those of each search."""

    first: RawRun
    searches: list[list[float]]
    diverged: int

    @property
    def values(self) -> list[float]:
        return self.searches[0]

    def text(self) -> str:
        half = t.isf(0.025, len(self.values) - 1) * sem(self.values)
        return _spread(self.first, statistics.fmean(self.values), half)


def _group(*searches: list[RawRun]) -> RawGroup | None:
    """None where no run finished."""
    runs = [run for own in searches for run in own]
    values = [[run.value for run in own if run.value is not None] for own in searches]
    lost = [run.status for run in runs].count("diverged")
    return RawGroup(runs[0], [own for own in values if own], lost) if any(values) else None


def _groups(runs: list[RawRun], batch_size: int) -> list[RawGroup]:
    """Adan's first; none where one of a study has too few seeds."""
    every: dict[tuple[str, str, int], list[RawRun]] = {}
    for run in runs:
        every.setdefault((run.optimizer, run.settings, run.batch_size), []).append(run)
    found = [group for group in map(_group, every.values()) if group]
    if any(len(group.values) < FEWEST for group in found):
        return []
    found = [group for group in found if batch_size in (0, group.first.batch_size)]
    return sorted(found, key=lambda group: group.first.optimizer != "adan")


class RawRow(NamedTuple):
    """A row of the page. whole: Adan with all steps where `adan` has half of them; also: Adan in other searches."""

    kind: str
    label: str
    adan: RawGroup
    whole: RawGroup
    best: RawGroup
    others: list[RawGroup]
    also: list[tuple[RawGroup, RawGroup]]


@cache
def compared() -> list[RawRow]:
    """The rows of the overview, of recipes and of half the steps."""
    found = []
    for kind, row in [(of, row) for of in ("rows", "recipes", "halves") for row in PAGE[of]]:
        adan, whole, others = _row(row)
        sign = 1 if adan.first.higher_is_better else -1
        best = max(others, key=lambda group: (not group.diverged, sign * statistics.fmean(group.values)))
        also = []
        for again in row.get("also", []):
            if all(map(_enough, " ".join(again.values()).split())):
                ours, _, theirs = _row(again)
                also += [(ours, group) for group in theirs if group.first.optimizer == best.first.optimizer]
        found.append(RawRow(kind, row["label"], adan, whole, best, others, also))
    return found


def _enough(study: str) -> bool:
    return bool(_groups(runs_by_study().get(study, []), 0))


def _row(row: Any) -> tuple[RawGroup, RawGroup, list[RawGroup]]:
    """Adan, Adan with all steps and the baselines."""
    stored = runs_by_study()
    studies = [_groups(stored[name], row.get("batch_size", 0)) for name in row["studies"].split()]
    whole, *others = [group for groups in studies for group in groups]
    return _groups(stored[row["half"].split()[0]], 0)[0] if "half" in row else whole, whole, others


def rows() -> Iterator[list[str]]:
    """For each row: its label, Adan's results, the best baseline's, the difference and the searches, as text."""
    for row, left in zip(compared(), lefts(), strict=False):
        low, high = _welch(row.adan, row.best).confidence_interval(1 - 0.05 / (left * len(row.others)))
        gap = statistics.fmean(row.adan.values) - statistics.fmean(row.best.values)
        ours = [row.adan, row.whole] if row.kind == "halves" else [row.adan]
        best = f"{PAGE['names'][row.best.first.optimizer]} {row.best.text()}"
        said, word = _said(row.adan, row.best, gap, low, high), _word(row.adan, row.best, low, high)
        words = [word, *(_word(*pair, *_welch(*pair).confidence_interval(0.95)) for pair in row.also)]
        searches = f"{words.count(word)} of {len(words)}" if row.also else "1"
        enough = min(len(row.adan.values), len(row.best.values)) >= CLAIMED
        bold = "**" if word and enough and row.also and {*words} == {word} else ""
        texts = [*(group.text() for group in ours), best, f"{bold}{said}{bold}"]
        yield [row.label, *texts, *([] if row.kind == "recipes" else [searches])]


def lefts() -> list[int]:
    """Holm's corrections: for how many comparisons, of all rows, then of the field's differences from AdamW."""
    p_values = [len(row.others) * _welch(row.adan, row.best).pvalue for row in compared()]
    for _, adamw, rival in against_adamw():
        gap, variance, freedom = _minus(rival, adamw)
        p_values.append(2 * t.sf(abs(gap) / math.sqrt(variance), freedom))
    ordered, m = sorted(p_values), len(p_values)
    stop = next((i for i, p in enumerate(ordered) if p > 0.05 / (m - i)), m - 1)
    return [m - min(ordered.index(p), stop) for p in p_values]


def _welch(a: RawGroup, b: RawGroup) -> Any:
    return ttest_ind(a.values, b.values, equal_var=False)


def _unit(run: RawRun) -> Any:
    return PAGE["units"].get(run.workload) or PAGE["units"][run.metric]


def _spread(run: RawRun, mean: float, half: float) -> str:
    unit = _unit(run)
    return " ± ".join(f"{unit.get('factor', 1) * x:,.{unit.get('digits', 4)}f}" for x in (mean, half))


def _said(a: Any, b: Any, gap: float, low: float, high: float) -> str:
    unit, word = _unit(a.first), _word(a, b, low, high)
    factor, digits = unit.get("factor", 1), unit.get("digits", 4)
    ends = [f"{factor * value:+,.{digits}f}".replace("-", "−") for value in (gap, low, high)]
    return f"{ends[0]} [{ends[1]}, {ends[2]}]" + (f": {word}" if word else "")


def _word(a: Any, b: Any, low: float, high: float) -> str:
    """Empty where the difference is not significant, or where seeds of the one that is ahead diverged."""
    better = (low > 0) == a.first.higher_is_better
    return "" if low <= 0 <= high or (a if better else b).diverged else "better" if better else "worse"


# Today's optimizers


def field() -> dict[str, list[RawGroup]]:
    """By workload, best first; without those that have no result."""
    stored, found = runs_by_study(), {}
    for row in PAGE["field"]:
        searches = [stored[name] for name in row["studies"].split() if name in stored]
        names = dict.fromkeys(run.optimizer for own in searches for run in own)
        every = [[[run for run in own if run.optimizer == name] for own in searches] for name in names]
        rivals = [group for group in (_group(*_counted(own)) for own in every) if group]
        sign = -1 if rivals and rivals[0].first.higher_is_better else 1
        if any(rival.first.optimizer == "adamw" for rival in rivals):
            found[row["label"]] = sorted(
                rivals, key=lambda rival: (rival.diverged > 0, sign * np.mean([np.mean(own) for own in rival.searches]))
            )
    return found


def _counted(searches: list[list[RawRun]]) -> list[list[RawRun]]:
    """The searches of an optimizer; those with too few seeds lose their values, unless there are no others."""
    enough = [sum(run.value is not None for run in own) >= FEWEST for own in searches]
    return [
        own if full or not any(enough) else [run._replace(value=None) for run in own]
        for own, full in zip(searches, enough, strict=True)
    ]


def against_adamw() -> list[tuple[str, RawGroup, RawGroup]]:
    """The workload, AdamW and another, for each difference of the field."""
    named = {label: {rival.first.optimizer: rival for rival in own} for label, own in field().items()}
    return [(label, own["adamw"], own[name]) for label, own in named.items() for name in own if name != "adamw"]


def _estimated(
    rival: RawGroup, error: Callable[[float], float] = float, alone: bool = False
) -> tuple[float, float, float]:
    """The mean, the variance of its error and the degrees of freedom of that; alone: from its own searches."""
    seeds = [np.array([error(value) for value in values]) for values in rival.searches]
    least = float(np.mean([np.square(sem(own)) if own[1:].size else 0 for own in seeds]))
    mean = float(np.mean([own.mean() for own in seeds]))
    # half the squared difference of two searches, over all optimizers of the workload that have two
    own = [rival] if alone else next(own for own in field().values() if rival in own)
    pairs = [[np.mean([error(v) for v in part]) for part in other.searches] for other in own if other.searches[1:]]
    if not pairs:
        return mean, least, len(seeds[0]) - 1
    return mean, max(least, float(np.mean([(a - b) ** 2 / 2 for a, b in pairs]))) / len(seeds), len(pairs)


def _minus(a: RawGroup, b: RawGroup) -> tuple[float, float, float]:
    (mean_a, of_a, freedom_a), (mean_b, of_b, freedom_b) = _estimated(a), _estimated(b)
    freedom = (of_a + of_b) ** 2 / (of_a**2 / freedom_a + of_b**2 / freedom_b)
    (own,) = (own for own in field().values() if a in own)
    pooled = any(rival.searches[1:] for rival in own)
    return mean_a - mean_b, of_a + of_b, min(freedom_a, freedom_b) if pooled else freedom


def field_rows() -> Iterator[list[str]]:
    """For each optimizer of each workload: its name, result, difference from AdamW and its steps, as text."""
    differences = {}
    for (label, adamw, rival), left in zip(against_adamw(), lefts()[len(compared()) :], strict=True):
        gap, variance, freedom = _minus(rival, adamw)
        half = t.isf(0.025 / left, freedom) * math.sqrt(variance)
        said = _said(rival, adamw, gap, gap - half, gap + half)
        once = " (one search)" if len(rival.searches) == 1 and ":" in said else ""
        differences[label, rival.first.optimizer] = said + once
    for label, own in field().items():
        for rival in own:
            (mean, variance, freedom), name = _estimated(rival), rival.first.optimizer
            result = _spread(rival.first, mean, t.isf(0.025, freedom) * math.sqrt(variance))
            result += f" ({rival.diverged} diverged)" if rival.diverged else ""
            yield [PAGE["names"][name], result, differences.get((label, name), ""), *costs(label, name, mean)]


def costs(label: str, name: str, loss: float) -> list[str]:
    """The steps that AdamW needs for a loss, where a ladder of at least four lengths is stored.

    Where steps were timed, also the milliseconds of one, and how long a run took, where AdamW's to this loss takes 1.
    """
    (row,) = (row for row in PAGE["field"] if row["label"] == label)
    if len(lengths := (own := ladder(row.get("ladder", ""))).get("adamw", {})) < 4:
        return []
    fit = _fit(own, "adamw")
    needed = _needed(fit, loss)
    side = "below" if needed < min(lengths) else "above" if needed > max(lengths) else ""
    end = (min if side == "below" else max)(lengths)
    found = [f"{side} {end:,.0f}" if side else f"{float(f'{needed:.3g}'):,.0f}"]
    record = json.loads((ROOT / "results" / "field-time.json").read_text(encoding="utf-8"))
    if record["study"] in row["studies"].split() and name not in record["rows"]:
        found += ["", ""]
    elif record["study"] in row["studies"].split():
        (adamw,) = (rival for rival in field()[label] if rival.first.optimizer == "adamw")
        ours, theirs = (statistics.fmean(record["rows"][who]["milliseconds"]) for who in (name, "adamw"))
        found += [f"{ours:.2f}", f"{ours * _needed(fit, _estimated(adamw)[0]) / (theirs * needed):.2f}"]
    return found


# The ladder


def ladder(name: str) -> dict[str, dict[int, list[float]]]:
    """The reported losses of the studies NAME-…, by optimizer and number of steps; nothing before there are two."""
    found: dict[str, dict[int, list[float]]] = {}
    for run in (run for study, runs in runs_by_study().items() if study.startswith(f"{name}-") for run in runs):
        if run.value is not None:
            found.setdefault(run.optimizer, {}).setdefault(run.steps, []).append(run.value)
    ours, theirs = (sorted(found.get(name, {})) for name in ("adan", "adamw"))
    return found if ours == theirs and len(ours) > 1 else {}


def _fit(ladder: dict[str, dict[int, list[float]]], name: str) -> Any:
    """a, b and c of a + b·(T / 1000)^−c; lengths count by the scatter of seeds there, over all optimizers.

    Of fewer than four lengths, a is 0.
    """
    lengths = sorted(ladder[name])
    every = [[own[steps] for own in ladder.values() if steps in own] for steps in lengths]
    sigma = [math.sqrt(np.mean([np.var(own, ddof=1) / len(own) for own in at])) for at in every]
    x, y = np.array(lengths) / 1000, np.array([np.mean(ladder[name][steps]) for steps in lengths])
    start = (0.3, y.max()) if len(x) < 4 else (0.5, y.max() / 2, y.min() / 2)

    def off(p: Any) -> Any:
        return (p[1] * x ** -p[0] + (p[2] if len(p) > 2 else 0.0) - y) / sigma

    c, b, *floor = least_squares(off, start, x_scale="jac", xtol=1e-14, ftol=1e-14, gtol=1e-14, max_nfev=10_000).x
    return floor[0] if floor else 0.0, b, c


def _needed(fit: Any, loss: float) -> float:
    a, b, c = fit
    return float(1000 * (b / (loss - a)) ** (1 / c)) if loss > a else math.inf


def ladder_rows() -> Iterator[list[str]]:
    """For each length: the means, and the ratios of steps at AdamW's loss; the latter without their intervals."""
    for own in filter(None, map(ladder, PAGE["ladders"])):
        lengths = sorted(own["adamw"])
        names = sorted(own, key=["adan", "adamw", *own].index)
        fits = {name: _fit(own, name) for name in names if sorted(own[name]) == lengths}
        a, b, c = fits["adamw"]
        for steps in lengths:
            loss = a + b * (steps / 1000) ** -c
            means = [f"{np.mean(own[name][steps]):.4f}" if steps in own[name] else "" for name in names]
            ratios = [f"×{_needed(fits[name], loss) / steps:.2f}" for name in fits if name != "adamw"]
            yield [f"{steps:,}", *means, *ratios]


# Families


def families() -> Iterator[list[str]]:
    """For each kind of error: its name, each family's percent, the mean's and the expected range of one more."""
    pairs: list[tuple[str, RawGroup, RawGroup]] = []
    for row in compared():
        low, high = _welch(row.adan, row.best).confidence_interval(0.95)
        if row.kind == "rows" and high - low <= 0.4 * abs(statistics.fmean(row.best.values)):
            (base,) = [g for g in row.others if g.first.optimizer == "adamw"] or row.others
            pairs.append((row.label, base, row.adan))
    pairs += [pair for pair in against_adamw() if pair[2].first.optimizer == "adan"]
    kinds: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for label, theirs, ours in pairs:
        error = ERRORS.get(ours.first.metric, lambda value: 1 - value)
        (mean, of_mean, _), (base_mean, of_base, _) = _estimated(ours, error, True), _estimated(theirs, error, True)
        effect = math.log(mean / base_mean), of_mean / mean**2 + of_base / base_mean**2
        kind = kinds.setdefault(PAGE["errors"][_unit(ours.first).get("axis", "loss")], {})
        model = label.split(",")[0]
        kind.setdefault(PAGE["same_family"].get(model, model), []).append(effect)
    for name, found in kinds.items():
        means = np.array([np.mean([mean for mean, _ in own]) for own in found.values()])
        errors = [np.mean([math.sqrt(variance) for _, variance in own]) for own in found.values()]
        apart = [np.var([mean for mean, _ in own], ddof=1) / len(own) if own[1:] else 0 for own in found.values()]
        each = ", ".join(f"{family} {_percent(mean)}" for family, mean in zip(found, means, strict=True))
        yield [name, each, *_pooled(means, np.square(errors) + apart)]


def _percent(*logs: float) -> str:
    return " to ".join(f"{100 * (math.exp(log) - 1):+.1f}%".replace("-", "−") for log in logs)


def _pooled(y: Any, v: Any) -> list[str]:
    """DerSimonian and Laird's mean with Hartung and Knapp's interval, and the range of one more effect."""
    k, w = len(y), 1 / v
    q = w @ (y - w @ y / w.sum()) ** 2
    between = max(0, (q - k + 1) / (w.sum() - w @ w / w.sum()))
    w = 1 / (v + between)
    mean = w @ y / w.sum()
    variance = max(1, w @ (y - mean) ** 2 / (k - 1)) / w.sum()
    half, more = t.isf(0.025, k - 1) * variance**0.5, t.isf(0.025, k - 2) * (between + variance) ** 0.5
    return [f"{_percent(mean)}, {_percent(mean - half, mean + half)}", _percent(mean - more, mean + more)]


# The page


def differences() -> list[str]:
    """What the page says otherwise."""
    text = "".join((ROOT / "docs" / f"results{page}.md").read_text(encoding="utf-8") for page in ("", "-details"))
    shown = []
    for kind in ("compared:rows", "noisy", "compared:recipes", "compared:halves"):
        for label, *cells in _tables(text, kind, bold=True):
            del cells[-1 if kind == "compared:recipes" else -2]  # the seeds
            shown.append([label.split(": ")[0], *(cell.split(" (of ")[0] for cell in cells)])
    chapters = dict.fromkeys(row["chapter"] for row in PAGE["field"])
    of_field = [line for name in chapters for line in _tables(text, f"field:{name}")]
    shown += [line[:-1] for line in of_field if line[1] != "no seed finished"]
    rungs = [[re.split(r" ± |†| \[", cell)[0] for cell in line] for line in _tables(text, "ladder")]
    pages = [*shown, *rungs, *_tables(text, "families")]
    records = [*rows(), *field_rows(), *ladder_rows(), *families()]
    if len(pages) != len(records):
        return [f"the pages have {len(pages)} lines, the records {len(records)}: is a chapter of the field missing?"]
    pairs = [
        (again[0], a, b) for line, again in zip(pages, records, strict=True) for a, b in zip(line, again, strict=True)
    ]
    return [f"{label}: the page has {a}, the records {b}" for label, a, b in pairs if a != b]


def _tables(text: str, name: str, bold: bool = False) -> list[list[str]]:
    """The lines of the tables between a page's markers, without their heads; none where there are no markers.

    bold: whether asterisks stay.
    """
    lines = text.partition(f"<!-- table {name} -->")[2].partition("<!-- end -->")[0].splitlines()
    heads = {i - above for i, line in enumerate(lines) if line.startswith("| ---") for above in (0, 1)}
    found = [line.strip("|").split("|") for i, line in enumerate(lines) if line.startswith("|") and i not in heads]
    return [[cell.strip(" " if bold else " *") for cell in cells] for cells in found]


if __name__ == "__main__":
    for found in (*rows(), *field_rows(), *ladder_rows(), *families()):
        print(" | ".join(found))
    print(*(wrong := differences()), sep="\n")
    sys.exit(bool(wrong))
