"""Tables and costs from records made by hand, on the page and in the console."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.made_up_runs import UNTUNED, record, three, trials

from adan_bench.cli.progress import show_summaries, show_tuning
from adan_bench.config import RunRecord
from adan_bench.records.stats import summarize, summarize_trials
from adan_bench.reports.comparison import render, table_rows, tuning_rows, warn, write_report, write_tuning
from adan_bench.reports.conclusions import conclude, number, overall, tuning
from adan_bench.reports.figures import write_figures


def test_numbers() -> None:
    assert number(97.25, 3) == "97.2"
    assert number(float("inf")) == "–"


def test_the_numbers_of_the_tables_are_there_for_programs(tmp_path: Path) -> None:
    """With paired differences: 0.1, 0.2 and 0.3 have mean 0.2 and standard deviation 0.1; 4.303 is Student's t."""
    write_report(three("adan", 0.5, 0.5, 0.5) + three("adamw", 0.4, 0.3, 0.2), tmp_path)
    (found,) = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    adan, adamw = found["optimizers"]
    assert (found["metric"], found["pairs"], adan["optimizer"], adan["minus_the_first"]) == ("m", 1, "adan", None)
    assert adamw["by_seed"] == pytest.approx({"0": 0.4, "1": 0.3, "2": 0.2})
    gap = adamw["minus_the_first"]
    half = 4.303 * 0.1 / 3**0.5
    assert (gap["mean"], gap["low"], gap["high"]) == pytest.approx((-0.2, -0.2 - half, -0.2 + half), rel=1e-3)
    assert f"| −0.2000 [−{0.2 + half:.4f}, +{half - 0.2:.4f}] |" in (tmp_path / "report.md").read_text(encoding="utf-8")
    assert {path.suffix for path in tmp_path.glob("report-*")} == {".png", ".svg"}


def test_a_report_pairs_seeds() -> None:
    """Pairs that move together: the interval is narrow."""
    finals = {"adan": [0.90, 0.80, 0.70], "adamw": [0.891, 0.790, 0.689]}
    runs = [record(name, value, seed) for name, values in finals.items() for seed, value in enumerate(values)]
    (summary,) = summarize(runs)
    head, rows = table_rows(summary)
    assert dict(zip(head, rows[1], strict=True))["minus the first"].startswith("−0.0100 [−0.012")


def test_seconds_are_left_out_where_the_clocks_differ() -> None:
    """Runs with other --jobs, or of another machine, share a table of results but not of times."""
    adan, sgd = three("adan", 0.9, 0.8), three("sgd", 0.7, 0.6)
    (summary,) = summarize(adan + sgd)
    assert "Seconds are left out" not in render([], [summary]).markdown
    assert summary.optimizers[0].seconds_per_step == 0.02
    slower = [replace(r, config=replace(r.config, jobs=4)) for r in sgd]
    elsewhere = [replace(r, environment={**r.environment, "gpu": "another"}) for r in sgd]
    for others in (slower, elsewhere):
        (summary,) = summarize(adan + others)
        assert {(o.seconds_per_step, o.seconds_to_target) for o in summary.optimizers} == {(None, None)}
        text = render([], [summary]).markdown
        assert "Seconds are left out where runs did not have the same machine" in text
        assert "| – | – |" in text


def test_a_trial_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    again = [replace(r, path=Path("copy")) for r in trials(2)]
    found = summarize(three("adan", 0.9) + three("sgd", 0.8) + trials(2) + again)
    assert "Every optimizer had 3 tuning trials" in tuning(found)
    assert [o.trials for o in summarize_trials(trials(2) + again)[0].optimizers] == [3, 3]
    write_tuning(trials(2) + again, tmp_path)
    sweep = [replace(r, path=Path("sweep"), config=replace(r.config, study="sweep")) for r in trials(0)]
    found = {o.name: o.trials for o in summarize_trials(trials(2) + sweep)[0].optimizers}
    assert found == dict.fromkeys(("adan", "sgd", "adan (sweep)", "sgd (sweep)"), 3)
    assert "6 trials by adan-bench." in (tmp_path / "tuning.md").read_text(encoding="utf-8")


def test_where_no_trial_has_a_result_no_rate_is_named() -> None:
    (found,) = summarize_trials([record("adan", None, lr=lr, role="tune") for lr in (0.1, 0.2)])
    assert tuning_rows(found)[1] == [["adan", "–", "–", "–", "–", "2, none with a result", ""]]


@pytest.mark.parametrize("metric", ["loss [nats]", "reward [/s]"])
def test_the_console_shows_square_brackets_and_where_runs_stopped(metric: str) -> None:
    """In the title, the head, the rows and the sentences."""
    init = {"init": Path("we[i]ghts.pt"), "label": "adan:path=[/a]", "stop_after": 50}
    records = [*three("adan", 0.9, 0.8), *three("adan", 0.9, 0.8, **init), record(role="tune", **init)]
    for r in records:
        r.workload["metric"], r.result["final"][metric] = metric, r.result["final"].pop("m")
    assert "50 of 100 steps of 8, cosine schedule" in render(records, summarize(records)).html
    console = Console(file=io.StringIO(), width=200)
    show_summaries(console, summarize(records))
    text, title = " ".join(console.file.getvalue().split()), "init we[i]ghts.pt, stop after 50: 50 of 100 steps of 8"
    for part in (f"{metric} ↑", f"mean {metric} 0.8500", title, "│ adan:path=[/a] │"):
        assert part in text
    console.file = io.StringIO()
    show_tuning(console, summarize_trials([replace(r, config=replace(r.config, role="tune")) for r in records]))
    text = " ".join(console.file.getvalue().split())
    for part in (f"{metric} ↑", f"{title}, cosine schedule", "│ adan:path=[/a] │"):
        assert part in text


def costs(name: str, how: str | None, size: float | None, pace: float, *at: float, **more: Any) -> list[RunRecord]:
    """Three seeds of an optimizer with an engine, bytes of state and seconds per evaluation."""
    records = []
    for r in three(name, 0.9, 0.901, 0.903, curve=at, **more):
        known = {"implementation": how, "graph": "eager: why", "state_bytes_per_parameter": size}
        known = {key: value for key, value in known.items() if how is not None}
        metrics = [{**line, "seconds": pace * line["seconds"]} for line in r.metrics]
        records.append(replace(r, result={**(r.result or {}), "seconds": len(at) * pace, **known}, metrics=metrics))
    return records


EARLY, LATE = (0.1, 0.6, 0.6, 0.6), (0.1, 0.1, 0.6, 0.6)


def test_a_report_shows_the_cost_beside_the_quality(tmp_path: Path) -> None:
    """Milliseconds with the engine beside them, bytes of state, steps and seconds; a dash for records from before."""
    records = costs("adan", "foreach, capturable", 16.004, 3.0, *EARLY, device="cuda")
    records += costs("adamw", "fused, capturable", 8.0, 1.0, *LATE, device="cuda")
    records += costs("sgd", None, None, 1.0, *LATE, device="cuda")
    write_report(records, tmp_path)
    markdown, page = ((tmp_path / f"report.{end}").read_text(encoding="utf-8") for end in ("md", "html"))
    rows = "| 50 (3/3) | 6.00 | 120 (foreach, eager) | 16.0 |", "| 75 (3/3) | 3.00 | 40.0 (fused, eager) | 8.00 |"
    for cells in rows:
        assert cells in markdown
        assert "".join(f"<td>{cell}</td>" for cell in cells.strip("| ").split(" | ")) in re.sub("</?span>", "", page)
    assert "| 75 (3/3) | 3.00 | 40.0 | – |" in markdown
    (found,) = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    names = ("engines", "state_bytes_per_parameter")
    numbers = {entry["optimizer"]: tuple(entry[name] for name in names) for entry in found["optimizers"]}
    assert numbers == {"adan": (["foreach", "eager"], 16.004), "adamw": (["fused", "eager"], 8.0), "sgd": ([], None)}


def test_who_wins_by_steps_and_loses_by_the_clock_is_named() -> None:
    other = "By the clock the order differs: "
    adan, adamw = costs("adan", "fused", 16.0, 3.0, *EARLY), costs("adamw", "fused", 8.0, 1.0, *LATE)
    text = conclude(summarize(adan + adamw)[0])
    assert f"in the fewest steps (50, median) by adan. {other}adamw 3.00 s and adan 6.00 s." in text
    same = [costs("adamw", "fused", 8.0, 3.0, *LATE), costs("adamw", "fused", 8.0, 1.0, *EARLY)]  # slower; equal steps
    for others in same:
        assert other not in conclude(summarize(adan + others)[0])
    elsewhere = [replace(r, environment={**r.environment, "gpu": "another"}) for r in adamw]
    assert other not in conclude(summarize(adan + elsewhere)[0])
    untuned = [replace(r, config=replace(r.config, origin=UNTUNED)) for r in adan + adamw]
    assert other not in conclude(summarize(untuned)[0])


@pytest.mark.parametrize(
    ("how", "device", "settings", "remedy"),
    [
        ("foreach", "cpu", {}, "install a C compiler, then adan again"),
        ("foreach, capturable", "cuda", {}, "install Triton"),
        ("fused, foreach", "cuda:1", {}, "install Triton"),
        ("single-tensor", "cpu", {"foreach": False}, "leave foreach unset"),
        ("fused", "cpu", {}, None),
        ("fused, capturable", "cuda", {}, None),
        (None, "cpu", {}, None),
    ],
)
def test_adan_without_its_fused_engine_is_said_once(
    how: str | None, device: str, settings: dict[str, Any], remedy: str | None
) -> None:
    records = [r for w in "ab" for r in costs("adan", how, 16.0, 1.0, *EARLY, workload=w, device=device)]
    records = [replace(r, config=replace(r.config, settings={"lr": 0.1, **settings})) for r in records]
    texts = warn(summarize(records + costs("nadam", "foreach", 8.0, 1.0, *LATE, workload="a", device=device)))
    assert len(texts) == (remedy is not None)
    for text in texts:
        assert text.startswith("adan ran without Adan's fused engine")
        assert text.endswith(f"; {remedy}.")


def test_tables_of_like_names_have_figures_of_their_own(tmp_path: Path) -> None:
    summaries = summarize(three("adan", 0.9, workload="Net 1.5") + three("adan", 0.9, workload="net-1-5"))
    expected = {"Net 1.5": "report-net-1-5.png", "net-1-5": "report-net-1-5-2.png"}
    assert write_figures(summaries, tmp_path) == expected


def test_the_table_fits_into_80_columns() -> None:
    """With nothing cut off: long names, engines and results are folded, and the words of the head are whole."""
    records = costs("adan", "the script's own step", 16.004, 1234.0, *EARLY, label="adan:state_format=8bit,lr=0.00123")
    records += costs("sgd-momentum", "single-tensor, capturable", 4.0, 0.1, *LATE)
    console = Console(file=io.StringIO(), width=80)
    show_summaries(console, summarize(records))
    lines = [line for line in console.file.getvalue().splitlines() if line.startswith(("┃", "│"))]
    assert max(map(len, lines)) <= 80
    cells = [re.split("[┃│]", line) for line in lines]
    head = [
        " ".join(" ".join(cell).split())
        for cell in zip(*(c for c, x in zip(cells, lines, strict=True) if x[0] == "┃"), strict=True)
    ]
    assert head[1:-1] == ["optimizer", "m ↑", "steps to target", "s to target", "ms/step", "state B/param", "lr"]
    columns = ["".join("".join(column).split()) for column in zip(*cells, strict=True)]
    expected = ["", "state_format=8bit", "0.9013", "75(3/3)", "2468", "4.00(single-tensor)", "16.0", "0.1", ""]
    for words, column in zip(expected, columns, strict=True):
        assert words in column


def test_the_page_begins_with_an_answer_about_adan() -> None:
    better = three("adan", 0.9, 0.91, 0.9, workload="a") + three("sgd", 0.5, 0.51, 0.501, workload="a")
    level = three("adan", 0.9, 0.7, 0.8, workload="b") + three("sgd", 0.7, 0.9, 0.85, workload="b")
    summaries = summarize(better + level)
    said = "adan against the best other optimizer of each table: better by more than the seeds explain on a (sgd); "
    assert overall(summaries) == f"{said}not significantly different on b (sgd)."
    assert overall(summaries) in render([], summaries).markdown
    constant = three("adan", 0.9, 0.91, 0.9) + three("sgd", 0.5, 0.51, 0.5)
    assert "with the same difference for every seed, which says nothing" in overall(summarize(constant))
