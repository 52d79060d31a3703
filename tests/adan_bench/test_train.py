"""The loop: what it costs, what it counts, and that its options do what they say."""

from __future__ import annotations

import math
import re
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from adan_bench.errors import UsageError
from adan_bench.records import environment
from adan_bench.records.store import RunStore, read_run
from adan_bench.training.schedules import schedule
from adan_bench.training.trainer import Trainer, run


def test_schedules() -> None:
    cosine = schedule("cosine", 100, 0.1)
    assert [cosine(0), cosine(9), cosine(10)] == pytest.approx([0.1, 1.0, 1.0])
    assert cosine(55) == pytest.approx(0.5)
    assert 0 < cosine(99) < 0.001
    assert schedule("linear", 100)(25) == pytest.approx(0.75)
    assert [schedule("linear:4", 100)(step) for step in (0, 24, 25, 60, 99)] == [1.0, 1.0, 0.75, 0.5, 0.25]
    assert schedule("constant", 100)(99) == 1.0


def test_published_schedules() -> None:
    """Timm's cosine runs below the warm-up and ends at a minimum; He et al.'s has two steps; neither is shifted."""
    full = schedule("full-cosine", 310, 150 / 310, floor=0.01, cooldown=10 / 310)
    assert [full(74), full(149)] == pytest.approx([0.5, 1.0])
    assert full(150) == pytest.approx(0.01 + 0.99 * 0.5)
    assert full(225) == pytest.approx(0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * 0.75)))
    assert [full(300), full(309)] == pytest.approx([0.01, 0.01])
    steps = schedule("steps:30/90,60/90", 900, 0.1)
    assert [steps(i) for i in (44, 90, 299, 300, 599, 600, 899)] == pytest.approx([0.5, 1, 1, 0.1, 0.1, 0.01, 0.01])
    for bad in ("steps:half", "steps:1/0", "steps", "cosin"):
        with pytest.raises(UsageError, match=r"for example steps:30/90,60/90|no schedule 'cosin'; did you mean cosine"):
            schedule(bad, 10)


def test_switch_to_averaged_sgd(config: Any) -> None:
    """The first rate returns once a value is worse than the best of all but the last two; later steps still count."""
    settings = config("sgd", steps=100, schedule="steps:0.3,0.6", warmup=0.0, nonmono=2)
    trainer = Trainer(settings)
    assert not trainer.workload.higher_is_better
    for step, value, lowered in ((10, 5.0, 1.0), (20, 9.0, 1.0), (30, 4.0, 1.0), (40, 6.0, 0.1), (50, 7.0, 0.1)):
        trainer.state.step = step
        trainer._return_to_first_rate(value)
        assert trainer.state.lowered == pytest.approx(lowered), step
    for step, share in ((50, 1.0), (70, 0.1)):
        trainer.state.step = step
        trainer.update()
        assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(share * trainer.updater.base_lr[0])
    for changes in ({"warmup": 0.5}, {"schedule": "linear", "cooldown": 0.8}):  # it still rises, or is 0
        early = Trainer(replace(settings, **changes, nonmono=1))
        for early.state.step, value in ((10, 1.0), (20, 2.0), (25, 3.0)):
            early._return_to_first_rate(value)
        assert early.state.lowered == 1.0
    other = Trainer(settings)
    other.load_state_dict(trainer.state_dict())
    assert (other.state.seen, other.state.lowered) == (trainer.state.seen, trainer.state.lowered)


@pytest.mark.parametrize("optimizer", ["sgd", "sam"])
def test_the_gradient_that_moves_the_weights_is_clipped(config: Any, optimizer: str) -> None:
    """--clip replaces the workload's limit, 0 removes it. SAM moves them by the second of its gradients."""
    if optimizer == "sam":
        pytest.importorskip("pytorch_optimizer")
    assert Trainer(config(optimizer)).updater.clip == Trainer(config(optimizer)).task.max_grad_norm
    assert Trainer(config(optimizer, clip=0.0)).updater.clip is None
    trainer = Trainer(config(optimizer, clip=1e-3, warmup=0.0))
    before = [p.detach().clone() for p in trainer.model.parameters()]
    trainer.update()
    moved = torch.cat([(a - b).flatten() for a, b in zip(before, trainer.model.parameters(), strict=True)])
    assert moved.norm().item() == pytest.approx(1e-3 * trainer.updater.base_lr[0], rel=1e-3)


def test_the_average_of_weights_is_evaluated_and_saved(config: Any) -> None:
    averaged = Trainer(config("sgd", ema=0.5))
    expected = None
    for _ in range(3):
        averaged.update()
        now = [p.detach().clone() for p in averaged.model.parameters()]
        expected = now if expected is None else [(a + b) / 2 for a, b in zip(expected, now, strict=True)]
    for a, b in zip(averaged.updater.average.module.parameters(), expected, strict=True):
        assert torch.allclose(a, b)
    other = Trainer(config("sgd", ema=0.5))
    other.load_state_dict(averaged.state_dict())
    assert other.evaluate() == averaged.evaluate()
    averaged.updater.average = None
    assert other.evaluate() != averaged.evaluate()


@pytest.mark.parametrize(("optimizer", "ema"), [("sgd", 0.9), ("schedule-free", 0.0)])
def test_the_weights_that_are_kept_are_those_that_were_evaluated(
    config: Any, tmp_path: Path, optimizer: str, ema: float
) -> None:
    """An average has them: a run that starts from weights.pt and does not move has the same metric."""
    run(config(optimizer, steps=20, ema=ema, keep_weights=True), RunStore(tmp_path / "a"))
    first = read_run(tmp_path / "a")
    still = config("sgd", steps=1, init=tmp_path / "a")
    run(replace(still, settings={**still.settings, "lr": 0.0}), RunStore(tmp_path / "b"))
    assert first.final is not None
    assert read_run(tmp_path / "b").final == pytest.approx(first.final, rel=1e-6)


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
    trainer.updater.forward = nn.Conv2d(1, 2, 3).to(memory_format=torch.channels_last)
    trainer.task.batches = lambda position: (torch.randn(2, 1, 8, 8),)
    trainer.task.loss = lambda model, batch: seen.append((batch[0], model(batch[0]))) or seen[-1][1].float().mean()
    trainer.update()
    assert seen[0][0].is_contiguous(memory_format=torch.channels_last)
    assert seen[0][1].dtype == torch.bfloat16


def steady_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give what the tiny workload draws on the host one value, which a compiled loss would keep anyway."""
    import random

    import numpy as np

    monkeypatch.setattr(random, "random", lambda: 0.5)
    monkeypatch.setattr(np.random, "rand", lambda: 0.5)


def test_compile_is_what_trains(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --compile one compiled function prepares the batch and makes the loss; evaluations run the plain model."""
    steady_noise(monkeypatch)
    calls, graphs = [], []
    compile_ = torch.compile

    def eagerly(function: Any, **options: Any) -> Any:
        assert options == {"dynamic": False}
        compiled = compile_(function, backend=lambda graph, inputs: graphs.append(graph) or graph.forward, **options)
        return lambda batch: calls.append(batch) or compiled(batch)

    monkeypatch.setattr(torch, "compile", eagerly)
    found, plain = Trainer(config(compile=True)), Trainer(config())
    prepare = found.task.prepare
    found.task.prepare = lambda batch: [tensor.neg().neg() for tensor in prepare(batch)]
    for trainer in (found, plain):
        torch.manual_seed(0)
        for _ in range(3):
            trainer.update()
    assert len(calls) == 3
    assert any("neg" in str(node) for graph in graphs for node in graph.graph.nodes)
    assert found.state_dict()["model"].keys() == plain.model.state_dict().keys()
    for a, b in zip(found.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(a, b)
    graphs.clear()
    assert found.evaluate() == plain.evaluate()
    assert not graphs


def test_two_gradients_of_a_batch_prepare_it_once(config: Any) -> None:
    pytest.importorskip("pytorch_optimizer")
    trainer, prepared = Trainer(config("sam")), []
    trainer.task.prepare = lambda batch: prepared.append(batch) or batch
    trainer.update()
    assert len(prepared) == 1


def test_tf32_is_a_choice(config: Any) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        for tf32, precision in ((True, "high"), (False, "highest")):
            Trainer(config(tf32=tf32))
            assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)


def test_same_seed_same_start_for_all(config: Any) -> None:
    """Seeds are pairs: the same weights and the same batches for every optimizer."""
    a, b = Trainer(config("adan", seed=3)), Trainer(config("lamb", seed=3))
    assert all(torch.equal(p, q) for p, q in zip(a.model.parameters(), b.model.parameters(), strict=True))
    assert torch.equal(a.task.batches(7)[0], b.task.batches(7)[0])
    assert not torch.equal(a.task.batches(7)[0], Trainer(config("adan", seed=4)).task.batches(7)[0])


def test_the_commit_of_another_repository_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package may be installed in a folder of it."""

    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words], cwd=tmp_path, check=True)

    file = tmp_path / ".venv" / "environment.py"
    file.parent.mkdir()
    file.touch()
    monkeypatch.setattr(environment, "__file__", str(file))
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "theirs")
    commit = environment._commit.__wrapped__  # which asks each time
    assert commit() is None
    git("add", ".")
    git("commit", "-q", "-m", "ours")
    assert re.fullmatch("[0-9a-f]{12}", commit() or "")


def step_costs(settings: Any, folder: Path, slices: int) -> tuple[float, float]:
    """Processor seconds of a step by the loop and by hand: the same training in turns, in one process.

    A step's cost is the time between two requests for a batch, so that a line written after every fourth step, as in a
    run of 240, is in the cost of that step; evaluations and checkpoints are work that was asked for. Other programs
    make steps slower, never faster: of each of the four kinds of step the fastest tenth counts. Both train the same
    model in the same memory: two copies of it differ by up to 3% in speed, depending on where they lie.
    """
    cadence, length = 4, 12
    settings = replace(settings, steps=10**6, eval_every=10**6, log_every=cadence)
    trainer = Trainer(settings)
    store = RunStore(folder / settings.workload)
    store.create(settings, trainer.workload.facts(), trainer.spec.facts(), {})
    model, optimizer, task, batches_of = trainer.model, trainer.optimizer, trainer.task, trainer.task.batches
    clocks: dict[str, list[float]] = {"loop": [], "hand": []}

    def timed(name: str) -> Callable[[int], Any]:
        def batch(position: int) -> Any:
            clocks[name].append(time.process_time())
            return batches_of(position)

        return batch

    trainer.task.batches, batches = timed("loop"), timed("hand")

    def by_hand(start: int) -> None:
        model.train()
        for position in range(start, start + length):
            optimizer.param_groups[0]["lr"] = 1e-3
            optimizer.zero_grad(set_to_none=True)
            task.loss(model, task.prepare(batches(position))).backward()
            optimizer.step()

    def by_loop(start: int) -> None:
        with pytest.raises(Pause):
            trainer.train(store, lambda progress: pause(progress.step >= start + length))

    costs: dict[str, list[list[float]]] = {name: [[] for _ in range(cadence)] for name in clocks}
    for i in range(slices):
        for part in (by_hand, by_loop) if i % 2 else (by_loop, by_hand):
            part(i * length)
        for name, clock in clocks.items():
            assert len(clock) == length
            for k, (begin, end) in enumerate(pairwise(clock)):
                costs[name][k % cadence].append(end - begin)
            clock.clear()
    fastest = {
        name: [statistics.fmean(sorted(kind)[: len(kind) // 10]) for kind in kinds] for name, kinds in costs.items()
    }
    return statistics.fmean(fastest["loop"]), statistics.fmean(fastest["hand"])


def test_loop_costs_less_than_3_percent(config: Any, tmp_path: Path) -> None:
    """What the loop adds to a step is under 3% of a step of the smallest transformer here.

    The addition is the same for every model, so it is measured on the tiny one, where a step takes well under a
    millisecond. Measured on the transformer alone it drowns: a busy machine moves the ratio by 4%, the loop by 0.6%.
    """
    tiny_loop, tiny_hand = step_costs(config("adan"), tmp_path, slices=80)
    loop, hand = step_costs(config("adan", workload="digits-vit"), tmp_path, slices=5)
    added = (tiny_loop - tiny_hand) / hand
    print(
        f"a step by hand takes {1e3 * hand:.2f} ms; the loop adds {1e6 * (tiny_loop - tiny_hand):.0f} µs, {added:.2%}"
    )
    print(f"on the transformer alone the ratio is {loop / hand:.3f}")
    assert added < 0.03


class Pause(BaseException):
    """Leaves the loop between two steps; calling it again goes on."""


def pause(now: bool) -> None:
    if now:
        raise Pause
