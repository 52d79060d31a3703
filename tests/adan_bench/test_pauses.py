"""Runs in pieces: pauses at a step or a time, time limits, and checkpoints that are small enough to move."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.learning import AtStep, curve
from torch import nn

from adan_bench import Scale, Task, workload
from adan_bench.cli.common import deadline
from adan_bench.records.store import RunStore, read_run, read_runs
from adan_bench.training.interrupts import Pause
from adan_bench.training.trainer import run


@pytest.mark.parametrize("optimizer", ["adan", "sam"])
def test_a_run_in_pieces_is_the_run(config: Any, tmp_path: Path, optimizer: str) -> None:
    settings = config(optimizer, steps=60, log_every=7, eval_every=20)
    whole = run(settings, RunStore(tmp_path / "whole"))
    store = RunStore(tmp_path / "pieces")
    for step in (11, 20, 45):
        result = run(settings, store, resume=True, pause=AtStep(step))
        assert (result["status"], store.resume_step) == ("unfinished", step + step % (2 if optimizer == "sam" else 1))
        assert read_run(store.path).status == "unfinished"
    result = run(settings, store, resume=True, pause=Pause(time.time()))  # a step, at least
    assert result["step"] == store.resume_step > 45
    assert run(settings, store, resume=True)["final"] == whole["final"]
    assert curve(tmp_path / "pieces") == curve(tmp_path / "whole")
    assert not store.checkpoints()


def test_a_run_with_a_time_limit(bench: Any, tiny: Path, tmp_path: Path) -> None:
    command = ["run", "tiny", "--script", tiny, "--steps", "1000000", "--out", tmp_path / "a"]
    code, _, err = bench(*command, "--time-limit", "0.3s")
    assert (code, len(err.splitlines())) == (4, 1)
    assert f"--out {tmp_path / 'a'} --time-limit 0.3s --resume" in err
    first = RunStore(tmp_path / "a").resume_step
    assert bench(*command, "--time-limit", "0.3s", "--resume")[0] == 4
    assert RunStore(tmp_path / "a").resume_step > first > 0


def test_a_comparison_with_a_time_limit(bench: Any, tiny: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The limit ends while the worker still imports: its run makes one step, the other none; --resume ends both."""
    out = tmp_path / "a"
    command = ["compare", "tiny", "--script", tiny, "--optimizers", "adan", "--seeds", "2", "--out", out]
    code, _, err = bench(*command, "--time-limit", "0.1s")
    assert (code, len(err.splitlines())) == (4, 1)
    assert "2 of 2 runs left; continue with: adan-bench compare tiny" in err
    assert not (out / "report.html").exists()
    request.getfixturevalue("forked_workers")
    code, output, _ = bench(*command, "--resume", "--json")
    assert code == 0
    assert [record.status for record in read_runs(out)[0]] == ["finished"] * 2
    progress = [event for event in map(json.loads, output.splitlines()) if event["event"] == "progress"]
    assert all(event["total_steps_per_second"] > 0 for event in progress)
    studies = [json.loads(line) for line in (out / "study.jsonl").read_text(encoding="utf-8").splitlines()]
    assert sum(study["steps"] for study in studies) == 120
    assert studies[-1]["steps_per_second"] > 0
    assert (studies[-1]["jobs"], studies[-1]["mps"]) == (1, False)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("25m", 1500), ("2h", 7200), ("1h30m", 5400)])
def test_time_limits(text: str, seconds: float) -> None:
    found = deadline(text)
    assert found - time.time() == pytest.approx(seconds, abs=1)


@workload("wide", metric="error", higher_is_better=False, smoke=Scale(0.5, 8, 4))
def wide(context: Any) -> Task:
    """Half a million parameters in two tensors."""
    model = nn.Sequential(nn.Linear(512, 512, bias=False), nn.ReLU(), nn.Linear(512, 512, bias=False))
    x = torch.randn(4, 512)
    return Task(model, lambda i: x, lambda model, x: model(x).square().mean(), lambda model: {"error": 0.0})


@pytest.mark.parametrize(
    ("optimizer", "settings", "limit"),
    [
        ("adan", {"state_format": "8bit"}, 4 + 4.2),
        ("adan", {"state_format": "bf16"}, 4 + 8.2),
        ("adan", {}, 4 + 16),
        ("adamw", {}, 4 + 8),
        ("sgd", {}, 4),
    ],
    ids=["adan 8bit", "adan bf16", "adan", "adamw", "sgd"],
)
def test_a_checkpoint_holds_weights_and_states_once(
    config: Any, tmp_path: Path, optimizer: str, settings: dict[str, Any], limit: float
) -> None:
    """Bytes per parameter: fp32 weights and the states in their own format, and 32 KB for all the rest."""
    base = config(optimizer, workload="wide")
    store = RunStore(tmp_path / "a")
    run(replace(base, settings={**base.settings, **settings}), store, pause=AtStep(3))
    (checkpoint,) = store.checkpoints()
    size = checkpoint.stat().st_size
    assert 4 * 2 * 512**2 < size <= limit * 2 * 512**2 + 32_768
