"""`adan-bench speed`: the models have the published sizes, and every number of a case is there."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.forked import torchrun

from adan import Adan
from adan_bench.config import RunConfig
from adan_bench.errors import UsageError
from adan_bench.studies import speed


def test_an_update_alone_has_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them the clock would measure a step that does nothing."""
    found: list[int] = []
    step = Adan.step

    def counting(self: Adan, closure: Any = None) -> Any:
        found.append(sum(p.grad is not None for group in self.param_groups for p in group["params"]))
        return step(self, closure)

    class Net(torch.nn.Linear):
        def forward(self, images: torch.Tensor) -> Any:
            return SimpleNamespace(logits=super().forward(images.mean((2, 3))))

    monkeypatch.setattr(Adan, "step", counting)
    model: Any = SimpleNamespace(build=lambda tiny: Net(3, speed.CLASSES), text=False)
    speed._train(model, "adan", RunConfig(steps=2, batch_size=2), 1, speed.ALONE, torch.device("cpu"))
    assert found == [2] * 6  # in three steps, the first for warm-up, and in as many updates alone


def test_command(bench: Callable[..., Any], tmp_path: Path) -> None:
    """Every model in its tiny version; Adan keeps twice the state of AdamW."""
    out = tmp_path / "a" / "speed.json"
    text = bench.ran("speed", "--steps", 2, "--warmup", 1, "--optimizers", "adan,adamw", "--out", out)
    assert (
        len(re.findall(r"\[\d+/20\] .* ms per step \(.* in 2 rounds\), .* ms per update, \d+ bytes of states", text))
        == 20
    )
    record = json.loads(out.read_text(encoding="utf-8"))
    cases = {(case["model"], case["optimizer"]): case for case in record["cases"]}
    assert len(cases) == 20
    assert record["environment"]["packages"]["torch"] == torch.__version__
    for (name, optimizer), case in cases.items():
        assert case["step_ms"] > case["optimizer_ms"] > 0, name
        assert case["peak_gb"] is None
        words = 4 if optimizer == "adan" else 2
        assert case["state_bytes"] == pytest.approx(4 * words * case["parameters"], rel=0.01)
        assert (case["tokens_per_second"] is not None) == name.startswith("GPT")


def test_all_of_the_papers_optimizers() -> None:
    found = speed.measure(["ViT-B"], speed.OPTIMIZERS, RunConfig(steps=1), warmup=0)
    assert [case["optimizer"] for case in found] == ["adan", "adamw", "lamb", "adabelief"]


def test_the_optimizers_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that becomes slower in the middle makes nobody look slower; every round's median is in the record."""
    calls = []

    def train(model: Any, name: str, how: RunConfig, *_: Any) -> speed.Sample:
        calls.append((name, how.steps))
        return speed.Sample([1.0 if len(calls) < 5 else 2.0] * how.steps, [0.5], {"parameters": 10, "state_bytes": 80})

    monkeypatch.setattr(speed, "_train", train)
    adan, adamw = speed.measure(["ViT-B"], ["adan", "adamw"], RunConfig(steps=10))
    assert calls == [("adan", 3), ("adamw", 3), ("adan", 3), ("adamw", 3), ("adan", 4), ("adamw", 4)]
    assert adan["step_ms"] == adamw["step_ms"] == 1000
    assert adan["rounds_ms"] == adamw["rounds_ms"] == [1000, 1000, 2000]


def test_variants(bench: Callable[..., Any]) -> None:
    names = ["adan", "adan:state_format=8bit", "adan:betas=0.92,0.92,0.99"]
    command = ("speed", "GPT-2-1B", "--optimizers", ",".join(names), "--steps", 1, "--warmup", 0, "--json")
    out = bench.ran(*command)
    cases = {case["optimizer"]: case["state_bytes"] for case in map(json.loads, out.splitlines())}
    assert list(cases) == names
    whole, quantized, coupled = cases.values()
    assert coupled == pytest.approx(0.75 * whole, rel=0.01)
    assert quantized < 0.5 * whole  # small tensors keep fp32


def test_square_brackets_of_an_error_are_no_markup(bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    case = {"model": "ViT-B", "optimizer": "adan", "error": "no [/a]"}
    monkeypatch.setattr(speed, "measure", lambda models, names, how, warmup, show: show(case))
    assert "no [/a]" in bench("speed", "ViT-B")[1]


def test_tokens_among_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "subprocess", SimpleNamespace(run=torchrun))
    chosen = RunConfig(steps=2, batch_size=4, bf16=True, parallel="ddp")
    (case,) = speed.launch(["MoE-8x0.1B"], ["adan"], chosen, 2)
    expected = {"ranks": 2, "parallel": "ddp", "steps": 2, "batch_size": 4, "bf16": True, "tiny": True}
    assert {key: case[key] for key in expected} == expected
    assert case["tokens_per_second"] == pytest.approx(4 * 16 / (case["step_ms"] / 1e3))


def test_shards(bench: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank of torchrun, in this process."""
    port = socket.create_server(("localhost", 0))
    number = port.getsockname()[1]
    port.close()
    for key, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "localhost", "MASTER_PORT": number}.items():
        monkeypatch.setenv(key, str(value))
    command = ("speed", "GPT-2-670M", "--parallel", "fsdp", "--optimizers", "adan", "--steps", 1, "--warmup", 0)
    out = bench.ran(*command, "--json")
    case = json.loads(out)
    assert case["parallel"] == "fsdp"
    assert case["state_bytes"] == pytest.approx(16 * case["parameters"], rel=0.01)


def test_what_cannot_be_measured_is_named() -> None:
    with pytest.raises(UsageError, match="ViT-B reads no tokens"):
        speed.check(["ViT-B"], [], "smoke", "ddp")
    with pytest.raises(UsageError, match="lamb cannot step on sharded parameters"):
        speed.check(["GPT-2-1B"], ["lamb"], "smoke", "fsdp")


def test_a_rank_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.CompletedProcess([], 1, "", "Traceback\nadan-bench: rank 1: another rank is gone\nmore")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)
    with pytest.raises(RuntimeError, match=r"^adan-bench: rank 1: another rank is gone$"):
        speed.launch(["GPT-2-1B"], ["adan"], RunConfig(parallel="ddp"), 2)
