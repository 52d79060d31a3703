"""The studies of the evidence runner: which runs they ask for, and that these are made, kept and resumed."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.evidence_data import OPTIONS, SETTINGS, job

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from evidence import compare, optimizers
from evidence.__main__ import Runner
from evidence.jobs import compact, read, store
from evidence.pool import Outcome, Place, Pool
from evidence.search import TUNING_SEED, Entry, Follow, Start, Study, Variant, next_rate
from evidence.studies import LSTM_FIXED, LSTM_PUBLISHED, RESNET_PUBLISHED, STUDIES
from evidence.training import run

ENTRIES = tuple(
    Entry(name, SETTINGS[name]["lr"], {"weight_decay": 0.0}, ({"weight_decay": 0.1}, {"weight_decay": 0.2}))
    for name in ("adan", "adamw")
)
STUDY = Study("tiny", "vit", OPTIONS["vit"], 4, "steps", ENTRIES, seeds=(0, 1), evaluations=1)
AFTER = Follow("after", STUDY, (Variant("adan", {"state_format": "8bit"}, lr_factor=2.0),), seeds=(0,))


def pretend(jobs, best_lr=2e-2):
    """Records in which the learning rate nearest to `best_lr` and the larger decay are best."""
    return {
        job.key: {
            "status": "finished",
            "metric": "accuracy",
            "higher_is_better": True,
            "final": {"accuracy": -abs(np.log(job.settings["lr"] / best_lr)) + job.settings["weight_decay"]},
        }
        for job in jobs
    }


def test_every_optimizer_gets_the_same_trials_before_the_seeds():
    records, rounds = {}, []
    while jobs := list(STUDY.jobs(records)):
        rounds.append(jobs)
        records |= pretend(jobs)
    counts = {name: sum(j.optimizer == name and j.tuning for r in rounds for j in r) for name in ("adan", "adamw")}
    assert counts == {"adan": 7, "adamw": 7}
    assert all(job.seed == TUNING_SEED for jobs in rounds[:-1] for job in jobs)
    reported = rounds[-1]
    assert [job.seed for job in reported] == [0, 0, 1, 1]
    assert all(job.settings["weight_decay"] == 0.2 for job in reported)
    assert reported[0].settings["lr"] == 2e-2
    assert len({job.key for jobs in rounds for job in jobs}) == 2 * 7 + 4


def test_seeds_come_after_all_trials_that_can_be_made():
    records = {}
    alone = replace(STUDY, entries=ENTRIES[:1])
    while jobs := [job for job in alone.jobs(records) if job.tuning]:
        records |= pretend(jobs)
    assert STUDY.best("adan", records) is not None
    left = [(job.optimizer, job.tuning) for job in STUDY.jobs(records)]
    assert left == [("adamw", True)] * 4 + [("adan", False)] * len(STUDY.seeds)
    assert list(AFTER.jobs(records)) == []


def test_optimizers_take_turns_in_trials():
    assert [job.optimizer for job in STUDY.jobs({})] == ["adan", "adamw"] * 4


@pytest.mark.parametrize("trials", [4, 5, 7])
def test_tuning_can_end_early(trials):
    study, records = replace(STUDY, trials=trials), {}
    while jobs := [job for job in study.jobs(records) if job.tuning]:
        records |= pretend(jobs)
    assert len(records) == trials * len(study.entries)
    assert {job.seed for job in study.jobs(records)} == set(study.seeds)


def test_published_settings_are_taken_as_they_are():
    study = replace(STUDY, trials=0)
    assert [(job.optimizer, job.settings["lr"], job.seed) for job in study.jobs({})] == [
        (entry.optimizer, entry.lr, seed) for seed in study.seeds for entry in ENTRIES
    ]


def test_three_seeds_of_every_study_come_before_more_of_one(tmp_path):
    studies = [replace(STUDY, seeds=range(5)), replace(STUDY, name="longer", length=2 * STUDY.length, seeds=range(5))]
    runner = Runner(studies, tmp_path / "runs.jsonl", {}, deadline=600)
    order = []
    while job := runner.next_job(STUDY.lane, set()):
        runner.records |= pretend([job])
        if not job.tuning:
            order.append((job.study, job.seed))
    early, late = order[:12], order[12:]
    assert {name for name, _ in early} == {STUDY.name, "longer"}
    assert {seed for _, seed in early} == {0, 1, 2}
    assert {seed for _, seed in late} == {3, 4}
    assert len(late) == 8


def test_a_following_study_waits_for_the_first():
    records = {}
    assert list(AFTER.jobs(records)) == []
    while jobs := list(STUDY.jobs(records)):
        records |= pretend(jobs)
    (only,) = AFTER.jobs(records)
    assert only.settings["state_format"] == "8bit"
    assert only.settings["lr"] == 4e-2


@pytest.mark.parametrize("shared", [None, "adamw"])
def test_fine_tuning_waits_for_pre_training_and_names_its_weights(shared):
    tuned = replace(STUDY, name="tuned", length=3, seeds=(0, 1, 2), start=Start(STUDY, shared))
    records = {}
    while jobs := list(STUDY.jobs(records)):
        assert list(tuned.jobs(records)) == []
        records |= pretend(jobs)
    keys = {(job.optimizer, job.seed): job.key for job in STUDY.reported(records)}
    while jobs := list(tuned.jobs(records)):
        for trial in jobs:
            seed = 0 if shared or trial.seed not in STUDY.seeds else trial.seed
            assert trial.options["start"] == keys[shared or trial.optimizer, seed]
        records |= pretend(jobs)
    own = Follow("own", tuned, (Variant("adan"),), start=Start(STUDY))
    assert [job.options["start"] for job in own.reported(records)] == [keys["adan", seed] for seed in (0, 1, 0)]
    assert [group.n for group in compare.compared(tuned, {k: {**r, "seed": 0} for k, r in records.items()})] == [3, 3]


def test_the_next_rate_goes_beyond_an_end_or_between():
    assert next_rate([(1.0, 3.0), (2.0, 2.0), (4.0, 1.0)]) == 0.5
    assert next_rate([(1.0, 2.0), (4.0, 3.0), (16.0, 1.0)]) == 2.0


def test_the_studies_are_sound():
    assert len(STUDIES) == len({study.name for study in STUDIES.values()})
    for study in STUDIES.values():
        for first in study.jobs({}):
            assert first.tuning or study in (LSTM_PUBLISHED, LSTM_FIXED, RESNET_PUBLISHED)
            json.dumps(dict(first.settings))
            model = torch.nn.Linear(2, 2)
            settings = {key: value for key, value in first.settings.items() if key != "lr"}
            optimizers.build(first.optimizer, model, settings, torch.tensor(first.settings["lr"]), True)


# The pool


def test_a_study_runs_resumes_and_keeps_its_deadline(cache, tmp_path):
    out = tmp_path / "runs.jsonl"
    early = Runner([STUDY], out, {}, deadline=0)
    pool = Pool({"gpu": 2}, Place(cache, gpu="cpu"))
    try:
        early.run(pool)
        assert not out.exists()
        Runner([STUDY, AFTER], out, {"commit": "abc"}, deadline=600).run(pool)
        records = read(out)
        assert len(records) == 2 * 7 + 4 + 1
        assert all(r["status"] == "finished" and r["environment"]["commit"] == "abc" for r in records.values())
        size = out.stat().st_size
        Runner([STUDY, AFTER], out, {}, deadline=600).run(pool)
        assert out.stat().st_size == size
    finally:
        pool.close()


def test_a_study_fine_tunes_what_another_pre_trained(cache, tmp_path):
    out = tmp_path / "runs.jsonl"
    entry = ENTRIES[:1]
    before = Study("before", "mae", OPTIONS["mae"], 4, "steps", entry, (0,), trials=4, evaluations=1)
    after = replace(before, name="after", problem="vit", start=Start(before))
    pool = Pool({"gpu": 1}, Place(cache, gpu="cpu"))
    try:
        Runner([after, before], out, {}, deadline=600).run(pool)
    finally:
        pool.close()
    records = read(out)
    assert all(record["status"] == "finished" for record in records.values())
    assert [record["job"]["study"] for record in records.values()] == ["before"] * 5 + ["after"] * 5
    (pre_trained,) = before.reported(records)
    assert {record["job"]["options"].get("start") for record in records.values()} == {None, pre_trained.key}


def test_a_run_that_raises_is_recorded_and_costs_only_itself(cache, tmp_path, capsys):
    out = tmp_path / "runs.jsonl"
    wrong = replace(STUDY, entries=(replace(ENTRIES[0], settings={"betas": [2, 2, 2]}),))
    pool = Pool({"gpu": 1}, Place(cache, gpu="cpu"))
    try:
        Runner([wrong], out, {}, deadline=600).run(pool)
    finally:
        pool.close()
    assert {record["status"] for record in read(out).values()} == {"failed"}
    assert "betas" in capsys.readouterr().out


def test_a_half_written_line_costs_only_itself(tmp_path):
    out = tmp_path / "runs.jsonl"
    jobs = list(STUDY.jobs({}))[:2]
    for made in jobs:
        with out.open("a", encoding="utf-8") as file:
            file.write('{"key": "half writ')
        record = {"key": made.key, "status": "diverged", "job": {}}
        Runner([STUDY], out, {}, deadline=600).finish(Outcome(made, False, record, None, False))
    assert list(read(out)) == [made.key for made in jobs]


# The records and the page


def test_a_stored_record_tells_of_no_folder_and_still_resumes(cache, tmp_path):
    full = tmp_path / "runs.jsonl"
    record = run(job(steps=30, evaluations=2), "cpu", cache)
    command = "python3 /a/b.py run vit-25 --cache /c --out /c/r.jsonl --site /s --commit abc --gpu-workers 5"
    environment = {"commit": "abc", "command": command, "load_average": [1, 2, 3], "workers": 5}
    full.write_text(json.dumps({**record, "environment": environment}) + "\n", encoding="utf-8")
    target = tmp_path / "stored.jsonl"
    target.write_bytes(b'{"key": "half written')
    assert store(target, [full]) == 1
    assert store(target, [full, target]) == 1
    (stored,) = read(target).values()
    assert stored["environment"] == {"command": "python -m evidence run vit-25 --gpu-workers 5", "workers": 5}
    assert (stored["key"], stored["commit"], stored["seed"]) == (record["key"], "abc", 0)
    assert stored["curve"]["step"] == [15, 30]
    assert stored["final"]["accuracy"] == pytest.approx(record["final"]["accuracy"], rel=1e-4)


def test_a_long_curve_is_thinned_from_its_first_point_to_its_last():
    record = {
        "key": "k",
        "job": {"seed": 0},
        "final": {},
        "best": None,
        "curve": [{"step": i} for i in range(1_000)],
        "environment": {"commit": "c", "command": "python x run"},
    }
    steps = compact(record)["curve"]["step"]
    assert len(steps) == 60
    assert (steps[0], steps[-1]) == (0, 999)
