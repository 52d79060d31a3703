"""Sentences from records made by hand: who is better, and what keeps one from saying so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.made_up_runs import BY_HAND, UNTUNED, record, three, trials

from adan_bench.config import Origin, RunConfig, RunRecord
from adan_bench.records.stats import summarize
from adan_bench.reports.comparison import render
from adan_bench.reports.conclusions import caution, conclude, number, spread, tuning, winner


def test_fewer_than_three_seeds_make_no_claim() -> None:
    (summary,) = summarize(three("adan", 0.9, 0.9) + three("adamw", 0.1, 0.1))
    assert summary.optimizers[0].final.low is None
    text = conclude(summary)
    assert winner(summary) is None
    assert "With 2 seeds this is no evidence" in text
    assert "better" not in text


def test_a_clear_difference_and_an_unclear_one() -> None:
    assert winner(summarize(three("adan", 0.9, 0.7, 0.8) + three("sgd", 0.8, 0.8, 0.79))[0]) is None
    records = three("adan", 0.90, 0.91, 0.92) + three("adamw", 0.80, 0.81, 0.8201) + three("adam", 0.95, 0.80, 0.93)
    (summary,) = summarize(records)
    text = conclude(summary)
    assert text.startswith("adan has the highest mean m, 0.9100 (n=3).")
    assert "better than adamw by more than the seeds explain" in text
    assert "The difference from adam is not significant" in text


def test_without_enough_shared_seeds_nothing_is_tested() -> None:
    """Three seeds of each finished, but two with both, or none: that is no test whose answer is "no difference"."""
    others = [record("adamw", 0.5 + 0.001 * seed, seed) for seed in (1, 2, 3)]
    (summary,) = summarize([*three("adan", 0.9, 0.901, 0.902), *others])
    few = "Only 2 seeds finished with both adan and adamw, which is no evidence of a difference."
    assert few in conclude(summary)
    assert "not significant" not in conclude(summary)
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


LOW: dict[str, Any] = {"higher": False}
TIED = [*three("adan", 1.0, 1.0, 1.0, **LOW), *three("sgd", 2.0, 2.1, 2.2, **LOW), *three("adam", 1.0, 1.0, 1.0, **LOW)]


@pytest.mark.parametrize(
    ("runs", "begins", "ends"),
    [
        (three("adan", 0.9), "Only adan was run: mean m 0.9000, n=1.", ""),
        (three("adan", 0.9) + three("sgd", None), "Only adan finished: mean m 0.9000, n=1.", ""),
        (TIED, "adan and adam share the lowest mean m, 1.000 (n=3).", ""),
        (three("adan", 0.9, 0.9, 0.9) + three("sgd", None, None, None), "Only adan", "sgd: 3 of 3 diverged."),
        (three("sgd", None, None), "No run finished, so there is nothing to compare.", " sgd: 2 of 2 diverged."),
    ],
)
def test_what_has_no_other_to_be_compared_with(runs: list[RunRecord], begins: str, ends: str) -> None:
    (summary,) = summarize(runs)
    assert conclude(summary).startswith(begins)
    assert conclude(summary).endswith(ends)
    assert winner(summary) is None


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
    assert "not significant" not in conclude(summary)
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
    assert "The difference from adamw is not significant." in text
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


@pytest.mark.parametrize(
    ("origin", "remedy"),
    [
        (Origin(kind="failed", source="gpt"), "no trial has a result, so search other rates"),
        (Origin(kind="here", tuned_for={"steps": 150}), "give the study's [search] the options of these runs"),
    ],
)
def test_a_study_has_another_remedy_than_a_comparison(origin: Origin, remedy: str) -> None:
    """It has no flag --tune."""
    runs = three("adan", 0.9, origin=origin, study="gpt") + three("sgd", 0.5, origin=origin, study="gpt")
    assert caution(summarize(runs)).endswith(f": not a fair comparison; {remedy}.")


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


def test_a_best_rate_at_the_edge_is_flagged() -> None:
    """Once, also where the record of a run says so too, and where the trials are there twice."""

    def study(best: int, times: int = 1, **more: Any) -> str:
        runs = three("adan", 0.9, 0.9, 0.9, **more) + three("sgd", 0.8, 0.8, 0.8, **more)
        return conclude(summarize(runs + times * trials(best))[0])

    for text in (study(2), study(2, times=2), study(2, origin=replace(BY_HAND, at_edge=True), lr=1.0)):
        assert "a better one may lie beyond: adan (1) and sgd (1)." in text
    assert "may lie beyond" not in study(1)
