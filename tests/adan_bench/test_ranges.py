"""Searches over ranges: points, confirmation on more seeds, ranges that grow for all, second searches.

Most runs here are records that are written without training, with a result that the test says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.learning import chosen
from support.study_files import AGAIN, FIELD

from adan_bench.config import CONFIRMATIONS, TUNING_SEED, RunConfig
from adan_bench.records.stats import best_trial
from adan_bench.records.store import RunStore, read_run, read_runs
from adan_bench.reports.comparison import write_report, write_tuning
from adan_bench.studies.arms import Planner
from adan_bench.studies.ranges import MOST_GROWTHS, RangeSearch, coordinates
from adan_bench.studies.study import arms, library, parse, read
from adan_bench.training.optimizers import get_optimizer
from adan_bench.workloads.registry import get_workload

CENTERS = {"adan": 0.008, "adamw": 0.0008}
Score = Callable[[RunConfig], float]


def planner_of(folder: Path, tiny: Path, name: str = "field", out: str = "out", resume: bool = False) -> Planner:
    told = read([str(folder / f"{name}.toml")])
    return Planner(arms(told, [name], chosen(script=tiny), folder / out), resume)


def make(planner: Planner, score: Score, most: int = 10_000) -> dict[str, RunConfig]:
    """Write the records of the runs that a planner tells, until it tells no more; an infinite score is a divergence.

    The runs by the names of their folders, in the order in which they were told.
    """
    made: dict[Path, RunConfig] = {}
    facts = get_workload("tiny").facts()
    while new := [job for job in planner(set(made)) if not RunStore(job.path).ended][: most - len(made)]:
        for job in new:
            value, store = score(job.config), RunStore(job.path)
            store.create(job.config, facts, get_optimizer(job.config.optimizer).facts(), {"packages": {}})
            status = "finished" if math.isfinite(value) else "diverged"
            end, final = {"step": job.config.steps, "seconds": 1.0}, {"error": value}
            store.append({"kind": "eval", **end, **final})
            store.finish({"status": status, **end, "final": final, "best": None})
            made[job.path] = job.config
    return {"/".join(path.parts[-2:]): config for path, config in made.items()}


def report_of(folder: Path) -> str:
    return write_report(read_runs(folder / "out")[0], folder)[0].with_suffix(".md").read_text(encoding="utf-8")


def in_the_middle(config: RunConfig) -> float:
    """Best at the center of the rates, whatever the seed."""
    return 1 + abs(math.log(config.settings["lr"] / CENTERS[config.optimizer]))


def trials(made: dict[str, RunConfig], optimizer: str) -> list[RunConfig]:
    """The points of an optimizer, without their confirmations."""
    return [config for path, config in made.items() if path.startswith(f"{optimizer}/tune") and path.count("-") == 1]


def test_points_of_all_ranges_at_once(folder: Path, tiny: Path) -> None:
    """Trial i has the same b1, decay and warm-up for every optimizer, and its rate at the same place of its range."""
    made = make(planner_of(folder, tiny), in_the_middle)
    adan, adamw = trials(made, "adan"), trials(made, "adamw")
    assert len(adan) == len(adamw) == 12
    for a, b in zip(adan, adamw, strict=True):
        assert a.settings["lr"] == pytest.approx(10 * b.settings["lr"], rel=1e-3)
        assert (a.settings["betas"][0], a.settings["weight_decay"]) == (
            b.settings["betas"][0],
            b.settings["weight_decay"],
        )
        assert (a.warmup, a.settings["betas"][1:]) == (b.warmup, [0.92, 0.99])
        assert (a.role, a.seed, a.steps, a.study) == ("tune", 1000, 10, "field")
    for values, (low, high) in (
        ([c.settings["lr"] for c in adan], (0.001, 0.064)),
        ([1 - c.settings["betas"][0] for c in adan], (0.02, 0.2)),
        ([c.settings["weight_decay"] for c in adan], (0.01, 1.0)),
    ):
        shares = [math.log(value / low) / math.log(high / low) for value in values]
        assert all(-1e-3 <= share <= 1 + 1e-3 for share in shares)
        assert {int(3 * share) for share in shares} == {0, 1, 2}, "a third of the range without a trial"
    assert {c.warmup for c in adan} == {0.02, 0.05, 0.1}


def test_points_depend_on_the_seed_alone() -> None:
    """To the digit: a study that is resumed in another year must find the trials that it has made."""
    assert [round(x, 6) for x in coordinates(1000, 5)[:3]] == [0.248048, 0.833618, 0.586376]
    assert coordinates(1000, 5)[:5] != coordinates(2000, 5)[:5]


def best_two(folder: Path, tiny: Path) -> list[RunConfig]:
    """The first trials of Adan that are best by the first seed."""
    told = [job.config for job in planner_of(folder, tiny)(frozenset()) if job.config.optimizer == "adan"]
    return sorted(told, key=in_the_middle)[:2]


def test_some_optimizers_searched_again(folder: Path, tiny: Path) -> None:
    """They have the points that they have among all, also where a range is of another optimizer."""
    text = FIELD.replace("[search.ranges]", "[search.ranges]\nb2 = [0.9, 0.99]")
    text = text.replace('["b1", 0.92, 0.99]', '["b1", 0.92, "b2"]')
    (folder / "field.toml").write_text(text, encoding="utf-8")
    (folder / "again.toml").write_text(AGAIN + "[run]\nsteps = 20\n", encoding="utf-8")
    every = make(planner_of(folder, tiny, "again"), in_the_middle)
    (folder / "again.toml").write_text('optimizers = ["adamw"]' + AGAIN, encoding="utf-8")
    some = make(planner_of(folder, tiny, "again", "some"), in_the_middle)
    assert {path.split("/")[0] for path in some} == {"adamw"}
    assert [c.settings for c in trials(some, "adamw")] == [c.settings for c in trials(every, "adamw")]


def test_trials_come_in_the_order_of_the_file(folder: Path, tiny: Path) -> None:
    first = planner_of(folder, tiny)(set())
    assert [job.config.optimizer for job in first] == ["adan"] * 12 + ["adamw"] * 12


def test_the_best_two_again_and_the_best_mean_wins(folder: Path, tiny: Path) -> None:
    """The second best of the first seed is better on the two others, and has its own warm-up in the reported runs."""
    best, second = best_two(folder, tiny)
    assert best.warmup != second.warmup

    def turned(config: RunConfig) -> float:
        again = config.seed > TUNING_SEED  # on which both are worse than the third, which nobody confirms
        return in_the_middle(config) + again * (4 if config.settings == best.settings else 3)

    made = make(planner_of(folder, tiny), turned)
    again = [config for path, config in made.items() if path.startswith("adan/tune") and path.count("-") == 3]
    assert sorted((c.settings["lr"], c.seed) for c in again) == sorted(
        (c.settings["lr"], 1000 + i) for c in (best, second) for i in (1, 2)
    )
    assert all(c.role == "tune" and c.steps == 10 for c in again)
    for seed in (0, 1):
        run = made[f"adan/seed-{seed}"]
        assert (run.settings, run.warmup, run.steps, run.role) == (second.settings, second.warmup, 20, "run")
        assert (run.origin.trials, run.origin.confirmed, run.origin.seed) == (12, 2, 1000)
        assert (run.origin.searched, run.origin.tuned_for, run.origin.at_edge) == (("warmup",), {"steps": 10}, False)


def test_a_point_that_diverges_on_another_seed_loses(folder: Path, tiny: Path) -> None:
    best, second = best_two(folder, tiny)

    def lost(config: RunConfig) -> float:
        diverges = config.seed == 1002 and config.settings == best.settings
        return math.inf if diverges else in_the_middle(config)

    assert make(planner_of(folder, tiny), lost)["adan/seed-0"].settings == second.settings


@pytest.mark.parametrize(("end", "side"), [(1, "high"), (-1, "low")])
def test_a_rate_at_an_end_extends_the_range_of_every_optimizer(folder: Path, tiny: Path, end: int, side: str) -> None:
    """AdamW's best is beyond its range, Adan's in the middle: four more trials for both, in the new part."""
    beyond = {"adan": 0.008, "adamw": 0.0008 * 16.0**end}  # the middle of the new part is 16 times the old center

    def score(config: RunConfig) -> float:
        return 1 + abs(math.log(config.settings["lr"] / beyond[config.optimizer]))

    made = make(planner_of(folder, tiny), score)
    for name, low in (("adan", 0.001), ("adamw", 0.0001)):
        new = [config.settings["lr"] for config in trials(made, name)[12:]]
        assert len(new) == 4
        ends = (64 * low, 256 * low) if side == "high" else (low / 4, low)
        assert all(ends[0] * 0.999 <= lr <= ends[1] * 1.001 for lr in new)
        assert made[f"{name}/seed-0"].origin.trials == 16
    best = min(trials(made, "adamw"), key=score)
    assert made["adamw/seed-0"].settings == best.settings
    assert best in trials(made, "adamw")[12:]
    confirmed = [path for path in made if path.startswith("adamw/tune") and path.count("-") == 3]
    assert len(confirmed) > 2 * CONFIRMATIONS, "the best two have changed"
    assert sum(path.startswith("adan/tune") for path in made) == 16 + 2 * CONFIRMATIONS


def test_an_end_is_near_within_a_factor_of_one_and_a_half(folder: Path, tiny: Path) -> None:
    planner = planner_of(folder, tiny)
    make(planner, in_the_middle)
    arm = planner.groups[0][0]
    assert isinstance(arm.search, RangeSearch)
    assert arm.tried
    lr = min(record.config.settings["lr"] for record in arm.tried if record.final == best_trial(arm.tried).final)
    for factor, near in ((1.49, True), (1.51, False)):
        low, high = (replace(arm.search, rates=ends) for ends in ((lr / factor, 1.0), (1e-6, lr * factor)))
        assert low.edges(arm.tried) == ["low"] * near
        assert high.edges(arm.tried) == ["high"] * near
        assert (low.origin(arm.tried).at_edge, high.origin(arm.tried).at_edge) == (near, near)


def test_ranges_grow_twice_at_most_on_each_side(folder: Path, tiny: Path) -> None:
    """The record then says that a better rate may lie beyond."""
    made = make(planner_of(folder, tiny), lambda config: 1 / config.settings["lr"])
    assert len(trials(made, "adan")) == len(trials(made, "adamw")) == 12 + 4 * MOST_GROWTHS
    assert max(c.settings["lr"] for c in trials(made, "adan")) <= 0.064 * 4**MOST_GROWTHS
    assert made["adan/seed-0"].origin.at_edge
    assert "At the edge of the learning rates that were tried" in report_of(folder)


def test_reported_runs_wait_for_the_trials_of_all(folder: Path, tiny: Path) -> None:
    """And a study that is cut off anywhere, and resumed, makes the same runs."""
    score: Score = lambda config: 1 / config.settings["lr"] if config.optimizer == "adamw" else in_the_middle(config)  # noqa: E731
    whole = make(planner_of(folder, tiny, out="whole"), score)
    order = ["seed-" in path and "tune" not in path for path in whole]
    assert order == sorted(order)
    assert planner_of(folder, tiny).expected == 2 * (12 + 2 * CONFIRMATIONS + 2)
    parts: dict[str, RunConfig] = {}
    for most in (5, 9, 15, 3, 1000):
        parts |= make(planner_of(folder, tiny, resume=True), score, most)
    assert parts.keys() == whole.keys()
    assert all(parts[path].identity() == whole[path].identity() for path in whole)
    again = planner_of(folder, tiny, resume=True)
    assert {job.done_before for job in again(frozenset())} == {True}
    assert again.expected == len(whole)


def test_where_nothing_has_a_result(folder: Path, tiny: Path) -> None:
    """An optimizer of which all trials diverge has nothing to confirm; it keeps the centers, and others go on."""
    made = make(planner_of(folder, tiny), lambda c: math.inf if c.optimizer == "adan" else in_the_middle(c))
    assert sum(path.startswith("adan/tune") for path in made) == 12
    assert made["adan/seed-0"].settings["lr"] == 0.008
    assert (made["adan/seed-0"].origin.kind, made["adan/seed-0"].origin.source) == ("failed", "field")
    assert made["adamw/seed-0"].origin.trials == 12
    assert "Untuned (adan): not a fair comparison; no trial has a result, so search other rates." in report_of(folder)
    text = 'summary = "Longer"\nfollows = "field"\n[[runs]]\noptimizer = "adan"\n'
    (folder / "longer.toml").write_text(text, encoding="utf-8")
    assert make(planner_of(folder, tiny, "longer"), in_the_middle)["adan/seed-0"].origin.flaw == "untuned"


def test_a_second_search_is_independent_and_can_be_told(folder: Path, tiny: Path) -> None:
    first = make(planner_of(folder, tiny), in_the_middle)
    second = make(planner_of(folder, tiny, "again"), in_the_middle)
    rates = [{c.settings["lr"] for c in trials(made, "adan")} for made in (first, second)]
    assert not rates[0] & rates[1]
    assert {c.seed for c in first.values()}.isdisjoint(c.seed for c in second.values())
    assert {c.seed for path, c in second.items() if "tune" in path} == {2000, 2001, 2002}
    assert (second["adan/seed-5"].study, second["adan/seed-5"].origin.seed) == ("again", 2000)
    report = report_of(folder)
    for seed in (1000, 2000):
        text = (
            f"tuned here (warm-up included) in 12 trials with seed {seed}, the best 2 again with seeds {seed + 1} and"
        )
        assert text in report
    assert "tuning trials" in report


def test_what_a_report_says(folder: Path, tiny: Path) -> None:
    """One table though the warm-ups differ, and the truth on how many trials and seeds there were."""

    def score(config: RunConfig) -> float:
        wanted = 0.02 if config.optimizer == "adan" else 0.1
        return in_the_middle(config) + 5 * (config.warmup != wanted) + 1e-3 * config.seed

    (folder / "field.toml").write_text(FIELD.replace("\nsteps = 10", ""), encoding="utf-8")
    made = make(planner_of(folder, tiny), score)
    assert {made["adan/seed-0"].warmup, made["adamw/seed-0"].warmup} == {0.02, 0.1}
    report = report_of(folder)
    assert report.count("\n## tiny") == 1
    assert "Every optimizer had 12 tuning trials, of which the best 2 were run on more seeds" in report
    assert "tuned warm-up" in report
    assert "warmup 0.02" in report
    assert "not a fair comparison" not in report
    tuned, _ = write_tuning([r for r in read_runs(folder / "out")[0] if r.config.role == "tune"], folder)
    page = tuned.with_suffix(".md").read_text(encoding="utf-8")
    assert page.count("| 12, the best with 3 seeds |") == 2
    assert "24 trials" in page


def test_a_follow_up_takes_the_options_that_were_searched(folder: Path, tiny: Path) -> None:
    text = 'summary = "Longer"\nfollows = "field"\nseeds = 1\n[run]\nsteps = 30\n[[runs]]\noptimizer = "adan"\n'
    (folder / "longer.toml").write_text(text + '[[runs]]\noptimizer = "adan"\nrun = { warmup = 0.3 }\n', "utf-8")
    made = make(planner_of(folder, tiny, "longer"), in_the_middle)
    assert len(trials(made, "adamw")) == 12, "its rates decide whether all ranges grow"
    best = min(trials(made, "adan"), key=in_the_middle)
    runs = [config for config in made.values() if config.study == "longer"]
    assert [(c.warmup, c.settings) for c in runs] == [(best.warmup, best.settings), (0.3, best.settings)]
    assert [c.origin.searched for c in runs] == [("warmup",), ()]
    assert [c.origin.tuned_for.get("warmup") for c in runs] == [None, best.warmup]


@pytest.mark.usefixtures("inline_pool")
def test_a_search_over_ranges_that_trains(bench: Any, folder: Path, tiny: Path) -> None:
    """A variant keeps what its name says."""
    text = FIELD.replace("trials = 12", "trials = 3").replace("[optimizers.adan]", '[optimizers."adan:no_prox=true"]')
    (folder / "field.toml").write_text(text.replace("steps = 20", "steps = 10"), encoding="utf-8")
    arguments = ("--script", tiny, "--threads", 1, "--out", folder / "out")
    bench.ran("study", folder / "field.toml", *arguments)
    runs = [r for r in read_runs(folder / "out")[0] if "prox" in r.config.name]
    assert {r.config.settings["no_prox"] for r in runs} == {True}
    run = read_run(next(r.path for r in runs if r.config.role == "run"))
    assert run.status == "finished"
    assert run.config.warmup in (0.02, 0.05, 0.1)
    assert run.config.origin.tuned_for == {}
    bench.ran("study", folder / "field.toml", *arguments, "--resume")


@pytest.mark.parametrize("name", [name for name in library() if name.startswith("field-")])
def test_the_field_is_searched_by_the_protocol(name: str) -> None:
    """docs/protocol.md: 12 trials, the best two confirmed, one range for what is shared, rates over a factor of 64."""
    study, gpt = parse(library()[name]), parse(library()["field-gpt"])
    searches = {key: entry.search for key, entry in study.optimizers.items() if entry.search}
    least, field = {"adan", "adamw", "muon"}, gpt.optimizers.keys()
    assert field == {*least, "soap", "nadamw", "schedule-free", "ademamix", "mars", "lion"}
    assert searches.keys() == field if name == "field-gpt" else least <= searches.keys() <= field
    for key, search in searches.items():
        low, high = search.rates
        assert high / low == pytest.approx(64)
        assert search.ranges == gpt.optimizers["adan"].search.ranges
        assert (search.trials, search.confirm, search.options) == (12, 2, ("warmup",))
        assert search.start["weight_decay"] == "decay"
        assert {"b1", "b2"} <= {*search.start["betas"], search.start.get("momentum")}
        assert search.rates == gpt.optimizers[key].search.rates
    assert searches["adan"].ranges["warmup"] == {"choice": [0.02, 0.05, 0.1]}
    assert len(study.seeds) == 5
    if name.endswith("-again"):
        first = parse(library()[name.removesuffix("-again")])
        assert not {*study.seeds} & {*first.seeds}
        assert searches["adan"].seed != first.optimizers["adan"].search.seed


def test_no_bundled_study_reports_a_seed_of_trials() -> None:
    studies = [parse(file) for file in library().values()]
    assert all(max(study.seeds) < TUNING_SEED or study.judged_by_validation for study in studies)
    assert all(e.search.seed >= TUNING_SEED for s in studies for e in s.optimizers.values() if e.search)
