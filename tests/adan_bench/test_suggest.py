"""`adan-bench suggest` and `adan_bench.suggest`: short runs, and the rate for a full run that is read off them."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import adan_bench
from adan_bench.config import SHORT, Origin, RunConfig, RunRecord
from adan_bench.errors import UsageError
from adan_bench.records.archive import read_archive
from adan_bench.records.store import read_runs
from adan_bench.studies.suggest import BUDGET, TRUST, WARMUP, measured, short, suggest, suggestion
from adan_bench.training.optimizers import get_optimizer
from adan_bench.training.schedules import schedule


def record(lr: float, loss: float | None, error: float = 0.0) -> RunRecord:
    """A short run with one training loss in its second half and a misleading one before."""
    result = {"status": "finished" if loss is not None else "diverged", "step": 40, "final": {"error": error}}
    config = RunConfig(settings={"lr": lr}, steps=100, stop_after=40, role="tune", origin=Origin(kind=SHORT))
    lines = [
        {"kind": "train", "step": step, "seconds": 0.0, "loss": value} for step, value in ((20, 9 * lr), (40, loss))
    ]
    return RunRecord(Path(f"{lr:g}"), config, {"metric": "error", "higher_is_better": False}, {}, {}, lines, result)


def test_the_rate_is_the_vertex_of_a_parabola_through_training_losses() -> None:
    """Losses are exactly quadratic in log lr around 0.02, which is none of the rates tried; the metric differs."""
    rates = [10**exponent for exponent in (-4, -3, -2, -1, 0)]
    runs = [record(lr, 2 + math.log(lr / 0.02) ** 2, error=-lr) for lr in rates]
    assert measured(runs) == 0.02
    s = suggestion(get_optimizer("adan"), RunConfig(steps=1000), runs)
    assert (s.made, s.share) == (40, 0.2)
    assert not any("try beyond it" in doubt for doubt in s.doubts())


def test_runs_without_a_result_are_no_neighbors() -> None:
    runs = [record(*pair) for pair in ((0.001, 3.0), (0.01, 1.0), (0.1, None), (1.0, None))]
    full, spec = RunConfig(steps=1000), get_optimizer("adan")
    assert measured(runs) == 0.01
    said = [suggestion(spec, full, tried).doubts() for tried in (runs, runs[:2])]
    assert [any("try beyond it" in doubt for doubt in doubts) for doubts in said] == [False, True]


def test_a_neighbor_that_diverged_is_named() -> None:
    full, spec = RunConfig(steps=1000), get_optimizer("adan")
    low, diverged = [record(0.001, 3.0), record(0.01, 1.0)], record(0.1, None)
    s = suggestion(spec, full, [*low, diverged])
    assert any("above it, 0.1, diverged" in doubt for doubt in s.doubts())
    between = [*low, record(0.05, 2.0), diverged]
    assert not any("diverged" in doubt for doubt in suggestion(spec, full, between).doubts())


def test_a_short_run_is_the_beginning_of_a_full_one_in_small() -> None:
    full = RunConfig(steps=5000, warmup=0.02, schedule="linear", ema=0.99, compile=True, batch_size=7)
    small = short(full)
    assert (small.steps, small.stop_after, small.schedule, small.batch_size) == (500, 200, "linear", 7)
    assert (small.ema, small.compile) == (0.0, False)
    assert small.warmup * small.steps == 100  # the full run's steps
    assert short(RunConfig(steps=5000, warmup=0.05)).warmup == WARMUP  # which would be half of it
    assert short(RunConfig(steps=5000, warmup=0.0)).warmup == 0


@pytest.mark.parametrize("steps", [480, 500, 777, 20_000])
def test_short_runs_take_at_most_a_quarter_of_a_full_one(steps: int) -> None:
    assert 6 * short(RunConfig(steps=steps)).stop_after <= BUDGET * steps


def test_a_full_run_may_be_too_short() -> None:
    with pytest.raises(
        UsageError, match=r"--steps 300: 6 short runs of 20 steps .*; give 480 or more, or use adan-bench tune"
    ):
        short(RunConfig(steps=300))


@pytest.mark.usefixtures("inline_pool")
def test_the_command(bench: Any, tiny: Path, tmp_path: Path) -> None:
    """Settings, doubts, lines to paste that run, a page, and a file that `compare --tuned` reads."""
    out = tmp_path / "a"
    options = ("suggest", "--script", tiny, "--steps", 1000, "--optimizers", "adan,sgd", "--out", out)
    text = bench.ran(*options, "--set", "adan.weight_decay=0.3")
    saved = json.loads((out / "suggested.json").read_text(encoding="utf-8"))["workloads"]["tiny"]
    assert saved["adan"]["settings"]["weight_decay"] == 0.3
    assert saved["adan"]["settings"]["betas"] == [0.9, 0.92, 0.99]
    assert saved["adan"]["steps"] == 100
    assert f"adan(lr={saved['adan']['settings']['lr']!r}, betas=(0.9, 0.92, 0.99), weight_decay=0.3)" in text
    assert " ".join(text.split()).count(TRUST) == 2
    assert "The rule was tried with adan and adamw alone." in text.partition("sgd(")[2]
    assert "40 steps are few" in text
    assert f"--tuned {out / 'suggested.json'}" in text
    assert "from adan import Adan" in text
    page = (out / "tuning.html").read_text(encoding="utf-8")
    assert "The rule was tried with adan and adamw alone." in page
    assert "training loss ↓" in page
    assert 'data-rates="0"' in page

    markdown = (out / "tuning.md").read_text(encoding="utf-8")
    assert "The rule was tried with" in bench.ran("report", out)  # which knows short runs by their records
    assert (out / "tuning.md").read_text(encoding="utf-8") == markdown

    runs = read_runs(out)[0]
    assert {run.config.role for run in runs} == {"tune"}
    assert len([run for run in runs if run.config.optimizer == "adan"]) == 6
    assert sum(run.result["step"] for run in runs if run.config.optimizer == "adan" and run.result) <= 250

    again = bench.ran(*options, "--set", "adan.weight_decay=0.3", "--resume", "--json")
    *found, report = [json.loads(line) for line in again.splitlines()]
    assert [line["optimizer"] for line in found] == ["adan", "sgd"]
    assert found[0]["settings"] == saved["adan"]["settings"]
    assert found[0]["share"] <= 0.25
    assert report["saved"] == str(out / "suggested.json")
    made: dict[str, Any] = {"model": nn.Linear(2, 1)}
    exec(found[0]["code"], made)
    assert made["optimizer"].param_groups[0]["weight_decay"] == 0.3
    rates = []
    for _ in range(1000):
        rates.append(made["optimizer"].param_groups[0]["lr"] / saved["adan"]["settings"]["lr"])
        made["optimizer"].step()
        made["schedule"].step()
    factor = schedule("cosine", 1000, 0.05)
    assert rates == pytest.approx([factor(step) for step in range(1000)])

    options = ("compare", "--script", tiny, "--steps", 1000, "--stop-after", 4, "--optimizers", "adan", "--seeds", 1)
    text = bench.ran(*options, "--tuned", out / "suggested.json", "--out", tmp_path / "b")
    assert "tuned in 6 trials (suggested.json" in text
    assert "for another training: 100 steps" in text
    bench.ran("report", tmp_path / "b", out, "--out", tmp_path / "c")
    packed, _ = read_archive(tmp_path / "c" / "runs.jsonl")
    assert [run.result for run in packed if run.config.role == "tune"] == [run.result for run in runs]


@pytest.mark.usefixtures("inline_pool")
def test_what_cannot_be_suggested(bench: Any, tiny: Path, tmp_path: Path) -> None:
    options = ("--script", tiny, "--steps", 500, "--out", tmp_path / "a")
    for words, parts in (
        (("--set", "lr=1"), ("--set lr fixes the rate",)),
        (("--steps", 30), ("--steps 30", "adan-bench tune")),
        (("none",), ("no workload 'none'",)),
    ):
        error = bench.refused("suggest", *options, *words)
        assert all(part in error for part in parts), error
    code, text, _ = bench("suggest", *options, "--optimizers", "sgd:momentum=1e30")
    assert code == 1
    assert "nothing saved for tiny sgd:momentum=1e30" in text


# The function


def regression() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
    x = torch.randn(256, 4)
    return model, DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 16, shuffle=True)


def squared(model: nn.Module, batch: Any) -> torch.Tensor:
    return (model(batch[0]) - batch[1]).square().mean() + 0 * random.random() + 0 * np.random.rand()


def test_the_function_leaves_model_and_generators_as_they_were() -> None:
    model, loader = regression()
    model.eval()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    s = suggest(model, squared, loader, steps=800, weight_decay=0.0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(model[0].weight.grad, torch.ones_like(model[0].weight))
    assert not model.training
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), np.random.get_state()[1].tolist())
    assert s.settings["weight_decay"] == 0.0
    assert s.warmup_steps == 40
    assert s.share <= 0.25
    assert adan_bench.suggest(model, squared, loader, steps=800, weight_decay=0.0) == s  # and is a function of them


def test_the_function_finds_the_rate_of_a_quadratic() -> None:
    """SGD on w²/2 diverges at rates above 2."""
    model = nn.Linear(1, 1, bias=False)
    s = suggest(model, lambda model, x: 0.5 * model.weight.square().sum(), [0], steps=500, optimizer="sgd")
    best = min((run for run in s.tried if run.final is not None), key=lambda run: run.final or 0.0)
    assert best.config.settings["lr"] < 2  # 2 / curvature: at the next rate it diverges
    assert 0.1 < s.settings["lr"] < 2


@pytest.mark.parametrize("optimizer", ["schedule-free", "ademamix", "muon"])
def test_the_function_steps_as_the_harness_does(optimizer: str) -> None:
    """Schedule-Free's modes and AdEMAMix's horizon were left out, and the former refused to step."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    s = suggest(model, lambda model, x: model(x).square().mean(), [torch.ones(2, 4)], steps=500, optimizer=optimizer)
    assert all(run.status == "finished" for run in s.tried)
    assert ("LambdaLR" in s.code()) == (optimizer != "schedule-free")  # whose rate is constant


def test_where_all_rates_diverge_smaller_ones_are_tried() -> None:
    """SGD on 10⁵ w²/2 needs rates below 2e-5; the smallest of the range is above 1e-3."""
    model = nn.Linear(1, 1, bias=False)
    loss = lambda model, x: 0.5e5 * model.weight.double().square().sum()  # noqa: E731
    s = suggest(model, loss, [0], steps=5000, optimizer="sgd")
    assert s.settings["lr"] < 2e-5
    assert [run.status for run in s.tried].count("diverged") >= 5
    assert any("diverged" in doubt for doubt in s.doubts())


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"batches": iter([0])}, "batches: .* give a list or a DataLoader"),
        ({"optimizer": "sam"}, "optimizer='sam': .* adan-bench suggest"),
        ({"optimizer": "nope"}, "no optimizer 'nope'"),
        ({"lr": 0.1}, "lr=0.1: .* omit it"),
        ({"steps": 20}, "steps 20"),
        ({"loss": lambda model, batch: torch.zeros((), requires_grad=True)}, "loss: it gave the model no gradients"),
        ({"loss": lambda model, batch: math.nan * model.weight.sum()}, "short runs diverged at all"),
        ({"beta": 0.1}, "no setting 'beta'"),
    ],
)
def test_what_the_function_refuses(changed: dict[str, Any], says: str) -> None:
    arguments: dict[str, Any] = {"loss": lambda model, batch: model.weight.square().sum(), "batches": [0], "steps": 500}
    with pytest.raises(UsageError, match=says):
        suggest(nn.Linear(1, 1), **{**arguments, **changed})
