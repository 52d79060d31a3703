"""Numbers and sentences from records made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adan_bench.records.stats import interval, performance_profile, sensitivity, summarize, to_target
from adan_bench.reports.conclusions import caution, conclude, number, spread, tuning, winner
from adan_bench.spec import UNTUNED, RunConfig, RunRecord


def record(
    optimizer: str = "adan",
    final: float | None = 0.9,
    seed: int = 0,
    lr: float = 0.1,
    role: str = "run",
    curve: tuple[float, ...] = (),
    higher: bool = True,
    workload: str = "w",
    origin: str = "by hand",
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
    )
    facts = {"metric": "m", "higher_is_better": higher, "target": 0.5, "name": workload, "summary": "made up"}
    values = curve or (0.0, final or 0.0)
    metrics: list[dict[str, Any]] = [
        {"kind": "eval", "step": 100 * (i + 1) // len(values), "seconds": float(i + 1), "m": value}
        for i, value in enumerate(values)
    ]
    status = "finished" if final is not None else "diverged"
    result = {"status": status, "step": 100, "seconds": 2.0, "final": {"m": final}, "best": final}
    return RunRecord(Path("nowhere"), config, facts, {"passes": 1}, {}, metrics, result)


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
    assert "no evidence" in text
    assert "better" not in text


def test_a_clear_difference_and_an_unclear_one() -> None:
    records = three("adan", 0.90, 0.91, 0.92) + three("adamw", 0.80, 0.81, 0.8201) + three("adam", 0.95, 0.80, 0.93)
    (summary,) = summarize(records)
    text = conclude(summary)
    assert text.startswith("adan has the highest mean m, 0.9100 (n=3).")
    assert "better than adamw by more than the seeds explain" in text
    assert "The difference from adam is within what the seeds explain" in text


def test_lower_is_better_and_ties() -> None:
    records = three("adan", 1.0, 1.0, 1.0, higher=False) + three("sgd", 2.0, 2.1, 2.2, higher=False)
    (summary,) = summarize(records + three("adam", 1.0, 1.0, 1.0, higher=False))
    assert [o.name for o in summary.optimizers][-1] == "sgd"
    assert conclude(summary).startswith("adan and adam share the lowest mean m, 1.000 (n=3).")


def test_diverged_runs_are_said() -> None:
    (summary,) = summarize(three("adan", 0.9, 0.9, 0.9) + three("sgd", None, None, None))
    assert summary.optimizers[-1].final is None
    assert conclude(summary).endswith("sgd: 3 of 3 diverged.")
    (summary,) = summarize(three("sgd", None, None))
    assert conclude(summary) == "No run finished, so there is nothing to compare. sgd: 2 of 2 diverged."


def test_steps_to_target() -> None:
    assert to_target(record(curve=(0.1, 0.4, 0.5, 0.3))) == (75, 3.0)
    assert to_target(record(curve=(0.1, 0.4))) is None
    curves = [(0.6, 0.6), (0.1, 0.6), (0.1, 0.1)]
    (summary,) = summarize([record(seed=i, curve=curve) for i, curve in enumerate(curves)])
    assert summary.optimizers[0].steps_to_target == 100  # the median of 50, 100 and never
    assert summary.optimizers[0].reached == 2
    (summary,) = summarize([record(seed=i, curve=curve) for i, curve in enumerate(curves[1:])])
    assert summary.optimizers[0].steps_to_target is None


def test_learning_rate_range() -> None:
    """Within 2% of the best, connected to it; a diverged rate ends the range."""
    rates = {1e-4: 0.895, 1e-3: 0.5, 1e-2: 0.885, 1e-1: 0.9, 1.0: 0.8, 10.0: None}
    found = sensitivity([record(final=final, lr=lr, role="tune") for lr, final in rates.items()])
    assert found is not None
    assert (found.best_lr, found.low, found.high, found.at_edge) == (1e-1, 1e-2, 1e-1, False)
    assert found.decades == pytest.approx(1.0)
    lower = sensitivity([record(final=x, lr=lr, role="tune", higher=False) for lr, x in ((1.0, 2.0), (2.0, 2.03))])
    assert lower is not None
    assert (lower.low, lower.high, lower.at_edge) == (1.0, 2.0, True)


def test_performance_profile() -> None:
    records = [record("adan", workload="a", curve=(0.6,) * 4), record("sgd", workload="a", curve=(0.1, 0.6, 0.6, 0.6))]
    records += [record("adan", workload="b", curve=(0.1, 0.6)), record("sgd", workload="b", curve=(0.1, 0.1))]
    profile = performance_profile(summarize(records))
    assert profile == {"adan": [(1.0, 0.5), (1.0, 1.0)], "sgd": [(2.0, 0.5)]}


def test_uneven_tuning_is_said() -> None:
    even = summarize(three("adan", 0.9, 0.9, 0.9) + three("sgd", 0.8, 0.8, 0.8))
    assert "Settings: by hand." in tuning(even)
    assert caution(even) == ""
    uneven = summarize(three("adan", 0.9, 0.9, 0.9) + three("sgd", 0.8, 0.8, 0.8, origin="guessed"))
    assert caution(uneven) == "Tuned differently (by hand; guessed): not a fair comparison."
    trials = summarize([*three("adan", 0.9, 0.9), *three("sgd", 0.8, 0.8), record("adan", role="tune")])
    assert caution(trials) == "Tuned by different numbers of trials (0, 1): not a fair comparison."


@pytest.mark.parametrize("origin", [UNTUNED, f"{UNTUNED}, then --set lr=1"])
def test_an_untuned_comparison_has_no_winner(origin: str) -> None:
    """However clear the numbers are, they say nothing about tuned optimizers."""
    fair = summarize(three("adan", 0.9, 0.91, 0.9) + three("sgd", 0.5, 0.51, 0.5))
    assert "by more than the seeds explain" in conclude(fair[0])
    assert winner(fair[0]) == "adan"
    unfair = summarize(three("adan", 0.9, 0.91, 0.9, origin=origin) + three("sgd", 0.5, 0.51, 0.5, origin=origin))
    assert conclude(unfair[0]).startswith("Untuned: not a fair comparison; add --tune 8. With these settings adan has")
    assert "better" not in conclude(unfair[0])
    assert winner(unfair[0]) is None
    assert caution(unfair) == "Untuned: not a fair comparison; add --tune 8."
    one = summarize(three("adan", 0.9, 0.91, 0.9) + three("sgd", 0.5, 0.51, 0.5, origin=origin))
    assert caution(one).startswith("Untuned (sgd): not a fair comparison")


def test_a_row_is_marked_only_where_the_seeds_support_it() -> None:
    assert winner(summarize(three("adan", 0.9, 0.7, 0.8) + three("sgd", 0.8, 0.8, 0.79))[0]) is None
    assert winner(summarize(three("adan", 0.9, 0.91) + three("sgd", 0.5, 0.51))[0]) is None  # two seeds


def test_a_best_rate_at_the_edge_is_flagged() -> None:
    def study(best: int) -> str:
        trials = [
            record(name, 0.9 if i == best else 0.5, lr=lr, role="tune")
            for name in ("adan", "sgd")
            for i, lr in enumerate((0.01, 0.1, 1.0))
        ]
        return conclude(summarize(three("adan", 0.9, 0.9, 0.9) + three("sgd", 0.8, 0.8, 0.8) + trials)[0])

    assert "a better one may lie beyond: adan (1) and sgd (1)." in study(2)
    assert "may lie beyond" not in study(1)


def test_an_interval_stays_in_the_range_of_its_metric() -> None:
    found = interval([0.97, 0.99, 1.0], within=(0.0, 1.0))
    assert found.high == 1.0
    assert found.half is None
    assert spread(found, []) == "0.9867 [0.9487, 1.000] (n=3)"
    assert spread(interval([0.5, 0.6, 0.7], within=(0.0, 1.0)), []) == "0.6000 ± 0.2484 (n=3)"


def test_numbers() -> None:
    assert number(97.25, 3) == "97.2"
    assert number(float("inf")) == "–"
