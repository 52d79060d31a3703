"""Scales of a workload, weights handed from one run to the next, clipping and parameter groups of a task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.learning import chosen

from adan_bench.training.configure import configure
from adan_bench.training.optimizers import get_optimizer
from adan_bench.training.scripts import load_script
from adan_bench.training.trainer import Trainer
from adan_bench.workloads.registry import get_workload

SCALED = '''
import torch
from torch import nn
from adan_bench import Scale, Task, shuffled, workload

@workload(
    "scaled",
    metric="error",
    higher_is_better=False,
    smoke=Scale(target=0.5, steps=10, batch_size=4, sizes=2),
    small=Scale(target=0.1, steps=30, batch_size=8, sizes=3),
    paper=Scale(target=0.5, steps=90, needs=("big.csv",), sizes=5),
)
def scaled(context):
    """A regression as wide as its scale says."""
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    width = context.sizes
    model = nn.Sequential(nn.Linear(4, width), nn.Linear(width, 1))
    if context.init is not None:
        model.load_state_dict(context.weights())
    def groups(model, settings):
        return [{"params": model[0].parameters(), "lr": 0.1 * settings["lr"]}, {"params": model[1].parameters()}]
    def loss(model, batch):
        return 1e3 * model(batch[0]).square().mean()
    def evaluate(model):
        return {"error": model(x).square().mean().item()}
    batches = shuffled([x], context.batch_size, context.seed)
    return Task(model, batches, loss, evaluate, max_grad_norm=0.5, groups=groups)
'''


@pytest.fixture
def scaled(tmp_path: Path) -> Callable[..., Any]:
    script = tmp_path / "scaled.py"
    script.write_text(SCALED, encoding="utf-8")
    load_script(str(script))

    def make(**options: Any) -> Any:
        choice = chosen(script=script, **options)
        return configure(get_workload("scaled", choice.scale), get_optimizer("adan"), choice)

    return make


def test_a_scale_changes_budget_and_model(scaled: Callable[..., Any]) -> None:
    smoke, small = scaled(), scaled(scale="small")
    assert (smoke.steps, smoke.batch_size, smoke.eval_every) == (10, 4, 1)
    assert (small.steps, small.batch_size, small.eval_every) == (30, 8, 3)
    assert [len(Trainer(c).model[0].bias) for c in (smoke, small)] == [2, 3]
    assert Trainer(small).workload.facts()["target"] == 0.1


def test_a_task_clips_and_groups(scaled: Callable[..., Any]) -> None:
    trainer = Trainer(scaled())
    trainer.update()
    grads = [p.grad for p in trainer.model.parameters()]
    assert torch.stack([g.square().sum() for g in grads if g is not None]).sum().sqrt().item() == pytest.approx(0.5)
    first, second = trainer.updater.base_lr
    assert first == pytest.approx(0.1 * second)


def test_the_command_line_hands_scale_weights_and_init_on(
    scaled: Callable[..., Any], bench: Callable[..., Any], tmp_path: Path
) -> None:
    script = ("--script", str(tmp_path / "scaled.py"), "--steps", "3")
    first, second = tmp_path / "first", tmp_path / "second"
    bench.ran("run", "scaled", *script, "--scale", "small", "--keep-weights", "--out", str(first))
    assert torch.load(first / "weights.pt", weights_only=True)["0.bias"].shape == (3,)
    initial = ("--scale", "small", "--init", str(first))
    bench.ran("run", "scaled", *script, *initial, "--set", "lr=0.0", "--out", str(second), "--keep-weights")
    weights = [torch.load(path / "weights.pt", weights_only=True) for path in (first, second)]
    assert torch.equal(weights[0]["0.bias"], weights[1]["0.bias"])
    err = bench.refused("run", "scaled", *script, "--init", str(tmp_path), "--out", str(tmp_path / "third"))
    assert "it holds no weights.pt; make that run with --keep-weights" in err
