"""What makes a run another run, with which an old one does not go on, and what does not."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.learning import AtStep, curve, killed_run, settings
from support.scripts import renamed

from adan_bench.errors import UsageError
from adan_bench.records.environment import describe
from adan_bench.records.stats import summarize
from adan_bench.records.store import RunStore, read_run, read_runs, write_json
from adan_bench.reports.comparison import environments
from adan_bench.training.jobs import Job, record_failure
from adan_bench.training.scripts import load_script
from adan_bench.training.trainer import Trainer, run
from adan_bench.training.worker import perform
from adan_bench.workloads.registry import get_workload


def test_resume_of_another_run_is_refused(config: Any, tmp_path: Path) -> None:
    run(config(steps=20), RunStore(tmp_path / "a"))
    with pytest.raises(UsageError, match="steps: 20 there, 30 now"):
        run(config(steps=30), RunStore(tmp_path / "a"), resume=True)
    with pytest.raises(UsageError, match="already holds a run"):
        run(config(steps=20), RunStore(tmp_path / "a"))


def test_a_run_goes_on_with_the_data_that_it_began_with(config: Any, tmp_path: Path) -> None:
    """The note of the task says what they are, wherever they lie; without a note the folder may not be another."""
    settings, store, file = config(steps=60, checkpoint_every=7), RunStore(tmp_path / "a"), "environment.json"
    killed_run(settings, store.path, 20)
    before, kept = curve(store.path), json.loads((store.path / file).read_text(encoding="utf-8"))
    write_json(store.path / file, {**kept, "data": "others"})
    with pytest.raises(UsageError, match=r"data \(--data None: others; now --data None: made up\); give the same"):
        run(settings, RunStore(store.path), resume=True)
    assert curve(store.path) == before
    write_json(store.path / file, {**kept, "data": ""})
    store.check_data("", tmp_path)  # a workload that reads no data, in a shell with ADAN_DATA
    facts = json.loads((store.path / "config.json").read_text(encoding="utf-8"))
    facts["config"]["data"] = "/elsewhere"
    write_json(store.path / "config.json", facts)
    with pytest.raises(UsageError, match=r"--data /elsewhere: no note; now --data .*: no note"):
        store.check_data("", tmp_path)
    write_json(store.path / file, kept)
    run(replace(settings, data=tmp_path), store, resume=True)
    assert read_run(store.path).status == "finished"


@pytest.mark.usefixtures("inline_pool")
def test_other_weights_at_the_start_are_another_run(bench: Any, tiny: Path, tmp_path: Path) -> None:
    """Their content decides, not their path."""
    options = ("compare", "tiny", "--script", tiny, "--optimizers", "sgd", "--steps", 4, "--out", tmp_path / "a")
    weights, moved = tmp_path / "w.pt", tmp_path / "moved.pt"
    torch.save(get_workload("tiny").task().model.state_dict(), weights)
    bench.ran(*options, "--init", weights, "--seeds", 1)
    shutil.copy(weights, moved)
    bench.ran(*options, "--init", moved, "--seeds", 2, "--resume")
    torch.save({name: value + 1 for name, value in torch.load(weights).items()}, weights)
    err = bench.refused(*options, "--init", weights, "--seeds", 3, "--resume")
    assert f"the weights of --init {weights} are others" in err
    assert len(read_runs(tmp_path / "a")[0]) == 2


def test_weights_that_change_under_way_fail_the_run(config: Any, tmp_path: Path) -> None:
    torch.save({}, tmp_path / "w.pt")
    with pytest.raises(UsageError, match=r"--init .*w\.pt: it has changed since the study began"):
        Trainer(config(init=tmp_path / "w.pt", init_sha256="0" * 64))


def test_other_jobs_keep_the_threads_of_a_run(config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run goes on with fewer --jobs and its own threads, so to the bit; with --threads it says so."""
    monkeypatch.setattr("adan_bench.training.configure.cores", lambda: 4)
    settings = config(steps=60, checkpoint_every=7, log_every=3, threads=0, jobs=4)
    run(settings, RunStore(tmp_path / "a"))
    assert read_run(tmp_path / "a").config.threads == 1
    killed_run(settings, tmp_path / "b", 20)
    killed_run(settings, tmp_path / "c", 20)
    run(replace(settings, jobs=1), RunStore(tmp_path / "b"), resume=True)
    assert torch.get_num_threads() == 1
    assert [line for line in curve(tmp_path / "b") if line["kind"] != "resume"] == curve(tmp_path / "a")
    run(replace(settings, jobs=1, threads=2), RunStore(tmp_path / "c"), resume=True)
    assert torch.get_num_threads() == 2
    (note,) = [line for line in curve(tmp_path / "c") if line["kind"] == "resume"]
    assert note["threads"] == 2
    torch.set_num_threads(1)


@pytest.mark.usefixtures("inline_pool")
def test_a_study_goes_on_with_fewer_jobs(
    bench: Any, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adan_bench.training.configure.cores", lambda: 2)
    options = ("compare", "tiny", "--script", tiny, "--optimizers", "adan", "--steps", 20, "--out", tmp_path / "a")
    bench.ran(*options, "--seeds", 1, "--jobs", 2)
    bench.ran(*options, "--seeds", 2, "--jobs", 1, "--resume")
    assert [r.config.threads for r in read_runs(tmp_path / "a")[0]] == [1, 2]
    torch.set_num_threads(1)


@pytest.mark.usefixtures("inline_pool")
def test_a_script_that_was_edited_is_another_run(bench: Any, tiny: Path, tmp_path: Path) -> None:
    """Its content decides, not its path; a study refuses to mix two models, before it makes a run."""
    script, moved = (renamed(tiny, tmp_path / name, "edited") for name in ("mine.py", "moved.py"))
    options = ("--optimizers", "adan", "--steps", 20, "--out", tmp_path / "a")
    bench.ran("compare", "edited", "--script", script, *options, "--seeds", 1)
    bench.ran("compare", "edited", "--script", moved, *options, "--seeds", 1, "--resume")
    renamed(tiny, script, "edited", ("nn.Tanh()", "nn.ReLU()"))
    err = bench.refused("compare", "edited", "--script", script, *options, "--seeds", 2, "--resume")
    made = tmp_path / "a" / "edited" / "adan" / "seed-0"
    assert f"{made} holds another run (the script {script} has changed" in err
    assert len(read_runs(tmp_path / "a")[0]) == 1


def test_a_script_that_is_edited_under_way_fails_the_run(tiny: Path, tmp_path: Path) -> None:
    script = renamed(tiny, tmp_path / "mine.py", "edited")
    load_script(script)
    config = settings("edited", script=script)
    script.write_text(script.read_text(encoding="utf-8") + "# edited\n", encoding="utf-8")
    result = perform(Job(config, tmp_path / "a"))
    assert result["status"] == "failed"
    assert "it has changed since the study began" in result["error"]
    earlier = replace(config, script_sha256="")  # of a record of an earlier version
    assert not config.differences(earlier)
    assert config.differences(replace(config, script_sha256="0" * 64)) == ["script_sha256"]


def test_a_run_that_goes_on_elsewhere_says_so(config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what has changed there, each time; the report names every environment, and gives no mixture of times."""
    settings, path, commits = (
        config(steps=20, checkpoint_every=5),
        tmp_path / "a",
        ["first", "second", "second", "first"],
    )
    for i, commit in enumerate(commits):
        there = {"commit": commit, "python": "3", "packages": {"torch": "2"}, "cpu": f"of {commit}", "cores": 2}
        monkeypatch.setattr("adan_bench.training.trainer.describe", lambda device, there=there: there | {"started": ""})
        jobs = replace(settings, jobs=2 if i == 3 else 1)
        run(jobs, RunStore(path), resume=i > 0, pause=AtStep(5 * (i + 1)))
    record = read_run(path)
    assert record.status == "finished"
    notes = [line for line in record.metrics if line["kind"] == "resume"]
    assert [(note["step"], note["jobs"], note["environment"]) for note in notes] == [
        (5, 1, {"commit": "second", "cpu": "of second"}),
        (15, 2, {"commit": "first", "cpu": "of first"}),
    ]
    assert [(facts["commit"], facts["machine"]) for facts in environments([record])] == [
        ("first", "of first"),
        ("second", "of second"),
        ("first", "of first"),
    ]
    (summary,) = summarize([record])
    assert (summary.one_clock, summary.optimizers[0].seconds_per_step) == (False, None)


def test_an_environment_names_the_gpu_of_the_run_and_the_packages_of_its_workload(monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: f"the GPU {device}")
    monkeypatch.setattr("adan_bench.records.environment._version", lambda name: "1.0")
    found = describe("cuda:1")
    assert found["gpu"] == "the GPU cuda:1"
    assert {"torchvision", "torch_geometric", "gymnasium", "mujoco", "tokenizers"} <= found["packages"].keys()


def test_a_run_that_could_not_begin_has_the_facts_of_its_optimizer(config: Any, tmp_path: Path) -> None:
    record_failure(Job(config("sam"), tmp_path / "a"), "lost")
    assert read_run(tmp_path / "a").optimizer["passes"] == 2


def test_messages_name_the_flag_and_a_value_that_works(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--accumulate 3: a batch of 64 cannot .* a multiple such as --batch-size 66"):
        settings("digits-vit", accumulate=3)
    assert settings("digits-vit", accumulate=3, batch_size=66).batch_size == 66
    (tmp_path / "mine.txt").touch()
    with pytest.raises(UsageError, match=r"mine.txt: not a Python file; give a file whose name ends in .py"):
        load_script(tmp_path / "mine.txt")
