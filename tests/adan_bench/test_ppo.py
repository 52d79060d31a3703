"""PPO: it resumes exactly in the midst of episodes, and its objective is the clipped one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.learning import resize, resumes, trainer

from adan_bench.errors import UsageError
from adan_bench.training.roles import roles
from adan_bench.training.trainer import Trainer
from adan_bench.workloads import ppo
from adan_bench.workloads.parts.ppo import HELD_OUT_SEED, SEED_STEP
from adan_bench.workloads.registry import get_workload


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollout for every update, and episodes that end within one."""
    for robot in ppo.ROBOTS:
        resize(monkeypatch, f"ppo-{robot}", ppo.RolloutSizes(2, 16, 2, 20), "smoke")
    monkeypatch.setattr("adan_bench.workloads.parts.ppo.PASSES", 1)
    monkeypatch.setattr("adan_bench.workloads.parts.ppo.EPISODE", 25)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("robot", ppo.ROBOTS)
def test_resumes_in_the_midst_of_episodes(robot: str) -> None:
    def make() -> Trainer:
        return trainer(f"ppo-{robot}", batch_size=32, steps=6)

    assert resumes(make, before=2, after=2)  # episodes end in the second and in the fourth rollout


@pytest.mark.usefixtures("short")
def test_a_rollout_is_new_when_its_passes_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adan_bench.workloads.parts.ppo.PASSES", 2)
    run = trainer("ppo-hopper", batch_size=16, steps=6)
    first = [run.task.batches(i) for i in range(2)]  # a pass over 32 steps
    for parameter in run.model.parameters():
        parameter.data.mul_(1.1)
    later = [run.task.batches(i) for i in (2, 3)]

    def sorted_rows(batches: list[Any], key: str) -> torch.Tensor:
        return torch.cat([batch[key].flatten(1) if batch[key].dim() > 1 else batch[key] for batch in batches]).sort(0)[
            0
        ]

    assert torch.equal(sorted_rows(first, "actions"), sorted_rows(later, "actions"))
    assert not torch.equal(first[0]["actions"], later[0]["actions"])  # in another order
    assert not torch.equal(sorted_rows(first, "advantages"), sorted_rows(later, "advantages"))  # the value has changed
    again = [run.task.batches(i) for i in (4, 5)]
    assert not torch.equal(sorted_rows(first, "actions"), sorted_rows(again, "actions"))


@pytest.mark.usefixtures("short")
def test_returns_are_those_of_tianshou() -> None:
    """Generalized advantages one step of one robot at a time; episodes end by a fall or by their length."""
    run = trainer("ppo-hopper", batch_size=32, steps=6)
    rollouts: Any = run.task.batches
    seen = []
    for number in range(4):
        deviation = (torch.tensor(seen).var(correction=0).item() + 1e-8) ** 0.5 if seen else 1.0
        found = rollouts(number)
        rollout = rollouts.rollout
        with torch.no_grad():
            now, after = (rollouts.value(rollout[name]) * deviation for name in ("observations", "following"))
        advantages = torch.zeros(16, 2, dtype=torch.float64)
        for robot in range(2):
            gain = 0.0
            for t in reversed(range(16)):
                follows = 0.0 if rollout["fell"][t, robot] else after[t, robot].item()
                surprise = rollout["rewards"][t, robot].item() + 0.99 * follows - now[t, robot].item()
                gain = surprise + (0.0 if rollout["ended"][t, robot] else 0.99 * 0.95 * gain)
                advantages[t, robot] = gain
        returns = advantages + now
        torch.testing.assert_close(rollouts.data["advantages"].double(), advantages.flatten(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            rollouts.data["returns"].double(), returns.flatten() / deviation, rtol=1e-5, atol=1e-5
        )
        seen += returns.flatten().tolist()
        assert len(found["returns"]) == 32
    assert rollouts.returns.count == len(seen)
    assert rollouts.rollout["rewards"].abs().max() > 0.5  # not normalized


@pytest.mark.usefixtures("short")
def test_truncated_episodes_are_continued_by_their_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """HalfCheetah never falls: its episodes end by their length, here at the ninth step of the second rollout."""
    run = trainer("ppo-halfcheetah", batch_size=32, steps=6)
    rollouts: Any = run.task.batches
    rollouts(0)
    assert not rollouts.rollout["ended"].any()
    rollouts(1)
    assert rollouts.rollout["ended"].all(1).nonzero().flatten().tolist() == [8]
    assert not rollouts.rollout["fell"].any()
    last, new = rollouts.rollout["following"][8], rollouts.rollout["observations"][9]
    assert not torch.allclose(last, new)  # the end of the episode, not the beginning of the next one
    assert torch.equal(rollouts.rollout["following"][3], rollouts.rollout["observations"][4])
    assert all(world.env._elapsed_steps == 7 for world in rollouts.simulators.envs)


@pytest.mark.usefixtures("short")
def test_the_objective_is_clipped() -> None:
    run = trainer("ppo-hopper", batch_size=32, steps=6)
    batch = run.task.batches(0)
    with torch.no_grad():
        values, log_prob, _ = run.model.evaluate_actions(batch["observations"], batch["actions"])
    assert torch.allclose(log_prob, batch["log_prob"], atol=1e-5)
    batch["returns"] = values.flatten()  # the value's part is zero
    assert run.task.loss(run.model, batch).item() == pytest.approx(-batch["advantages"].mean().item(), abs=1e-4)
    gains = batch["advantages"] > 0
    batch["log_prob"] = torch.where(gains, log_prob - 1, log_prob + 1)  # the ratio is e or 1/e, beyond the clip
    run.task.loss(run.model, batch).backward()
    assert run.model.action_net.weight.grad.norm().item() == pytest.approx(0, abs=1e-6)


@pytest.mark.usefixtures("short")
def test_weights_hold_the_statistics_of_observations(tmp_path: Path) -> None:
    first = trainer("ppo-hopper", batch_size=32, steps=6)
    for _ in range(3):
        first.update()
    torch.save(first.model.state_dict(), tmp_path / "weights.pt")
    second = trainer("ppo-hopper", batch_size=32, steps=6, init=tmp_path)
    second.update()
    statistics = second.task.batches.world.obs_rms
    assert statistics.count == pytest.approx(first.model.observed_count.item() + 32)
    assert first.model.observed_mean.abs().max() > 0.1


def test_published_start() -> None:
    policy: Any = trainer("ppo-ant").model
    norms = {layer: layer.weight.detach().double() for layer in policy.modules() if isinstance(layer, torch.nn.Linear)}
    assert len(norms) == 6
    for layer, weight in norms.items():
        small = weight @ weight.T if weight.shape[0] < weight.shape[1] else weight.T @ weight
        gain = 0.0002 if layer is policy.action_net else 2.0
        torch.testing.assert_close(small, gain * torch.eye(len(small), dtype=torch.float64), rtol=1e-4, atol=1e-5)
    assert policy.log_std.tolist() == [-0.5] * 8


def test_both_networks_end_in_a_head() -> None:
    made = trainer("ppo-ant")
    found = roles(made.model, made.task.roles)
    assert [name for name, role in found.items() if role.name == "head"] == ["action_net.weight", "value_net.weight"]


def test_a_batch_must_divide_a_rollout() -> None:
    with pytest.raises(UsageError, match=r"--batch-size 100 must divide the 512 steps of a rollout"):
        trainer("ppo-hopper", batch_size=100)


def test_no_run_trains_in_the_episodes_that_are_held_out() -> None:
    """Neither with the seed of tuning trials nor with any other: not one robot begins in a held-out initial state."""
    sizes = [scale.sizes for robot in ppo.ROBOTS for scale in get_workload(f"ppo-{robot}").scales.values()]
    robots, episodes = (max(getattr(size, name) for size in sizes) for name in ("robots", "episodes"))
    held_out = range(HELD_OUT_SEED, HELD_OUT_SEED + episodes)
    assert not [seed for seed in held_out if seed % SEED_STEP < robots]
