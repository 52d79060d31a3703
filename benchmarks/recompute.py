"""The rows of docs/results.md once more: from the records' raw lines, without the harness's code, by SciPy's tests.

`python benchmarks/recompute.py` prints them, and exits with 1 where the page says something else. What is shared with
`results_page.py` is data: which studies make a row, which runs belong to a study, and how many digits are shown.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
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


def rows() -> Iterator[list[str]]:
    """For each row of the page: its label, Adan's result, the best baseline's and the difference, as text."""
    stored = runs_by_study()
    for row in PAGE["rows"]:
        studies = [_groups(stored[name], row.get("batch_size", 0)) for name in row["studies"].split()]
        adan, *others = [group for groups in studies for group in groups]
        sign = 1 if adan.first.higher_is_better else -1
        best = max(others, key=lambda group: (not group.diverged, sign * statistics.fmean(group.values)))
        unit = PAGE["units"].get(adan.first.workload) or PAGE["units"][adan.first.metric]
        factor, digits = unit.get("factor", 1), unit.get("digits", 4)
        test = ttest_ind(adan.values, best.values, equal_var=False)
        low, high = test.confidence_interval(1 - 0.05 / (row.get("rows_of_table", 1) * len(others)))
        gap = statistics.fmean(adan.values) - statistics.fmean(best.values)
        ends = [f"{factor * value:+,.{digits}f}".replace("-", "−") for value in (gap, low, high)]
        better = (low > 0) == adan.first.higher_is_better
        lost = (adan if better else best).diverged
        word = "not significant" if low <= 0 <= high or lost else "better" if better else "worse"
        yield [
            row["label"],
            adan.text(factor, digits),
            f"{PAGE['names'][best.first.optimizer]} {best.text(factor, digits)}",
            f"{ends[0]} [{ends[1]}, {ends[2]}]: {word}",
        ]


def differences() -> list[str]:
    """What the page says otherwise."""
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    table = text.split("<!-- table overview -->")[1].split("<!-- end -->")[0].strip().splitlines()[2:]
    said = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    found = []
    for (label, adan, best, _, _, difference), again in zip(said, rows(), strict=True):
        shown = [label.split(": ")[0], adan, best.split(" (of ")[0], difference]
        found += [f"{again[0]}: the page has {a}, the records {b}" for a, b in zip(shown, again, strict=True) if a != b]
    return found


if __name__ == "__main__":
    for found in rows():
        print(" | ".join(found))
    print(*(wrong := differences()), sep="\n")
    sys.exit(bool(wrong))
