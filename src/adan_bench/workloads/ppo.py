"""PPO on four robots of MuJoCo, as Tianshou trains it, with stable-baselines3's policy in the loop of every workload.

Tianshou's example of May 2022, which the paper takes (https://github.com/thu-ml/tianshou, commit 2a7c1517,
examples/mujoco/mujoco_ppo.py). Observations are divided by their running deviation. Rewards are not: the value learns
returns divided by theirs. Returns and advantages are computed anew before every pass, by the value of that moment;
advantages are not normalized. Actions are sampled in evaluation too. Two things differ: the simulators are gymnasium's
v5, not v3, and the last observation of an episode does not count in the running deviation.
"""

from __future__ import annotations

from dataclasses import dataclass

from adan_bench.task import Scale
from adan_bench.workloads.registry import built_by, workload

PASSES = 10  # over a rollout
EPISODE = 1_000  # steps
BATCH = 64
#: The simulator's name; targets at smoke, small and paper (there Tianshou's PPO with Adam after 1M steps). An untrained
#: HalfCheetah has about 0 and an untrained Ant 200; the 6,144 steps of smoke are too few to change that by much.
ROBOTS = {
    "hopper": ("Hopper-v5", 150, 500, 2609.3),
    "halfcheetah": ("HalfCheetah-v5", 10, 500, 5783.9),
    "walker2d": ("Walker2d-v5", 200, 500, 3588.5),
    "ant": ("Ant-v5", 250, 500, 3258.4),
}


@dataclass(frozen=True)
class RolloutSizes:
    """Robots, steps of each per rollout, episodes of an evaluation, steps of those."""

    robots: int
    steps: int
    episodes: int
    length: int = EPISODE

    def scale(self, target: float, rollouts: int, eval_every: int) -> Scale:
        updates = PASSES * self.robots * self.steps // BATCH
        return Scale(target, rollouts * updates, BATCH, eval_every * updates, sizes=self)


for _robot, (_name, _smoke, _small, _paper) in ROBOTS.items():
    workload(
        f"ppo-{_robot}",
        metric="episode reward",
        higher_is_better=True,
        smoke=RolloutSizes(4, 128, 4, 200).scale(_smoke, rollouts=12, eval_every=4),
        small=RolloutSizes(8, 256, 5).scale(_small, rollouts=98, eval_every=14),  # 200k steps
        paper=RolloutSizes(64, 32, 10).scale(_paper, rollouts=1500, eval_every=15),  # 3 million, a look every 30,720
        summary=f"PPO on MuJoCo's {_name}: rewards of whole episodes of a policy that learns from its own steps",
        one_rank="its batches come from the simulators of one process",
    )(built_by("ppo", "ppo", _name))
