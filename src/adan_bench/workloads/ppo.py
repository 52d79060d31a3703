"""PPO on four robots of MuJoCo: stable-baselines3's policy, buffer and normalisation in the loop of every workload.

Numbers are Tianshou's, which the paper takes: two tanh layers of 64, 2,048 steps of 8 robots a rollout, 10 passes over
it in batches of 64 (https://github.com/thu-ml/tianshou/blob/master/examples/mujoco/mujoco_ppo.py). The objective is
stable-baselines3's: advantages are computed once a rollout, and normalised in each batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adan_bench.spec import Context, Scale, Task, UsageError
from adan_bench.workloads.registry import workload

if TYPE_CHECKING:
    from torch import Tensor, nn

PASSES = 10  # over a rollout
DISCOUNT = 0.99
GAE_LAMBDA = 0.95
CLIP = 0.2
VALUE_WEIGHT = 0.25  # and none for the entropy
EPISODE = 1_000  # steps
HELD_OUT_SEED = 10**6
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
class Sizes:
    """Robots, steps of each per rollout, episodes of an evaluation, steps of those."""

    robots: int
    steps: int
    episodes: int
    length: int = EPISODE

    def scale(self, target: float, rollouts: int, eval_every: int) -> Scale:
        """A budget in rollouts."""
        updates = PASSES * self.robots * self.steps // BATCH
        return Scale(target, rollouts * updates, BATCH, eval_every * updates, sizes=self)


def register(robot: str) -> None:
    name, smoke, small, paper = ROBOTS[robot]

    def build(context: Context) -> Task:
        return ppo(name, context)

    build.__doc__ = f"PPO on MuJoCo's {name}: rewards of whole episodes of a policy that learns from its own steps."
    workload(
        f"ppo-{robot}",
        metric="episode reward",
        higher_is_better=True,
        smoke=Sizes(4, 128, 4, 200).scale(smoke, rollouts=12, eval_every=4),
        small=Sizes(8, 256, 5).scale(small, rollouts=98, eval_every=14),  # 200k steps
        paper=Sizes(8, 256, 10).scale(paper, rollouts=1465, eval_every=15),  # three million, a look every 30,000
    )(build)


for _robot in ROBOTS:
    register(_robot)


def ppo(name: str, context: Context) -> Task:
    """The task of one robot."""
    import torch
    import torch.nn.functional as F
    from stable_baselines3.common.policies import ActorCriticPolicy

    sizes: Sizes = context.sizes
    robots, steps, episodes, length = sizes.robots, sizes.steps, sizes.episodes, sizes.length
    rollouts = Rollouts(name, robots, steps, context)
    policy: Any = ActorCriticPolicy(
        rollouts.world.observation_space,
        rollouts.world.action_space,
        lambda _: 0.0,  # the learning rate of an optimizer of its own, which takes no step
        net_arch=[64, 64],
        activation_fn=torch.nn.Tanh,
        log_std_init=-0.5,
    )
    rollouts.policy = policy
    seen = worlds(name, episodes, length)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        policy: Any = model
        values, log_prob, _ = policy.evaluate_actions(batch["observations"], batch["actions"])
        advantages = batch["advantages"]
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        ratio = torch.exp(log_prob - batch["log_prob"])
        gain = torch.minimum(advantages * ratio, advantages * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
        return VALUE_WEIGHT * F.mse_loss(values.flatten().float(), batch["returns"]) - gain

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        """One episode of each held-out robot by the mean action; its rewards until it first ends."""
        actor: Any = model
        seen.seed(HELD_OUT_SEED)
        observations = seen.reset()
        totals, running = torch.zeros(episodes), torch.ones(episodes, dtype=torch.bool)
        while running.any():
            with torch.autocast(actor.device.type, enabled=False):  # NumPy has no bf16
                actions, _ = actor.predict(rollouts.world.normalize_obs(observations), deterministic=True)
            observations, rewards, ended, _ = seen.step(actions)
            totals += torch.from_numpy(rewards) * running
            running &= ~torch.from_numpy(ended)
        return {"episode reward": totals.mean().item()}

    note = (
        f"MuJoCo, {name}: rollouts of {robots * steps:,} steps; {episodes} episodes of up to {length:,} steps held out"
    )
    return Task(policy, rollouts, loss, evaluate, note, max_grad_norm=0.5)


class Rollouts:
    """Batches of what the current policy did: a new rollout once PASSES passes over the last one are made.

    The policy acts, so a batch depends on more than its position: all of that is in `state_dict`.
    """

    policy: Any

    def __init__(self, name: str, robots: int, steps: int, context: Context) -> None:
        import torch
        from stable_baselines3.common.buffers import RolloutBuffer
        from stable_baselines3.common.vec_env import VecNormalize

        if robots * steps % context.batch_size:
            raise UsageError(f"--batch-size {context.batch_size} must divide the {robots * steps:,} steps of a rollout")
        self.seed, self.batch_size = context.seed, context.batch_size
        self.simulators = worlds(name, robots, EPISODE)
        self.simulators.seed(1_000 * context.seed)
        self.world: Any = VecNormalize(self.simulators, gamma=DISCOUNT)
        self.buffer = RolloutBuffer(
            steps, self.world.observation_space, self.world.action_space, "cpu", GAE_LAMBDA, DISCOUNT, robots
        )
        self.observations: Any = self.world.reset()
        self.starts = torch.ones(robots).numpy()
        self.number = -1
        self.data: dict[str, Tensor] = {}

    def __call__(self, position: int) -> dict[str, Tensor]:
        import torch

        from adan_bench.data.batching import generator

        size = self.buffer.buffer_size * self.buffer.n_envs
        passed, index = divmod(position, size // self.batch_size)
        if passed // PASSES != self.number:
            with torch.no_grad():
                self.collect()
            self.number = passed // PASSES
        order = torch.randperm(size, generator=generator(self.seed, passed))
        chosen = order[index * self.batch_size : (index + 1) * self.batch_size]
        return {key: value[chosen] for key, value in self.data.items()}

    def collect(self) -> None:
        """One rollout; where an episode is cut off by its length, the value of what would follow is added."""
        import numpy as np
        import torch

        policy, space = self.policy, self.world.action_space
        self.buffer.reset()
        for _ in range(self.buffer.buffer_size):
            actions, values, log_prob = policy(policy.obs_to_tensor(self.observations)[0])
            moves = actions.cpu().numpy()
            following, rewards, ended, infos = self.world.step(np.clip(moves, space.low, space.high))
            for i, info in enumerate(infos):
                if ended[i] and info["TimeLimit.truncated"]:
                    last = policy.obs_to_tensor(info["terminal_observation"])[0]
                    rewards[i] += DISCOUNT * policy.predict_values(last).item()
            self.buffer.add(self.observations, moves, rewards, self.starts, values, log_prob)
            self.observations, self.starts = following, ended
        values = policy.predict_values(policy.obs_to_tensor(self.observations)[0])
        self.buffer.compute_returns_and_advantage(values, self.starts)
        found = {
            "observations": self.buffer.observations,
            "actions": self.buffer.actions,
            "log_prob": self.buffer.log_probs,
            "advantages": self.buffer.advantages,
            "returns": self.buffer.returns,
        }
        self.data = {key: torch.from_numpy(value.copy()).flatten(0, 1) for key, value in found.items()}

    def state_dict(self) -> dict[str, Any]:
        import torch

        world = self.world
        statistics = [
            (torch.as_tensor(s.mean), torch.as_tensor(s.var), s.count) for s in (world.obs_rms, world.ret_rms)
        ]
        return {
            "number": self.number,
            "data": self.data,
            "observations": torch.as_tensor(self.observations),
            "starts": torch.as_tensor(self.starts),
            "statistics": statistics,
            "discounted": torch.as_tensor(world.returns),
            "simulators": [world.state() for world in self.simulators.envs],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.number, self.data = state["number"], dict(state["data"])
        self.observations, self.starts = state["observations"].numpy(), state["starts"].numpy()
        for running, (mean, var, count) in zip(
            (self.world.obs_rms, self.world.ret_rms), state["statistics"], strict=True
        ):
            running.mean, running.var, running.count = mean.numpy(), var.numpy(), count
        self.world.returns = state["discounted"].numpy()
        for world, found in zip(self.simulators.envs, state["simulators"], strict=True):
            world.load_state(found)


def worlds(name: str, count: int, length: int) -> Any:
    """Simulators side by side; an episode is cut off after `length` steps."""
    import gymnasium
    import mujoco
    import torch
    from stable_baselines3.common.vec_env import DummyVecEnv

    kind = mujoco.mjtState.mjSTATE_INTEGRATION

    class Limited(gymnasium.Wrapper):
        """A simulator that counts its steps, and whose state can be kept."""

        steps = 0

        def reset(self, **options: Any) -> Any:
            self.steps = 0
            return self.env.reset(**options)

        def step(self, action: Any) -> Any:
            observation, reward, terminated, _, info = self.env.step(action)
            self.steps += 1
            return observation, reward, terminated, self.steps >= length, info

        def state(self) -> dict[str, Any]:
            inner: Any = self.unwrapped
            vector = torch.empty(mujoco.mj_stateSize(inner.model, kind), dtype=torch.float64)
            mujoco.mj_getState(inner.model, inner.data, vector.numpy(), kind)
            # Ant's next reward starts at the xpos of the last substep, which the state does not determine.
            positions = torch.tensor(inner.data.xpos)
            random = inner.np_random.bit_generator.state
            return {"steps": self.steps, "vector": vector, "positions": positions, "random": random}

        def load_state(self, found: Mapping[str, Any]) -> None:
            inner: Any = self.unwrapped
            self.steps = found["steps"]
            mujoco.mj_setState(inner.model, inner.data, found["vector"].numpy(), kind)
            inner.data.xpos[:] = found["positions"].numpy()
            inner.np_random.bit_generator.state = found["random"]

    def make() -> Any:
        return Limited(gymnasium.make(name, max_episode_steps=-1, disable_env_checker=True))

    return DummyVecEnv([make] * count)
