"""Numbers and sentences from records made by hand."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from adan_bench.cli.progress import show_summaries, show_tuning
from adan_bench.config import Origin, RunConfig, RunRecord
from adan_bench.records.stats import (
    interval,
    mean_curve,
    performance_profile,
    sensitivity,
    summarize,
    summarize_trials,
    to_target,
    verdict,
    welch,
)
from adan_bench.reports.comparison import in_numbers, render, table_rows, warn, write_report
from adan_bench.reports.conclusions import behind, caution, conclude, number, overall, spread, tuning, winner
from adan_bench.reports.tuning import write_tuning


@pytest.fixture(autouse=True)
def blank_figures() -> None:
    """Here figures are drawn."""


BY_HAND, UNTUNED = Origin(source="by hand"), Origin(kind="untuned")


def record(
    optimizer: str = "adan",
    final: float | None = 0.9,
    seed: int = 0,
    lr: float = 0.1,
    role: str = "run",
    curve: tuple[float, ...] = (),
    higher: bool = True,
    workload: str = "w",
    origin: Origin = BY_HAND,
    status: str = "",
    path: str = "nowhere",
    started: str = "",
    **more: Any,
) -> RunRecord:
    """A run of 100 steps with evaluations at equal distances, the last of them `final`."""
    config = RunConfig(
        workload=workload,
        optimizer=optimizer,
        settings={"lr": lr},
        steps=100,
        batch_size=8,
        eval_every=10,
        log_every=10,
        seed=seed,
        role=role,
        origin=origin,
        **more,
    )
    facts = {"metric": "m", "higher_is_better": higher, "target": 0.5, "name": workload, "summary": "made up"}
    values = curve or (0.0, final or 0.0)
    metrics: list[dict[str, Any]] = [
        {"kind": "eval", "step": 100 * (i + 1) // len(values), "seconds": float(i + 1), "m": value}
        for i, value in enumerate(values)
    ]
    status = status or ("finished" if final is not None else "diverged")
    result = {"status": status, "step": 100, "seconds": 2.0, "final": {"m": final}, "best": final}
    return RunRecord(Path(path), config, facts, {"passes": 1}, {"started": started}, metrics, result)


def three(optimizer: str, *finals: float | None, **more: Any) -> list[RunRecord]:
    return [record(optimizer, final, seed, **more) for seed, final in enumerate(finals)]


def test_interval_is_student_t() -> None:
    found = interval([1.0, 2.0, 3.0])
    assert found.half == pytest.approx(4.302653 / 3**0.5)  # t quantile of 0.975 with two degrees of freedom
    corrected = interval([1.0, 2.0, 3.0], comparisons=4).half
    assert corrected == pytest.approx(8.860 / 3**0.5, rel=1e-3)  # of 1 − 0.05/8


def test_fewer_than_three_seeds_make_no_claim() -> None:
    (summary,) = summarize(three("adan", 0.9, 0.9) + three("adamw", 0.1, 0.1))
    assert summary.optimizers[0].final is not None
    assert summary.optimizers[0].final.low is None
    text = conclude(summary)
    assert "With 2 seeds this is no evidence" in text
    assert "better" not in text


def test_a_clear_difference_and_an_unclear_one() -> None:
    records = three("adan", 0.90, 0.91, 0.92) + three("adamw", 0.80, 0.81, 0.8201) + three("adam", 0.95, 0.80, 0.93)
    (summary,) = summarize(records)
    text = conclude(summary)
    assert text.startswith("adan has the highest mean m, 0.9100 (n=3).")
    assert "better than adamw by more than the seeds explain" in text
    assert "The difference from adam is within what the seeds explain" in text


def test_without_enough_shared_seeds_nothing_is_tested() -> None:
    """Three seeds of each finished, but two with both, or none: that is no test whose answer is "no difference"."""
    others = [record("adamw", 0.5 + 0.001 * seed, seed) for seed in (1, 2, 3)]
    (summary,) = summarize([*three("adan", 0.9, 0.901, 0.902), *others])
    few = "Only 2 seeds finished with both adan and adamw, which is no evidence of a difference."
    assert few in conclude(summary)
    assert "within what the seeds explain" not in conclude(summary)
    assert winner(summary) is None
    others = [record("adamw", 0.5 + 0.001 * seed, seed) for seed in (3, 4, 5)]
    (summary,) = summarize([*three("adan", 0.9, 0.901, 0.902), *others])
    assert "No seed finished with both adan and adamw, which is no evidence" in conclude(summary)


def test_each_number_of_seeds_is_that_of_its_optimizer() -> None:
    found = summarize(three("adan", 0.9, 0.8) + three("adamw", 0.1))
    text = conclude(found[0])
    assert text.startswith("adan has the highest mean m, 0.8500 (n=2). adamw follows with 0.1000 (n=1).")
    assert "With 1 seed of adamw this is no evidence of a difference." in text
    assert "schedule (cosine, same warm-up) and budget, but not with the same seeds in w." in tuning(found)
    assert "budget and seeds." in tuning(summarize(three("adan", 0.9, 0.8) + three("adamw", 0.1, 0.2)))
    shared = conclude(summarize(three("adan", 0.9, 0.9) + three("adamw", 0.9, 0.9, 0.9))[0])
    assert shared.startswith("adan and adamw share the highest mean m, 0.9000 (n=2 and 3).")


def test_one_optimizer_is_compared_with_none() -> None:
    assert conclude(summarize(three("adan", 0.9))[0]) == "Only adan was run: mean m 0.9000, n=1."
    (summary,) = summarize(three("adan", 0.9) + three("sgd", None))
    assert conclude(summary).startswith("Only adan finished: mean m 0.9000, n=1.")


def test_lower_is_better_and_ties() -> None:
    records = three("adan", 1.0, 1.0, 1.0, higher=False) + three("sgd", 2.0, 2.1, 2.2, higher=False)
    (summary,) = summarize(records + three("adam", 1.0, 1.0, 1.0, higher=False))
    assert [o.name for o in summary.optimizers][-1] == "sgd"
    assert conclude(summary).startswith("adan and adam share the lowest mean m, 1.000 (n=3).")


@pytest.mark.parametrize("base", [1234.0, 0.97])
def test_means_that_read_the_same_are_no_tie_where_the_seeds_tell_them_apart(base: float) -> None:
    unit = 0.1 if base > 1 else 1e-5
    adan, sgd = ([base + unit * x for x in own] for own in ((1.0, 1.1, 0.9, 1.0), (3.0, 3.12, 2.94, 3.04)))
    (summary,) = summarize(three("adan", *adan, higher=False) + three("sgd", *sgd, higher=False))
    assert conclude(summary).startswith(f"adan has the lowest mean m, {number(base)} (n=4). It is better than sgd by")
    assert winner(summary) == "adan"
    shown = [spread(o.final, []) for o in summary.optimizers]
    assert shown[0] == ("1234.100 ± 0.013 (n=4)" if base > 1 else "0.9700100 ± 0.0000013 (n=4)")
    assert len({text.partition(" ")[0] for text in shown}) == 2


def test_diverged_runs_are_said() -> None:
    (summary,) = summarize(three("adan", 0.9, 0.9, 0.9) + three("sgd", None, None, None))
    assert summary.optimizers[-1].final is None
    assert conclude(summary).endswith("sgd: 3 of 3 diverged.")
    (summary,) = summarize(three("sgd", None, None))
    assert conclude(summary) == "No run finished, so there is nothing to compare. sgd: 2 of 2 diverged."


def test_an_optimizer_with_diverged_seeds_is_not_better() -> None:
    """Its mean is that of the seeds that went well: here it loses on each of them, and has the better mean."""
    adan, adamw = (0.80, 0.801, 0.802, None, None), (0.90, 0.901, 0.903, 0.1, 0.1)
    (summary,) = summarize(three("adan", *adan) + three("adamw", *adamw))
    assert [o.name for o in summary.optimizers] == ["adamw", "adan"]
    text = conclude(summary)
    assert text.startswith("adamw, among those without a diverged seed, has the highest mean m, 0.5808 (n=5).")
    assert "It is better than adan by more than the seeds explain" in text
    assert text.endswith("adan: 2 of 5 diverged.")
    assert winner(summary) == "adamw"
    ahead = three("sgd", 0.95, 0.952, 0.951, None) + three("adan", 0.90, 0.901, 0.902, 0.9)
    (summary,) = summarize(ahead)
    assert "better" not in conclude(summary)
    assert "within what the seeds explain" not in conclude(summary)
    assert winner(summary) is None
    (summary,) = summarize(three("sgd", 0.9, 0.9, 0.9, None) + three("adan", 0.5, 0.5, 0.5, None))
    assert conclude(summary).startswith("Every optimizer with a result has a diverged seed, so none is called better.")
    assert conclude(summary).endswith("sgd: 1 of 4 diverged; adan: 1 of 4 diverged.")
    assert winner(summary) is None


@pytest.mark.parametrize("sign", [1, -1])
def test_the_better_one_is_better_on_the_seeds_that_both_finished(sign: int) -> None:
    """Two runs of Adan failed, which leaves it the better mean although it loses on each seed that it finished."""
    adan = three("adan", *(sign * value for value in (0.80, 0.801, 0.802)), higher=sign > 0)
    adan += [record("adan", 0.0, seed, status="failed", higher=sign > 0) for seed in (3, 4)]
    adamw = three("adamw", *(sign * value for value in (0.90, 0.901, 0.903, 0.1, 0.1)), higher=sign > 0)
    (summary,) = summarize(adan + adamw)
    assert summary.optimizers[0].name == "adan"
    assert "adan is better" not in conclude(summary)
    assert "It is better" not in conclude(summary)
    assert "On the seeds that both finished, adamw did better." in conclude(summary)
    assert winner(summary) is None


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_a_metric_that_is_not_finite_counts_as_diverged(value: float | None) -> None:
    runs = [*three("adan", 0.95, 0.951, 0.952), record("adan", value, 3, status="finished")]
    (summary,) = summarize(runs + three("sgd", 0.9, 0.9, 0.9, 0.9))
    assert conclude(summary).endswith("adan: 1 of 4 diverged.")
    assert winner(summary) is None
    (adan,) = (o for o in summary.optimizers if o.name == "adan")
    assert (adan.n, adan.diverged, adan.final and adan.final.n) == (4, 1, 3)


def test_all_pairs_are_corrected_for() -> None:
    """Any of the five could have been the best, so there were ten comparisons to make and not four."""
    close = three("adan", 0.900, 0.910, 0.920) + three("adamw", 0.845, 0.845, 0.845)  # a gap of 0.065 ± 0.01 (sd)
    assert winner(summarize(close)[0]) == "adan"
    names = ("adam", "sgd", "lamb")
    (summary,) = summarize(close + [r for name in names for r in three(name, 0.1, 0.11, 0.1201)])
    text = conclude(summary)
    assert (
        "is better than adam, sgd and lamb by more than the seeds explain (95%, paired, corrected for all 10 pairs)"
        in text
    )
    assert "The difference from adamw is within what the seeds explain." in text
    assert winner(summary) is None


def test_what_the_stored_report_of_the_demo_says_follows_from_its_runs() -> None:
    folder = Path(__file__).parents[2] / "results" / "adan_bench" / "demo"
    runs = []
    for line in (folder / "runs.jsonl").read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        config = RunConfig.from_json(found["config"])
        metric = "loss" if config.workload == "pycode-gpt2" else "accuracy"
        facts = {"metric": metric, "higher_is_better": metric == "accuracy", "target": 0.0}
        runs.append(RunRecord(Path(), config, facts, {}, {}, [], found["result"]))
    report = (folder / "report.md").read_text(encoding="utf-8")
    summaries = summarize(runs)
    assert len(summaries) == 3
    for summary in summaries:
        assert conclude(summary).partition(" The target")[0] in report


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


def test_weights_at_the_start_are_told_by_their_content() -> None:
    def started(final: float, seed: int, file: str, content: str) -> RunRecord:
        return record("adan", final, seed, init=Path(file), init_sha256=content * 8)

    (one,) = summarize([started(0.1, 0, "here", "a"), started(0.2, 1, "there", "a")])
    assert (one.name, one.optimizers[0].n) == ("w", 2)
    others = summarize([started(0.1, 0, "here", "a"), started(0.2, 1, "here", "b"), started(0.2, 1, "here", "")])
    assert [other.name for other in others] == ["w, init aaaaaaaa", "w, init bbbbbbbb", "w, init of unknown content"]


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


def test_the_fewest_steps_are_named_where_a_winner_could_be() -> None:
    """Not in an unfair comparison, and not with two seeds; the table has the steps in any case."""
    early, late = {"curve": (0.6, 0.9)}, {"curve": (0.1, 0.8)}
    for finals, origin, named in ((3, BY_HAND, True), (2, BY_HAND, False), (3, UNTUNED, False)):
        (summary,) = summarize(
            three("adan", *[0.9] * finals, origin=origin, **early)
            + three("sgd", *[0.8] * finals, origin=origin, **late)
        )
        assert ("reached in the fewest steps (50, median) by adan" in conclude(summary)) == named
        assert f"| 50 ({finals}/{finals}) |" in render([], [summary]).markdown
    (summary,) = summarize(three("adan", 0.1, 0.1) + three("sgd", 0.1, 0.1))
    assert "was not reached by most seeds of any optimizer" in conclude(summary)


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


def test_a_mean_curve_joins_by_step() -> None:
    """A curve with fewer lines has others at the same places."""
    assert mean_curve([[(10, 1.0), (20, 2.0), (30, 3.0)], [(10, 1.0), (30, 3.0)]], 0.75)[:2] == ([10, 30], [1.0, 3.0])


def test_learning_rate_range() -> None:
    """Within 2% of the best, connected to it; a diverged rate ends the range."""
    rates = {1e-4: 0.895, 1e-3: 0.5, 1e-2: 0.885, 1e-1: 0.9, 1.0: 0.8, 10.0: None}
    found = sensitivity([record(final=final, lr=lr, role="tune") for lr, final in rates.items()])
    assert found is not None
    assert (found.best_lr, found.low, found.high, found.at_edge) == (1e-1, 1e-2, 1e-1, False)
    lower = sensitivity([record(final=x, lr=lr, role="tune", higher=False) for lr, x in ((1.0, 2.0), (2.0, 2.03))])
    assert lower is not None
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
    assert found is not None
    assert (found.best_lr, found.at_edge) == (best, at_edge)


def test_a_rate_is_at_the_edge_by_the_best_trial() -> None:
    """With other settings the best trial may have a rate between those tried."""
    tried = [record(final=final, lr=lr, role="tune") for lr, final in ((0.1, 0.5), (0.2, 0.6), (0.4, 0.7))]
    config = replace(tried[1].config, settings={"lr": 0.2, "betas": (0.9, 0.95)})
    better = replace(record(final=0.8, role="tune"), config=config)
    for records, at_edge in ((tried, True), ([*tried, better], False)):
        found = sensitivity(records)
        assert found is not None
        assert found.at_edge is at_edge


def test_performance_profile() -> None:
    records = [record("adan", workload="a", curve=(0.6,) * 4), record("sgd", workload="a", curve=(0.1, 0.6, 0.6, 0.6))]
    records += [record("adan", workload="b", curve=(0.1, 0.6)), record("sgd", workload="b", curve=(0.1, 0.1))]
    profile = performance_profile(summarize(records))
    assert profile == {"adan": [(1.0, 0.5), (1.0, 1.0)], "sgd": [(2.0, 0.5)]}


def test_uneven_tuning_is_said() -> None:
    even = summarize(three("adan", 0.9, 0.9, 0.9) + three("sgd", 0.8, 0.8, 0.8))
    assert "Settings: by hand." in tuning(even)
    assert caution(even) == ""
    uneven = summarize(three("adan", 0.9, 0.9, 0.9) + three("sgd", 0.8, 0.8, 0.8, origin=Origin(source="guessed")))
    assert caution(uneven) == "Tuned differently (by hand; guessed): not a fair comparison."
    one = summarize([*three("adan", 0.9, 0.9), *three("sgd", 0.8, 0.8), record("adan", role="tune")])
    assert caution(one) == "Tuned by different numbers of trials (0, 1): not a fair comparison."


@pytest.mark.parametrize("origin", [UNTUNED, replace(UNTUNED, changed={"lr": 1})])
def test_an_untuned_comparison_has_no_winner(origin: Origin) -> None:
    """However clear the numbers are, they say nothing about tuned optimizers."""
    fair = summarize(three("adan", 0.9, 0.91, 0.9) + three("sgd", 0.5, 0.51, 0.501))
    assert "by more than the seeds explain" in conclude(fair[0])
    assert winner(fair[0]) == "adan"
    unfair = summarize(three("adan", 0.9, 0.91, 0.9, origin=origin) + three("sgd", 0.5, 0.51, 0.5, origin=origin))
    assert conclude(unfair[0]).startswith("Not fair, see above: with these settings adan has")
    assert "better" not in conclude(unfair[0])
    assert winner(unfair[0]) is None
    assert caution(unfair) == "Untuned: not a fair comparison; add --tune 8."
    one = summarize(three("adan", 0.9, 0.91, 0.9) + three("sgd", 0.5, 0.51, 0.5, origin=origin))
    assert caution(one).startswith("Untuned (sgd): not a fair comparison")


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"tuned_for": {"steps": 150, "batch_size": 64}}, "Tuned for another training (150 steps, batch 64)"),
        ({"changed": {"lr": 0.1}}, "Changed after tuning (lr=0.1)"),
        ({"tuned_for": {"steps": 150}, "changed": {"lr": 0.1}}, "Tuned for another training (150 steps)"),
        ({"tuned_for": {"steps": 150}, "batch_sizes": (64, 32)}, "Tuned for another training (150 steps)"),
        ({"changed": {"lr": 0.1}, "batch_sizes": (64, 32)}, "Changed after tuning (lr=0.1)"),
    ],
)
def test_settings_that_are_no_longer_those_of_the_tuning_make_no_winner(facts: dict[str, Any], said: str) -> None:
    """Even where all optimizers share the origin: one learning rate for all is no tuning."""
    origin = Origin(kind="saved", trials=8, **facts)
    (summary,) = summarize(three("adan", 0.9, 0.91, 0.9, origin=origin) + three("sgd", 0.5, 0.51, 0.501, origin=origin))
    assert caution([summary]).startswith(f"{said}: not a fair comparison; ")
    assert conclude(summary).startswith("Not fair, see above: with these settings ")
    assert winner(summary) is None


def test_differences_that_do_not_vary_are_no_evidence() -> None:
    (summary,) = summarize(three("adan", 0.9, 0.91, 0.9) + three("sgd", 0.5, 0.51, 0.5))
    assert "The difference from sgd is the same for every seed, which says nothing about chance." in conclude(summary)
    assert winner(summary) is None


def test_seeds_that_change_nothing_count_as_one() -> None:
    def run(name: str, final: float, seed: int, loss: float) -> RunRecord:
        found = record(name, final, seed)
        return replace(found, metrics=[*found.metrics, {"kind": "train", "step": 100, "seconds": 2.0, "loss": loss}])

    sgd = [run("sgd", 0.5 + 0.01 * seed**2, seed, 1.0 + seed) for seed in range(3)]
    (summary,) = summarize([run("adan", 0.9, seed, 0.3) for seed in range(3)] + sgd)
    assert "Every seed of adan gave the same numbers, so that they count as one" in conclude(summary)
    assert winner(summary) is None
    (summary,) = summarize([run("adan", 0.9, seed, 0.3 + seed) for seed in range(3)] + sgd)
    assert winner(summary) == "adan"


@pytest.mark.parametrize(("metric", "finals"), [("accuracy", (99.0, 98.0, 99.9)), ("loss", (-6.0, -6.1, 0.1))])
def test_an_interval_contains_its_mean_whatever_the_unit(metric: str, finals: tuple[float, ...]) -> None:
    """An accuracy in percent, a negative log-likelihood."""
    records = three("adan", *finals)
    for r in records:
        r.workload["metric"], r.result["final"][metric] = metric, r.result["final"].pop("m")
    (summary,) = summarize(records)
    found = summary.optimizers[0].final
    assert found is not None
    assert found.low < found.mean < found.high
    assert found.half is not None


def test_a_row_is_marked_only_where_the_seeds_support_it() -> None:
    assert winner(summarize(three("adan", 0.9, 0.7, 0.8) + three("sgd", 0.8, 0.8, 0.79))[0]) is None
    assert winner(summarize(three("adan", 0.9, 0.91) + three("sgd", 0.5, 0.51))[0]) is None  # two seeds


def trials(best: int) -> list[RunRecord]:
    return [
        record(name, 0.9 if i == best else 0.5, lr=lr, role="tune")
        for name in ("adan", "sgd")
        for i, lr in enumerate((0.01, 0.1, 1.0))
    ]


def test_a_best_rate_at_the_edge_is_flagged() -> None:
    """Once, also where the record of a run says so too, and where the trials are there twice."""

    def study(best: int, times: int = 1, **more: Any) -> str:
        runs = three("adan", 0.9, 0.9, 0.9, **more) + three("sgd", 0.8, 0.8, 0.8, **more)
        return conclude(summarize(runs + times * trials(best))[0])

    for text in (study(2), study(2, times=2), study(2, origin=replace(BY_HAND, at_edge=True), lr=1.0)):
        assert "a better one may lie beyond: adan (1) and sgd (1)." in text
    assert "may lie beyond" not in study(1)


def test_a_trial_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    again = [replace(r, path=Path("copy")) for r in trials(2)]
    found = summarize(three("adan", 0.9) + three("sgd", 0.8) + trials(2) + again)
    assert "Every optimizer had 3 tuning trials" in tuning(found)
    assert [o.trials for o in summarize_trials(trials(2) + again)[0].optimizers] == [3, 3]
    write_tuning(trials(2) + again, tmp_path)
    assert "6 trials by adan-bench tune." in (tmp_path / "tuning.md").read_text(encoding="utf-8")


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


def test_an_interval_stays_in_the_range_of_its_metric() -> None:
    found = interval([0.97, 0.99, 1.0], within=(0.0, 1.0))
    assert found.high == 1.0
    assert found.half is None
    assert spread(found, []) == "0.9867 [0.9487, 1.000] (n=3)"
    assert spread(interval([0.5, 0.6, 0.7], within=(0.0, 1.0)), []) == "0.6000 ± 0.2484 (n=3)"
    assert spread(interval([2.01e-5, 2.02e-5, 2e-5]), []) == "2.01e-05 ± 2.5e-07 (n=3)"
    assert spread(interval([5.0e-4, 5.1e-4, 4.9e-4]), []) == "0.0005 ± 2.5e-05 (n=3)"


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


def test_welch_s_interval_is_scipy_s() -> None:
    from scipy.stats import ttest_ind

    a, b = [1.0, 2.0, 4.0, 3.5], [5.0, 5.1, 5.3]
    found, expected = welch(a, b), ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    wider = ttest_ind(a, b, equal_var=False).confidence_interval(1 - 0.05 / 3)
    assert welch(a, b, 3).high == pytest.approx(wider.high)
    assert welch(a, b[:2]).low is None
    same = welch([2.0] * 3, [1.0] * 3)
    assert (same.mean, same.low, same.high) == (1.0, 1.0, 1.0)


def test_the_paired_test_is_scipy_s() -> None:
    from scipy.stats import ttest_rel

    a, b = {0: 1.0, 1: 2.5, 2: 3.0, 7: 9.0}, {0: 0.5, 1: 1.0, 2: 2.8, 8: 0.0}
    found = verdict(a, b, True, paired=True).difference
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
    a, b = (dict(enumerate(values)) for values in (ours, theirs))
    assert verdict(a, b, higher, diverged=diverged).word == word


def test_results_without_a_common_seed_make_no_pairs() -> None:
    assert verdict({0: 1.0}, {1: 2.0}, True, paired=True).word == "too few seeds"


def test_a_report_shows_both_tests() -> None:
    """Pairs that move together: the paired interval is narrow, Welch's is not."""
    finals = {"adan": [0.90, 0.80, 0.70], "adamw": [0.891, 0.790, 0.689]}
    runs = [record(name, value, seed) for name, values in finals.items() for seed, value in enumerate(values)]
    (summary,) = summarize(runs)
    head, rows = table_rows(summary)
    paired, unpaired = (dict(zip(head, rows[1], strict=True))[name] for name in ("minus the first", "Welch"))
    assert paired.startswith("−0.0100 [−0.012")
    gap = welch(finals["adamw"], finals["adan"])
    assert unpaired == f"[{gap.low:+.4f}, {gap.high:+.4f}]".replace("-", "−")
    (entry,) = in_numbers([summary])
    assert entry["optimizers"][1]["minus_the_first_by_welch"]["low"] == pytest.approx(gap.low)


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
        assert "".join(f"<td>{cell}</td>" for cell in cells.strip("| ").split(" | ")) in page
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


def test_the_table_fits_into_80_columns() -> None:
    """With nothing cut off: long names, engines and results are folded."""
    records = costs("adan", "the script's own step", 16.004, 1234.0, *EARLY, label="adan:state_format=8bit,lr=0.00123")
    records += costs("sgd-momentum", "single-tensor, capturable", 4.0, 0.1, *LATE)
    console = Console(file=io.StringIO(), width=80)
    show_summaries(console, summarize(records))
    lines = [line for line in console.file.getvalue().splitlines() if line.startswith(("┃", "│"))]
    assert max(map(len, lines)) <= 80
    cells = [re.split("[┃│]", line) for line in lines]
    columns = ["".join("".join(column).split()) for column in zip(*cells, strict=True)]
    expected = ["", "state_format=8bit", "0.9013", "75(3/3)", "2468", "4.00(single-tensor)", "16.0", "0.1", ""]
    for words, column in zip(expected, columns, strict=True):
        assert words in column


def test_the_interval_of_a_difference_of_accuracies_stays_within_one() -> None:
    runs = three("adan", 0.95, 0.9, 0.91) + three("sgd", 0.1, 0.9, 0.2)
    runs = [replace(r, workload={**r.workload, "metric": "accuracy"}) for r in runs]
    runs = [
        replace(r, result={**(r.result or {}), "final": {"accuracy": (r.result or {})["final"]["m"]}}) for r in runs
    ]
    (summary,) = summarize(runs)
    for paired in (True, False):
        gap = behind(summary, paired)["sgd"]
        assert -1 <= (gap.low or 0.0) < gap.mean < (gap.high or 0.0) <= 1


def test_the_page_begins_with_an_answer_about_adan() -> None:
    better = three("adan", 0.9, 0.91, 0.9, workload="a") + three("sgd", 0.5, 0.51, 0.501, workload="a")
    level = three("adan", 0.9, 0.7, 0.8, workload="b") + three("sgd", 0.7, 0.9, 0.85, workload="b")
    summaries = summarize(better + level)
    said = "adan against the best other optimizer of each table: better by more than the seeds explain on a (sgd); "
    assert overall(summaries) == f"{said}within what the seeds explain on b (sgd)."
    assert overall(summaries) in render([], summaries).markdown
    assert overall(summaries, "adamw") == ""
