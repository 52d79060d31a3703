"""PPO: it resumes exactly in the midst of episodes, and its objective is the clipped one."""

from __future__ import annotations

import pytest
import torch
from support.learning import resize, resumes, trainer

from adan_bench.spec import UsageError
from adan_bench.training.trainer import Trainer
from adan_bench.workloads import ppo


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollout for every update, and episodes that end within one."""
    for robot in ppo.ROBOTS:
        resize(monkeypatch, f"ppo-{robot}", ppo.Sizes(2, 16, 2, 20), "smoke")
    monkeypatch.setattr(ppo, "PASSES", 1)
    monkeypatch.setattr(ppo, "EPISODE", 25)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("robot", ppo.ROBOTS)
def test_resumes_in_the_midst_of_episodes(robot: str) -> None:
    def make() -> Trainer:
        return trainer(f"ppo-{robot}", batch_size=32, steps=6)

    assert resumes(make, before=2, after=2)  # episodes end in the second and in the fourth rollout


@pytest.mark.usefixtures("short")
def test_a_rollout_is_new_when_its_passes_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppo, "PASSES", 2)
    batches = trainer("ppo-hopper", batch_size=16, steps=6).task.batches
    first = [batches(i) for i in range(4)]  # two passes over 32 steps
    kept = torch.cat([b["returns"] for b in first[:2]]).sort().values
    assert torch.equal(kept, torch.cat([b["returns"] for b in first[2:]]).sort().values)
    assert not torch.equal(first[0]["returns"], first[2]["returns"])
    assert not torch.equal(kept, torch.cat([batches(4)["returns"], batches(5)["returns"]]).sort().values)


@pytest.mark.usefixtures("short")
def test_truncated_episodes_are_continued_by_their_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """HalfCheetah never falls: its episodes end by their length, here at the ninth step of the second rollout."""
    run = trainer("ppo-halfcheetah", batch_size=32, steps=6)
    monkeypatch.setattr(run.model, "predict_values", lambda seen: torch.full((len(seen), 1), 100.0))
    rollouts = run.task.batches
    rollouts(0)
    assert rollouts.buffer.rewards.max() < 50
    rollouts(1)
    assert (rollouts.buffer.rewards > 50).all(1).nonzero()[0].tolist() == [8]
    assert rollouts.buffer.episode_starts[:, 0].nonzero()[0].tolist() == [9]
    assert all(world.steps == 7 for world in rollouts.simulators.envs)


@pytest.mark.usefixtures("short")
def test_the_objective_is_clipped() -> None:
    run = trainer("ppo-hopper", batch_size=32, steps=6)
    batch = run.task.batches(0)
    with torch.no_grad():
        values, log_prob, _ = run.model.evaluate_actions(batch["observations"], batch["actions"])
    assert torch.allclose(log_prob, batch["log_prob"], atol=1e-5)
    batch["returns"] = values.flatten()  # the value's part is zero
    assert run.task.loss(run.model, batch).item() == pytest.approx(0, abs=1e-6)  # normalised advantages, ratio 1
    gains = batch["advantages"] > batch["advantages"].mean()
    batch["log_prob"] = torch.where(gains, log_prob - 1, log_prob + 1)  # the ratio is e or 1/e, beyond the clip
    run.task.loss(run.model, batch).backward()
    assert run.model.action_net.weight.grad.norm().item() == pytest.approx(0, abs=1e-6)


def test_a_batch_must_divide_a_rollout() -> None:
    with pytest.raises(UsageError, match=r"--batch-size 100 must divide the 512 steps of a rollout"):
        trainer("ppo-hopper", batch_size=100)
