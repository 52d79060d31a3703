"""Numbers from records made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.made_up_runs import record, three

from adan_bench.config import RunRecord
from adan_bench.records.stats import (
    Verdict,
    by_pairs,
    interval,
    performance_profile,
    sensitivity,
    summarize,
    summarize_trials,
    to_target,
)
from adan_bench.reports.comparison import warn
from adan_bench.reports.conclusions import behind, spread


def test_interval_is_student_t() -> None:
    found = interval([1.0, 2.0, 3.0])
    assert found.half == pytest.approx(4.302653 / 3**0.5)  # t quantile of 0.975 with two degrees of freedom
    corrected = interval([1.0, 2.0, 3.0], comparisons=4).half
    assert corrected == pytest.approx(8.860 / 3**0.5, rel=1e-3)  # of 1 − 0.05/8


@pytest.mark.parametrize(("metric", "finals"), [("accuracy", (99.0, 98.0, 99.9)), ("loss", (-6.0, -6.1, 0.1))])
def test_an_interval_contains_its_mean_whatever_the_unit(metric: str, finals: tuple[float, ...]) -> None:
    """An accuracy in percent, a negative log-likelihood."""
    records = three("adan", *finals)
    for r in records:
        r.workload["metric"], r.result["final"][metric] = metric, r.result["final"].pop("m")
    (summary,) = summarize(records)
    found = summary.optimizers[0].final
    assert found.low < found.mean < found.high
    assert found.half is not None


def test_an_interval_stays_in_the_range_of_its_metric() -> None:
    found = interval([0.97, 0.99, 1.0]).within(0.0, 1.0)
    assert found.high == 1.0
    assert found.half is None
    assert spread(found, []) == "0.9867 [0.9487, 1.000] (n=3)"
    assert spread(interval([0.5, 0.6, 0.7]).within(0.0, 1.0), []) == "0.6000 ± 0.2484 (n=3)"
    assert spread(interval([2.01e-5, 2.02e-5, 2e-5]), []) == "2.01e-05 ± 2.5e-07 (n=3)"
    assert spread(interval([5.0e-4, 5.1e-4, 4.9e-4]), []) == "0.0005 ± 2.5e-05 (n=3)"


def test_the_interval_of_a_difference_of_accuracies_stays_within_one() -> None:
    runs = three("adan", 0.95, 0.9, 0.91) + three("sgd", 0.1, 0.9, 0.2)
    runs = [replace(r, workload={**r.workload, "metric": "accuracy"}) for r in runs]
    runs = [
        replace(r, result={**(r.result or {}), "final": {"accuracy": (r.result or {})["final"]["m"]}}) for r in runs
    ]
    (summary,) = summarize(runs)
    gap = behind(summary)["sgd"]
    assert -1 <= (gap.low or 0.0) < gap.mean < (gap.high or 0.0) <= 1


def test_the_paired_test_is_scipy_s() -> None:
    from scipy.stats import ttest_rel

    a, b = {0: 1.0, 1: 2.5, 2: 3.0, 7: 9.0}, {0: 0.5, 1: 1.0, 2: 2.8, 8: 0.0}
    found = by_pairs(a, b)
    expected = ttest_rel([1.0, 2.5, 3.0], [0.5, 1.0, 2.8]).confidence_interval(0.95)
    assert (found.n, found.low, found.high) == (3, pytest.approx(expected.low), pytest.approx(expected.high))


@pytest.mark.parametrize(
    ("ours", "theirs", "higher", "diverged", "word"),
    [
        ([2.0, 2.1, 2.2], [1.0, 1.1, 1.3], True, (0, 0), "better"),
        ([2.0, 2.1, 2.2], [1.0, 1.1, 1.3], False, (0, 0), "worse"),
        ([2.0, 2.1, 2.2], [1.0, 1.1, 1.3], True, (1, 0), "not significant"),
        ([2.0, 2.1, 2.2], [1.0, 1.1, 1.3], True, (0, 1), "better"),
        ([2.0, 2.1, 2.2], [1.0, 1.1, 1.3], False, (0, 1), "not significant"),
        ([1.0, 2.0, 3.0], [1.0, 2.1, 3.3], True, (0, 0), "not significant"),
        ([2.0, 2.0, 2.0], [1.0, 1.0, 1.0], True, (0, 0), "constant"),
        ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], True, (0, 0), "not significant"),
        ([2.0, 2.1], [1.0, 1.1, 1.3], True, (0, 0), "too few seeds"),
    ],
)
def test_the_word_of_a_verdict(
    ours: list[float], theirs: list[float], higher: bool, diverged: tuple[int, int], word: str
) -> None:
    gap = by_pairs(dict(enumerate(ours)), dict(enumerate(theirs)))
    assert Verdict(gap, higher, diverged).word == word


def test_results_without_a_common_seed_make_no_pairs() -> None:
    assert Verdict(by_pairs({0: 1.0}, {1: 2.0}), True).word == "too few seeds"


@pytest.mark.parametrize(
    ("changes", "labels"),
    [
        ({"warmup": 0.5}, ["w, warm-up 5%", "w, warm-up 50%"]),
        ({"floor": 0.1}, ["w, no floor", "w, floor 0.1"]),
        ({"cooldown": 0.1}, ["w, no cooldown", "w, cooldown 10%"]),
        ({"clip": 1.0}, ["w, default clip", "w, clip 1"]),
        ({"ema": 0.9}, ["w, no average of weights", "w, average of weights 0.9"]),
        ({"accumulate": 2}, ["w, accumulate 1", "w, accumulate 2"]),
        ({"stop_after": 50}, ["w, no stop after", "w, stop after 50"]),
        ({"init": Path("a"), "init_sha256": "b"}, ["w, no init", "w, init a"]),
        ({"scale": "small"}, ["w, scale smoke", "w, scale small"]),
        ({"training": {"drop_path": 0.1}}, ["w, no training", "w, training drop_path=0.1"]),
        ({"channels_last": True}, ["w, no channels last", "w, channels last"]),
        ({"data": Path("a")}, ["w, no data", "w, data a"]),
        ({"steps": 50, "batch_size": 16, "eval_every": 5}, ["w, 100 steps, batch 8", "w, 50 steps, batch 16"]),
        ({"eval_every": 5}, ["w, eval every 10", "w, eval every 5"]),
    ],
)
def test_runs_that_differ_otherwise_are_shown_apart(changes: dict[str, Any], labels: list[str]) -> None:
    other = record("adan", 0.2)
    other = replace(other, config=replace(other.config, **changes))
    found = summarize([record("adan", 0.1), other, record("sgd", 0.1)])
    assert [summary.name for summary in found] == labels
    assert [o.name for o in found[0].optimizers] == ["adan", "sgd"]
    assert [o.n for o in found[1].optimizers] == [1]


def test_what_leaves_the_numbers_as_they_are_does_not_set_runs_apart() -> None:
    runs = [record("adan", 0.1), record("adan", 0.2, 1, threads=4, jobs=2, keep_weights=True)]
    (summary,) = summarize(runs)
    assert (summary.name, summary.optimizers[0].n) == ("w", 2)


def test_a_study_may_be_continued_where_its_data_lie_elsewhere() -> None:
    """Its runs and its trials are one comparison; another study's, on the data of the second folder, are not of it."""
    runs = [record("adan", 0.1, seed, study="s", data=Path(folder)) for seed, folder in enumerate("ab")]
    (summary,) = summarize(runs)
    assert [o.n for o in summary.optimizers] == [2]
    other = record("adan", 0.1, 2, study="t", data=Path("b"))
    assert [[o.n for o in found.optimizers] for found in summarize([*runs, other])] == [[2], [1]]
    trials = [record("adan", 0.1, lr=lr, role="tune", study="s", data=Path(f)) for lr, f in ((0.1, "a"), (0.2, "b"))]
    (tried,) = summarize_trials(trials)
    assert [o.trials for o in tried.optimizers] == [2]
    assert [o.trials for found in summarize([*runs, *trials]) for o in found.optimizers] == [2]


def test_weights_at_the_start_are_told_by_their_content() -> None:
    def started(final: float, seed: int, file: str, content: str) -> RunRecord:
        return record("adan", final, seed, init=Path(file), init_sha256=content * 8)

    (one,) = summarize([started(0.1, 0, "here", "a"), started(0.2, 1, "there", "a")])
    assert (one.name, one.optimizers[0].n) == ("w", 2)
    others = summarize([started(0.1, 0, "here", "a"), started(0.2, 1, "here", "b"), started(0.2, 1, "here", "")])
    assert [other.name for other in others] == ["w, init aaaaaaaa", "w, init bbbbbbbb", "w, init of unknown content"]


def test_rows_of_one_optimizer_are_told_apart() -> None:
    """By their studies, or by those settings alone that differ."""
    mine = [record("adan", 0.1, study="a"), record("adan", 0.2, study="b", lr=0.2), record("sgd", 0.3, study="b")]
    assert {o.name for o in summarize(mine)[0].optimizers} == {"adan (a)", "adan (b)", "sgd"}
    more = [*mine, record("adan", 0.4, study="b", lr=0.4)]
    names = {'adan {"lr": 0.1}', 'adan {"lr": 0.2}', "sgd", 'adan {"lr": 0.4}'}
    assert {o.name for o in summarize(more)[0].optimizers} == names


def test_a_seed_that_was_run_twice_counts_once() -> None:
    first = record("adan", 0.1, path="b", started="2026-01-01T10:00:00+00:00")
    again = record("adan", 0.3, path="a", started="2026-01-02T10:00:00+00:00")
    killed = record("adan", 0.0, path="c", started="2026-01-03T10:00:00+00:00", status="failed")
    found = summarize([again, first, killed, record("adan", 0.5, 1)])
    (adan,) = found[0].optimizers
    assert adan.by_seed() == {0: 0.3, 1: 0.5}
    assert (adan.n, adan.failed) == (2, 0)
    (text,) = warn(found)
    assert text == "Runs with the same settings and seed count once, by the one named last: c, b and a."
    assert warn(summarize([again, record("adan", 0.5, 1), record("sgd", 0.5, lr=0.2)])) == []


def test_steps_to_target() -> None:
    assert to_target(record(curve=(0.1, 0.4, 0.5, 0.3))) == (75, 3.0)
    assert to_target(record(curve=(0.1, 0.4))) is None
    curves = [(0.6, 0.6), (0.1, 0.6), (0.1, 0.1)]
    (summary,) = summarize([record(seed=i, curve=curve) for i, curve in enumerate(curves)])
    assert summary.optimizers[0].steps_to_target == 100  # the median of 50, 100 and never
    assert summary.optimizers[0].reached == 2
    (summary,) = summarize([record(seed=i, curve=curve) for i, curve in enumerate(curves[1:])])
    assert summary.optimizers[0].steps_to_target is None


def test_the_median_is_the_median_and_a_diverged_seed_reached_nothing() -> None:
    (summary,) = summarize([record(seed=i, curve=curve) for i, curve in enumerate([(0.6, 0.6), (0.1, 0.6)])])
    assert summary.optimizers[0].steps_to_target == 75  # of 50 and 100
    diverged = record(final=None, curve=(0.6, 0.1))
    assert to_target(diverged) is None
    assert summarize([diverged, record(seed=1, curve=(0.6, 0.6))])[0].optimizers[0].steps_to_target is None


def test_learning_rate_range() -> None:
    """Within 2% of the best, connected to it; a diverged rate ends the range."""
    rates = {1e-4: 0.895, 1e-3: 0.5, 1e-2: 0.885, 1e-1: 0.9, 1.0: 0.8, 10.0: None}
    found = sensitivity([record(final=final, lr=lr, role="tune") for lr, final in rates.items()])
    assert (found.best_lr, found.low, found.high, found.at_edge) == (1e-1, 1e-2, 1e-1, False)
    lower = sensitivity([record(final=x, lr=lr, role="tune", higher=False) for lr, x in ((1.0, 2.0), (2.0, 2.03))])
    assert (lower.low, lower.high, lower.at_edge) == (1.0, 2.0, True)


@pytest.mark.parametrize(
    ("tried", "best", "at_edge"),
    [
        ((0.2, 0.4, 0.1), 0.2, False),  # in the middle
        ((0.1, 0.2, 0.4), 0.2, False),
        ((0.4, 0.1), 0.4, True),
    ],
)
def test_rates_that_do_equally_well(tried: tuple[float, ...], best: float, at_edge: bool) -> None:
    """The best is the one that a tuning chooses, and at the edge only where none between is as good."""
    found = sensitivity([record(lr=lr, role="tune") for lr in tried] + [record(final=0.1, lr=0.3, role="tune")])
    assert (found.best_lr, found.at_edge) == (best, at_edge)


def test_a_rate_is_at_the_edge_by_the_best_trial() -> None:
    """With other settings the best trial may have a rate between those tried."""
    tried = [record(final=final, lr=lr, role="tune") for lr, final in ((0.1, 0.5), (0.2, 0.6), (0.4, 0.7))]
    config = replace(tried[1].config, settings={"lr": 0.2, "betas": (0.9, 0.95)})
    better = replace(record(final=0.8, role="tune"), config=config)
    for records, at_edge in ((tried, True), ([*tried, better], False)):
        found = sensitivity(records)
        assert found.at_edge is at_edge


def test_performance_profile() -> None:
    records = [record("adan", workload="a", curve=(0.6,) * 4), record("sgd", workload="a", curve=(0.1, 0.6, 0.6, 0.6))]
    records += [record("adan", workload="b", curve=(0.1, 0.6)), record("sgd", workload="b", curve=(0.1, 0.1))]
    profile = performance_profile(summarize(records))
    assert profile == {"adan": [(1.0, 0.5), (1.0, 1.0)], "sgd": [(2.0, 0.5)]}
