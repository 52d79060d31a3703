"""Captured steps on a GPU: the numbers of eager ones, through checkpoints, for every optimizer that can be captured."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.learning import killed_run, settings

from adan_bench.records.store import RunStore, read_run
from adan_bench.training import optimizers
from adan_bench.training.graph import side_stream
from adan_bench.training.optimizers import SPECS
from adan_bench.training.trainer import Trainer, run

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore:RNN module weights"),  # they are dropped anew at every step
]

STEPS = 200
WORKLOADS = {  # the models of the issue, and what else takes part in a step
    "cifar-resnet34": {"bf16": True, "channels_last": True},
    "cifar-vit": {},
    "gpt2-code": {"bf16": True},
    "lstm-1": {},
    "vit-s": {"bf16": True, "ema": 0.99, "accumulate": 2},
    "bert-pretrain": {"bf16": True, "clip": 1.0},
    "mae-finetune-vit-b": {"bf16": True},
    "transformer-xl": {},
}


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    """Kernels whose sums have one order: what then differs is what a graph does differently."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False


def made(tmp_path: Path, name: str, mode: str, optimizer: str = "adan", **options: Any) -> Any:
    """The record of a run, and its loss curve."""
    pytest.importorskip("sklearn")
    config = settings(name, optimizer, device="cuda", graph=mode, **{"steps": STEPS, **options})
    config = replace(config, log_every=10, eval_every=100)
    run(config, RunStore(tmp_path))
    record = read_run(tmp_path)
    return record, [loss for _, _, loss in record.curve("train", "loss")]


def gap(a: list[float], b: list[float]) -> float:
    assert len(a) == len(b)
    return max(abs(x / y - 1) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("name", WORKLOADS)
def test_captured_and_eager_make_the_same_curve(tmp_path: Path, name: str) -> None:
    captured, a = made(tmp_path / "captured", name, "on", **WORKLOADS[name])
    eager, b = made(tmp_path / "eager", name, "off", **WORKLOADS[name])
    difference = gap(a, b)
    print(json.dumps({"workload": name, "steps": STEPS, "relative_gap": difference, "graph": captured.result["graph"]}))
    assert captured.result["graph"].startswith("captured")
    assert eager.result["graph"] == "eager: --graph off"
    assert "capturable" in captured.result["implementation"]
    assert captured.result["implementation"] == eager.result["implementation"]
    assert difference < 1e-3
    assert captured.final == pytest.approx(eager.final, rel=1e-2)
    assert b[-1] < b[0]


@pytest.mark.parametrize(("first", "second"), [("on", "on"), ("on", "off"), ("off", "on")])
@pytest.mark.parametrize("name", ["cifar-vit", "lstm-1"])
def test_resume_in_and_across_the_modes(tmp_path: Path, name: str, first: str, second: str) -> None:
    whole, curve = made(tmp_path / "whole", name, second, steps=60)
    config = replace(settings(name, device="cuda", graph=first, steps=60), log_every=10, eval_every=100)
    config = replace(config, checkpoint_every=30)
    killed_run(config, tmp_path / "broken", 40)
    result = run(replace(config, graph=second), RunStore(tmp_path / "broken"), resume=True)
    record = read_run(tmp_path / "broken")
    assert result["graph"] == ("captured" if second == "on" else "eager: --graph off")
    assert gap([loss for _, _, loss in record.curve("train", "loss")], curve) < 1e-3
    assert record.final == pytest.approx(whole.final, rel=1e-2)


@pytest.mark.parametrize("optimizer", SPECS)
def test_every_optimizer(tmp_path: Path, optimizer: str) -> None:
    spec = SPECS[optimizer]
    if optimizers.extra(spec):
        pytest.importorskip(optimizers.package(spec))
    lr = {"settings": {**settings("cifar-vit", optimizer).settings, "lr": spec.lr / 10}}

    def curve(mode: str) -> Any:
        config = replace(settings("cifar-vit", optimizer, device="cuda", graph=mode, steps=40), log_every=4, **lr)
        result = run(config, RunStore(tmp_path / mode))
        return result, [loss for _, _, loss in read_run(tmp_path / mode).curve("train", "loss")]

    (result, a), (_, b) = curve("on"), curve("off")
    print(json.dumps({"optimizer": optimizer, "gap": gap(a, b), "implementation": result["implementation"]}))
    assert result["graph"] == ("captured" if not spec.eager else f"captured; the optimizer eager: {spec.eager}")
    assert gap(a, b) < 1e-3
    assert len(set(a)) == len(a)  # every step another loss: the weights move


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda out: out * float(out > 0), "test_graph_cuda.py:[0-9]+ waits for the GPU"),
        (lambda out: out * __import__("random").random(), "it draws random numbers on the host"),
    ],
)
def test_a_loss_that_needs_the_host_stays_eager(tmp_path: Path, loss: Any, words: str) -> None:
    config = settings("digits-vit", device="cuda", steps=20)
    found = Trainer(config)
    plain = found.task.loss
    found.task.loss = lambda model, batch: loss(plain(model, batch))
    store = RunStore(tmp_path / "a")
    store.create(config, found.workload.facts(), found.spec.facts(), {})
    with side_stream(found.device):
        result = found.train(store)
    assert __import__("re").match(f"eager: .*{words}", result["graph"])
    assert result["status"] == "finished"


def test_a_failed_capture_leaves_a_process_that_works(tmp_path: Path) -> None:
    """What the watched step does not show fails in the capture: the run goes on eagerly, later ones are captured."""
    config = settings("lstm-1", device="cuda", steps=20)
    found = Trainer(config)
    plain = found.task.loss

    def loss(model: Any, batch: Any) -> Any:
        if torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
        return plain(model, batch)

    found.task.loss = loss
    store = RunStore(tmp_path / "a")
    store.create(config, found.workload.facts(), found.spec.facts(), {})
    with side_stream(found.device):
        result = found.train(store)
    assert result["graph"].startswith("eager: its capture failed")
    assert result["status"] == "finished"
    assert run(replace(config, graph="on"), RunStore(tmp_path / "b"))["graph"] == "captured"


def test_divergence_is_seen_in_a_captured_run(tmp_path: Path) -> None:
    config = settings("digits-vit", "sgd", device="cuda", graph="on")
    config = replace(config, settings={**config.settings, "lr": 1e30}, log_every=5)
    assert run(config, RunStore(tmp_path / "a"))["status"] == "diverged"


def test_progress_tells_of_the_gpu(tmp_path: Path) -> None:
    seen = []
    run(settings("cifar-vit", device="cuda", steps=60), RunStore(tmp_path / "a"), seen.append)
    assert seen[-1].gpu_bytes > 0
    assert all(0 <= progress.gpu_share <= 1 for progress in seen if progress.gpu_share is not None)
