"""The loop: what it costs, what it counts, and that its options do what they say."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from adan_bench import optimizers
from adan_bench.schedule import SCHEDULES
from adan_bench.store import RunStore, read_run
from adan_bench.train import Trainer, run


def test_schedules() -> None:
    cosine = SCHEDULES["cosine"](100, 0.1)
    assert [cosine(0), cosine(9), cosine(10)] == pytest.approx([0.1, 1.0, 1.0])
    assert cosine(55) == pytest.approx(0.5)
    assert 0 < cosine(99) < 0.001
    assert SCHEDULES["linear"](100, 0.0)(25) == pytest.approx(0.75)
    assert SCHEDULES["constant"](100, 0.0)(99) == 1.0


def test_nan_is_recorded_as_diverged(config: Any, tmp_path: Path) -> None:
    settings = config("sgd")
    run(config("sgd", settings={**settings.settings, "lr": 1e30}), RunStore(tmp_path / "a"))
    record = read_run(tmp_path / "a")
    assert record.status == "diverged"
    assert record.final is None
    assert record.metrics[-1]["loss"] is None
    assert record.metrics[-1]["step"] < 60


def test_accumulation_is_the_mean_of_the_parts(config: Any) -> None:
    """Four parts of a batch give the gradient of the whole, where the loss has no noise."""
    whole, parts = Trainer(config(batch_size=16)), Trainer(config(batch_size=16, accumulate=4))
    x, y = whole.task.batches(0)
    for trainer in (whole, parts):
        trainer.task.loss = lambda model, batch: (model(batch[0]) - batch[1]).square().mean()
        trainer.model.eval()
    parts.task.batches = lambda i: (x[4 * i : 4 * i + 4], y[4 * i : 4 * i + 4])
    parts.model.load_state_dict(whole.model.state_dict())
    for trainer in (whole, parts):
        trainer.update()
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        torch.testing.assert_close(a.grad, b.grad)


def test_bf16_and_channels_last(config: Any) -> None:
    from torch import nn

    trainer = Trainer(config(bf16=True, channels_last=True))
    seen = []
    trainer.model = trainer.forward = nn.Conv2d(1, 2, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    trainer.task.batches = lambda position: (torch.randn(2, 1, 8, 8),)
    trainer.task.loss = lambda model, batch: seen.append((batch[0], model(batch[0]))) or seen[-1][1].float().mean()
    trainer.update()
    assert seen[0][0].is_contiguous(memory_format=torch.channels_last)
    assert seen[0][1].dtype == torch.bfloat16


def test_compile_is_what_trains(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --compile the loss sees the compiled model; checkpoints hold the names of the plain one."""
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda model: compiled.append(model) or torch.nn.Sequential(model))
    trainer = Trainer(config(compile=True))
    seen = []
    loss = trainer.task.loss
    trainer.task.loss = lambda model, batch: seen.append(model) or loss(model, batch)
    trainer.update()
    assert compiled == [trainer.model]
    assert seen == [trainer.forward]
    assert trainer.state_dict()["model"].keys() == Trainer(config()).model.state_dict().keys()


def test_same_seed_same_start_for_all(config: Any) -> None:
    """Seeds are pairs: the same weights and the same batches for every optimizer."""
    a, b = Trainer(config("adan", seed=3)), Trainer(config("lamb", seed=3))
    assert all(torch.equal(p, q) for p, q in zip(a.model.parameters(), b.model.parameters(), strict=True))
    assert torch.equal(a.task.batches(7)[0], b.task.batches(7)[0])
    assert not torch.equal(a.task.batches(7)[0], Trainer(config("adan", seed=4)).task.batches(7)[0])


def test_missing_metric_is_named(config: Any, tmp_path: Path) -> None:
    trainer = Trainer(config())
    trainer.task.evaluate = lambda model: {"acuracy": 1.0}
    with pytest.raises(ValueError, match="returned acuracy, not the declared metric 'error'"):
        trainer.evaluate()


def test_loop_costs_less_than_3_percent(config: Any, tmp_path: Path) -> None:
    """The same training by hand and by the loop, in turns, in one process, by processor time.

    The loop writes its lines and reports its progress at its usual cadence; evaluations and checkpoints are work that
    was asked for. Other programs on the machine make slices slower, never faster, so the fastest quarter is compared;
    a loop that costs too much does so in every round, so up to three rounds look for a quiet one.
    """
    length = 4  # of a slice, and steps between two lines, as in a run of 240 steps
    settings = config(workload="digits-vit", steps=100_000, eval_every=10**6, log_every=length)
    trainer, hand = Trainer(settings), Trainer(settings)  # the second for its data and model: its training is below
    store = RunStore(tmp_path / "run")
    store.create(settings, trainer.workload.facts(), trainer.spec.facts(), {})
    model, batches, loss_of = hand.task.model, hand.task.batches, hand.task.loss
    optimizer = optimizers.build(hand.spec, model.parameters(), settings.settings)
    model.train()
    position = 0

    def by_hand() -> None:
        nonlocal position
        for _ in range(length):
            optimizer.param_groups[0]["lr"] = 1e-3
            optimizer.zero_grad(set_to_none=True)
            loss_of(model, batches(position)).backward()
            optimizer.step()
            position += 1

    def by_loop() -> None:
        with pytest.raises(Pause):
            trainer.train(store, pause)

    def cost(part: Callable[[], None]) -> float:
        started = time.process_time()
        part()
        return time.process_time() - started

    def ratio(slices: int = 40) -> float:
        costs: dict[Any, list[float]] = {by_hand: [], by_loop: []}
        for i in range(slices):
            for part in (by_hand, by_loop) if i % 2 else (by_loop, by_hand):
                costs[part].append(cost(part))
        loop, plain = (statistics.fmean(sorted(costs[part])[: slices // 4]) for part in (by_loop, by_hand))
        return loop / plain

    ratio(4)  # warms up
    ratios = [ratio()]
    while ratios[-1] >= 1.03 and len(ratios) < 3:
        ratios.append(ratio())
    print(f"the loop costs {ratios[-1]:.4f} times the training by hand")
    assert ratios[-1] < 1.03, ratios


class Pause(BaseException):
    """Leaves the loop between two steps; calling it again goes on."""


def pause(progress: Any) -> None:
    raise Pause
