"""Studies as data: what a file may say, which runs it plans, and that they can be killed and resumed."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.forked import Program
from support.learning import chosen, curve
from support.study_files import FIRST, SECOND

from adan_bench.records.stats import summarize
from adan_bench.records.store import read_run, read_runs
from adan_bench.studies.arms import Planner, Search
from adan_bench.studies.study import arms, library, parse, read
from adan_bench.workloads.registry import get_workload


@pytest.fixture
def make(bench: Any, folder: Path, tiny: Path) -> Callable[..., str]:
    """What `adan-bench study` prints as it makes one of the studies."""
    return lambda name, *flags: bench.ran(
        "study", folder / f"{name}.toml", "--script", tiny, "--threads", 1, "--out", folder / "out", *flags
    )


@pytest.mark.usefixtures("inline_pool")
def test_a_study_and_its_follow_up(make: Any, folder: Path) -> None:
    """Trials by one rule, seeds with the best settings, a follow-up with these settings changed."""
    assert "report: " in make("first")
    out = folder / "out" / "first"
    for name in ("adan", "adamw"):
        trials = [read_run(out / name / f"tune-{i:02d}") for i in range(7)]
        assert not (out / name / "tune-07").exists()
        rates = [trial.config.settings["lr"] for trial in trials]
        assert rates[:4] == [0.005, 0.01, 0.02, 0.04]
        assert {(t.config.role, t.config.seed, t.config.steps) for t in trials} == {("tune", 1000, 10)}
        best_of_rates = min(trials[:5], key=lambda t: t.final or 9e9).config.settings["lr"]
        assert rates[5:] == [best_of_rates] * 2
        best = min(trials, key=lambda t: t.final or 9e9).config.settings
        runs = [read_run(out / name / f"seed-{seed}") for seed in range(4)]
        assert all(run.config.settings == best and run.config.steps == 20 for run in runs)
        assert runs[0].config.origin.kind == "here"
        assert (runs[0].config.origin.trials, runs[0].config.origin.tuned_for) == (7, {"steps": 10})

    make("second", "--resume")
    out = folder / "out" / "second"
    names = [f"adamw-lr={lr}-batch_size={size}" for lr in (0.1, 0.2) for size in (8, 32)]
    assert sorted(path.name for path in out.iterdir()) == sorted(["adan-no_prox=True-lr_factor=0.5", *names])
    before = read_run(folder / "out" / "first" / "adan" / "seed-0").config.settings
    config = read_run(out / "adan-no_prox=True-lr_factor=0.5" / "seed-7").config
    assert config.settings == {**before, "no_prox": True, "lr": pytest.approx(before["lr"] / 2, rel=1e-3)}
    assert (config.steps, config.study, config.origin.source) == (30, "second", "first")
    assert config.origin.tuned_for == {"steps": 10}
    other = read_run(out / names[0] / "seed-0").config
    assert (other.batch_size, other.origin.tuned_for) == (8, {"steps": 10, "batch_size": 16})
    assert len(read_runs(folder / "out" / "first")[0]) == 22  # nothing of the first study was made again

    third = SECOND.replace('"first"', '"second"').replace("steps = 30", "steps = 10")
    (folder / "third.toml").write_text(third.replace("lr = [0.1, 0.2]", "weight_decay = [0.3]"), encoding="utf-8")
    make("third", "--resume")
    out = folder / "out" / "third"
    origin = read_run(out / "adan-no_prox=True-lr_factor=0.5" / "seed-0").config.origin
    assert (origin.source, origin.tuned_for, origin.lr_factor) == ("first", {}, 0.25)
    changed = read_run(out / "adamw-weight_decay=0.3-batch_size=8" / "seed-0").config.origin.changed
    assert changed == {"lr": 0.1, "weight_decay": 0.3}


@pytest.mark.usefixtures("inline_pool")
def test_a_follow_up_alone_makes_the_search_that_it_needs_and_no_seeds(make: Any, folder: Path) -> None:
    (folder / "second.toml").write_text(SECOND.rpartition("[[runs]]")[0], encoding="utf-8")
    make("second")
    made = read_runs(folder / "out" / "first")[0]
    assert len(made) == 7
    assert {(record.config.role, record.config.optimizer) for record in made} == {("tune", "adan")}


@pytest.mark.usefixtures("inline_pool")
def test_runs_on_the_tuning_seed(make: Any, folder: Path) -> None:
    """As a sweep of learning rates has them: made and judged as trials are, of which they are none."""
    text = SECOND.replace("seeds = [0, 7]", 'seeds = "tuning"').replace("steps = 30", "")
    text = text.replace("{ lr = [0.1, 0.2], batch_size = [8, 32] }", "{ lr_factor = [0.5, 0.25] }")
    (folder / "second.toml").write_text(text, encoding="utf-8")
    make("first")
    make("second", "--resume")
    made = read_runs(folder / "out" / "second")[0]
    assert {(record.config.role, record.config.seed) for record in made} == {("tune", 1000)}
    both, first = (summarize(read_runs(path)[0]) for path in (folder / "out", folder / "out" / "first"))
    assert both == first


@pytest.mark.parametrize(
    ("name", "more", "settings"),
    [
        ("sgd-momentum", "", {"momentum": 0.9}),
        ("sgd-momentum", ", momentum = 0.5", {"momentum": 0.5}),
        ("amsgrad", "", {"amsgrad": True}),
        ("adamw:amsgrad=true", "", {"amsgrad": True, "weight_decay": 0.02}),
    ],
)
def test_an_optimizer_is_what_its_name_says(
    folder: Path, tiny: Path, name: str, more: str, settings: dict[str, Any]
) -> None:
    """In trials and runs: what the file does not say is as in a comparison."""
    text = f'summary = "a"\nworkload = "tiny"\n[optimizers."{name}"]\nsettings = {{ lr = 0.1{more} }}\n'
    for search in ("", "[search]\n"):
        (folder / "own.toml").write_text(text + search, encoding="utf-8")
        groups = arms(read([str(folder / "own.toml")]), ["own"], chosen(script=tiny), folder / "out")
        jobs = Planner(groups)(frozenset())
        assert len(jobs) >= 3
        assert all({**job.config.settings, "lr": 0} == {**settings, "lr": 0} for job in jobs)


STARTED = """
summary = "Starts from other weights"
workload = "tiny"
seeds = 2
start = {{ study = "first"{optimizer} }}

[run]
steps = 20

[search]
trials = 1

[optimizers.{name}]
settings = {{ lr = 0.01 }}
"""


@pytest.mark.usefixtures("inline_pool")
@pytest.mark.parametrize(
    ("optimizer", "name", "starts"),
    [("", "adamw", ["adamw/seed-0", "adamw/seed-1"]), ("adan", "adamw", ["adan/seed-0"] * 2)],
)
def test_weights_of_another_study(make: Any, folder: Path, optimizer: str, name: str, starts: list[str]) -> None:
    """Each from its own runs, seed by seed, or all from the first seed of one optimizer; nothing else is made there."""
    said = f', optimizer = "{optimizer}"' if optimizer else ""
    (folder / "third.toml").write_text(STARTED.format(optimizer=said, name=name), encoding="utf-8")
    make("third")
    configs = [read_run(folder / "out" / "third" / name / f"seed-{seed}").config for seed in (0, 1)]
    assert [config.init for config in configs] == [folder / "out" / "first" / start for start in starts]
    assert all(config.origin.tuned_for == {} for config in configs)
    made = read_runs(folder / "out" / "first")[0]
    assert {r.config.optimizer for r in made} == {Path(starts[0]).parent.name}
    assert all((r.path / "weights.pt").exists() for r in made if r.config.role == "run")


@pytest.mark.usefixtures("inline_pool")
def test_killed_in_the_middle_of_its_search(bench: Any, folder: Path, tiny: Path) -> None:
    """With kill -9, the workers too: the final records of a study that nobody disturbed, and none is made twice."""
    whole, killed = folder / "whole", folder / "killed"
    text = FIRST.replace("trials = 7", "trials = 5").replace("seeds = 4", "seeds = 2")
    (folder / "first.toml").write_text(text, encoding="utf-8")
    words = ["study", str(folder / "first.toml"), "--script", str(tiny), "--threads", "1", "--jobs", "2"]
    bench.ran(*words, "--out", whole)
    program = Program([sys.executable, "-m", "adan_bench.cli", *words, "--out", str(killed)])
    deadline = time.monotonic() + 120
    while len(list(killed.rglob("tune-*/result.json"))) < 3:
        assert time.monotonic() < deadline
        assert program.poll() is None
        time.sleep(0.01)
    os.killpg(program.pid, signal.SIGKILL)
    program.wait()
    before = {path: path.stat().st_mtime_ns for path in killed.rglob("result.json")}
    assert not [path for path in before if "seed-" in str(path)]
    assert "add --resume" in bench.refused(*words, "--out", killed)
    assert bench(*words, "--out", killed, "--resume")[0] == 0
    assert all(path.stat().st_mtime_ns == written for path, written in before.items())
    paths = sorted(file.parent.relative_to(whole) for file in whole.rglob("result.json"))
    assert len(paths) == 14
    assert paths == sorted(file.parent.relative_to(killed) for file in killed.rglob("result.json"))
    for path in paths:
        assert curve(whole / path) == curve(killed / path)
        assert read_run(whole / path).config.settings == read_run(killed / path).config.settings


def test_the_bundled_studies(bench: Any) -> None:
    text = bench.ran("list", "studies", "--json")
    rows = json.loads(text)
    assert {row["name"] for row in rows} == set(library())
    assert next(row["seeds"] for row in rows if row["name"] == "gpt-117m") == "1 seed"
    assert len(rows) > 50
    assert all(Path(row["file"]).exists() for row in rows)


@pytest.mark.parametrize("name", library())
def test_a_bundled_study_can_be_planned(name: str, tmp_path: Path) -> None:
    """Its workloads, optimizers, settings and options exist. The data folder holds empty files."""
    told = read([name])
    for study in told.values():
        for file in get_workload(study.workload, study.run.get("scale", "small")).needs if study.workload else ():
            needed = tmp_path / file.split(" or ")[0]
            needed.parent.mkdir(parents=True, exist_ok=True)
            needed.touch()
    groups = arms(told, [name], chosen(data=tmp_path), tmp_path / "out")
    jobs = Planner(groups)(frozenset())
    last = told[name]
    assert groups[-1]
    assert all(arm.seeds == last.seeds for arm in groups[-1])
    if not any(study.trials for study in told.values()):
        assert len(jobs) == sum(len(arm.seeds) for arm in groups[-1])
    else:
        assert all(job.config.role == "tune" for job in jobs if job.config.study != last.name or last.trials)


def test_ranks_reach_every_run_of_a_study(folder: Path, tiny: Path) -> None:
    told = read([str(folder / "first.toml")])
    groups = arms(told, ["first"], chosen(script=tiny, ranks=2, parallel="ddp"), folder / "out")
    jobs = Planner(groups)(frozenset())
    assert {(job.config.ranks, job.config.parallel) for job in jobs} == {(2, "ddp")}


def test_seeds_that_two_studies_need_of_a_third(tmp_path: Path) -> None:
    """Trials start from Adam's first seed, reported runs each from its own: Adam's other seeds are made, too."""
    for file in get_workload("english-cola", "small").needs:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    name = "bert-cola-again-own"
    pretraining, trials, own = arms(read([name]), [name], chosen(data=tmp_path), tmp_path / "out")
    assert {arm.base.optimizer: list(arm.seeds) for arm in pretraining} == {"adan": [0, 1, 2], "adam": [0, 1, 2]}
    assert {(arm.start and arm.start.base.optimizer, arm.start_seed) for arm in trials} == {("adam", 0)}
    assert [(arm.start and arm.start.base.optimizer, arm.start_seed) for arm in own] == [("adan", None), ("adam", None)]


def test_the_search_goes_beyond_an_edge_or_between_neighbors(config: Any, tmp_path: Path) -> None:
    """Half, one, two and four times the rate; then one more, next to the best; then the alternatives at the best."""

    def record(lr: float, error: float) -> Any:
        from adan_bench.config import RunRecord

        facts = {"metric": "error", "higher_is_better": False}
        result = {"status": "finished", "final": {"error": error}, "step": 1, "seconds": 1.0}
        return RunRecord(tmp_path, config(settings={"lr": lr}, role="tune"), facts, {}, {}, [], result)

    search = Search((0.5, 1.0, 2.0, 4.0), 7, {}, ({"beta": 1}, {"beta": 2}), refine=True)
    assert [settings["lr"] for settings in search.following([])] == [0.5, 1.0, 2.0, 4.0]
    tried = [record(0.5, 4), record(1.0, 3), record(2.0, 2), record(4.0, 1)]
    assert search.following(tried) == [{"lr": 8.0}]
    assert search.following([record(0.5, 1), *tried[1:3], record(4.0, 5)]) == [{"lr": 0.25}]
    assert search.following([record(0.5, 4), record(1.0, 2), record(2.0, 1), record(4.0, 3)]) == [{"lr": 1.414}]
    assert search.following([*tried, record(8.0, 0.5)]) == [{"lr": 8.0, "beta": 1}, {"lr": 8.0, "beta": 2}]
    assert search.following([*tried, *(record(8.0, 0.5),) * 3]) == []


def test_what_the_page_says_of_a_file_is_true(tmp_path: Path) -> None:
    """The examples of docs/studies.md are a study, the part of one that searches ranges, and a follow-up."""
    page = (Path(__file__).parents[2] / "docs" / "studies.md").read_text(encoding="utf-8")
    names, texts = ("vit-25", "field", "longer"), re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    for name, text in zip(names, texts, strict=True):
        start = 'summary = "Ranges"\nworkload = "cifar-vit"\n' if name == "field" else ""
        (tmp_path / f"{name}.toml").write_text(start + text, encoding="utf-8")
    assert parse(tmp_path / "vit-25.toml").trials == 7
    search = parse(tmp_path / "field.toml").optimizers["adan"].search
    assert (search.trials, search.confirm, search.seed, search.options) == (12, 2, 1000, ("warmup",))
    follow = parse(tmp_path / "longer.toml")
    assert (follow.follows, len(follow.variants), follow.variants[1].lr_factor) == ("vit-25", 3, 1.414)
