"""What docs/tuning.md and `adan-bench suggest` say about the rule is what the records say."""

import statistics

import pytest
import short
from support.pages import flat

from adan import suggest_from_adamw
from adan_bench.studies.study import LIBRARY, read
from adan_bench.studies.suggest import FEWEST, TRUST
from adan_bench.training.optimizers import get_optimizer

TEXT = flat("docs/tuning.md")
TRIED = [case for case in short.cases() if short.suggested(case) is not None]


def test_how_sure_a_suggestion_is():
    cnns = [case for case in TRIED if case.study in short.CNNS]
    others = [case for case in TRIED if case not in cnns]
    near, far = (sum(short.within(short.RULE.rate(case), case) for case in some) for some in (others, cnns))
    assert f"{near} of {len(others)} cases with transformers and an LSTM and in {far} of {len(cnns)} with" in TRUST
    assert f"in {near + far} of {len(TRIED)} cases: {near} of {len(others)} with transformers and the LSTM, " in TEXT
    assert f"{far} of {len(cnns)} with CNNs" in TEXT
    ratios = [case.best / short.RULE.rate(case) for case in cnns]
    assert "2 to 11 times as large" in TEXT
    assert "2 to 11 times as large" in TRUST
    assert (round(min(ratios)), round(max(ratios) + 0.4)) == (2, 11)


def test_what_a_suggestion_costs_and_loses():
    _, _, median, worst = short.score(short.RULE, TRIED)
    assert f"It loses {median:.1%} in the median and {worst:.1%} at worst" in TEXT
    defaults = sum(short.within(get_optimizer(case.optimizer).lr, case) for case in TRIED)
    assert f"default rate is that close in {defaults} cases" in TEXT
    assert short.TRIALS * short.RULE.cost <= short.BUDGET
    steps = [next(iter(case.full.values())).config.steps for case in TRIED]
    assert (min(steps), max(steps)) == (2_000, 5_265)
    assert min(round(short.MADE * case.short[10][0].config.steps) for case in TRIED) == FEWEST


def test_what_the_ratio_loses():
    regrets = [case.regret(rate)[0] for case in short.cases() if (rate := short.flat(case)) is not None]
    assert len(regrets) == 10
    said = f"that loses {statistics.median(regrets):.1%} in the median and {max(regrets):.1%} at worst in the table"
    assert said in TEXT


def test_no_suggestion_diverged_in_a_full_run():
    for case in TRIED:
        diverged = [rate for rate, run in case.full.items() if run.diverged]
        assert short.RULE.rate(case) < min(diverged, default=float("inf"))


def test_choosing_a_rule_does_not_carry_over():
    first, second = short.halves()
    rule = short.chosen(first)
    assert len(short.VARIANTS) == 21
    (near, of, *_), (later, rest, *_) = (short.score(rule, some) for some in (first, second))
    words = {4: "four", 3: "three"}
    some, others = (words[len({case.study for case in half})] for half in (first, second))
    assert f"the best on {some} workloads was within a factor of two in {near} of {of} cases there" in TEXT
    assert f"and {later} of {rest} on the other {others}" in TEXT
    assert "without each family in turn, in {} of {}".format(*short.left_out()) in TEXT


def test_what_longer_models_say_of_whole_runs_of_4_percent():
    rule = short.ShortRule(4, 1.0)
    ratio = {(case.study, case.optimizer): rule.rate(case) / case.best for case in short.cases() if 4 in case.short}
    assert ratio["gpt-30m-again", "adan"] == pytest.approx(0.25, abs=0.02)
    assert ratio["gpt-30m-again", "adamw"] == pytest.approx(0.25, abs=0.02)
    assert f"{ratio['mae-50-full', 'adan']:.1f} times" in TEXT


def test_regret_is_interpolated_in_log_lr():
    case = next(case for case in TRIED if (case.study, case.optimizer) == ("gpt", "adan"))
    rates = list(case.full)
    finals = [run.final for run in case.full.values()]
    best = min(finals)
    assert case.regret(rates[finals.index(best)]) == (0.0, True)
    middle = (rates[0] * rates[1]) ** 0.5
    assert case.regret(middle)[0] == pytest.approx(((finals[0] + finals[1]) / 2 - best) / best)
    assert case.regret(rates[0] / 2) == (case.regret(rates[0])[0], False)


def test_the_defaults_are_the_best_single_rates_of_the_records():
    """AdamW's, and Adan's by the ratio; the best single one of Adan's own runs is next to it."""
    rate = float(f"{short.single('adamw'):.2g}")
    names = [file.name.removesuffix(".toml") for file in LIBRARY.iterdir() if file.name.startswith("default-")]
    assert len(names) == 8
    for name, study in read(names).items():
        ours, adamw, nadamw = (study.optimizers[who].settings for who in ("adan", "adamw", "nadamw"))
        assert adamw["lr"] == nadamw["lr"] == rate, name
        s = suggest_from_adamw(rate, weight_decay=adamw["weight_decay"], total_steps=study.run["steps"])
        b1 = round(max(0.9, 1 - 200 / study.run["steps"]), 3)  # the rule of that time
        assert {**ours, "eps": 1e-8} == {**s.options(), "betas": [b1, *s.betas[1:]]}, name
        assert ours["lr"] == pytest.approx(short.single("adan"), rel=0.15)
