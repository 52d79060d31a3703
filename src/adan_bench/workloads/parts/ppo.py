"""PPO with stable-baselines3's policy: rollouts of simulated robots, whose state goes into checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adan_bench.data.batching import generator
from adan_bench.errors import UsageError
from adan_bench.task import Context, Task
from adan_bench.workloads.ppo import EPISODE, PASSES, RolloutSizes

DISCOUNT = 0.99
GAE_LAMBDA = 0.95
CLIP = 0.2
VALUE_WEIGHT = 0.25  # and none for the entropy
EPS = 1e-8  # beside the variance of returns
SEED_STEP = 1_000  # robot i of a run has the seed SEED_STEP * seed + i
HELD_OUT_SEED = 10**6 + SEED_STEP // 2  # and episode i of an evaluation this one + i, which is none of those
STATISTICS = ("mean", "var", "count")
COLLECTED = ("observations", "following", "actions", "log_prob", "rewards", "ended", "fell")


def ppo(context: Context, name: str) -> Task:
    from stable_baselines3.common.policies import ActorCriticPolicy

    sizes: RolloutSizes = context.sizes
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
    with_tianshous_start(policy)
    rollouts.attach(policy)
    seen = worlds(name, episodes, length)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        policy: Any = model
        values, log_prob, _ = policy.evaluate_actions(batch["observations"], batch["actions"])
        advantages, ratio = batch["advantages"], torch.exp(log_prob - batch["log_prob"])
        gain = torch.minimum(advantages * ratio, advantages * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
        return VALUE_WEIGHT * F.mse_loss(values.flatten().float(), batch["returns"]) - gain

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        """One episode of each held-out robot by sampled actions; its rewards until it first ends."""
        actor: Any = model
        seen.seed(HELD_OUT_SEED)
        observations = seen.reset()
        totals, running = torch.zeros(episodes), torch.ones(episodes, dtype=torch.bool)
        with torch.random.fork_rng([actor.device] if actor.device.type == "cuda" else []):
            torch.manual_seed(HELD_OUT_SEED)
            while running.any():
                with torch.autocast(actor.device.type, enabled=False):  # NumPy has no bf16
                    actions, _ = actor.predict(rollouts.world.normalize_obs(observations))
                observations, rewards, ended, _ = seen.step(actions)
                totals += torch.from_numpy(rewards) * running
                running &= ~torch.from_numpy(ended)
        return {"episode reward": totals.mean().item()}

    note = (
        f"MuJoCo, {name}: rollouts of {robots * steps:,} steps; {episodes} episodes of up to {length:,} steps held out"
    )
    return Task(policy, rollouts, loss, evaluate, note, max_grad_norm=0.5, roles={"action_net.weight": "head"})


def with_tianshous_start(policy: Any) -> None:
    """Orthogonal weights of gain √2, those of the mean action a hundredth of that; biases of zero."""
    for layer in policy.modules():
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight, 2**0.5 * (0.01 if layer is policy.action_net else 1))
            nn.init.zeros_(layer.bias)


class Rollouts:
    """Batches of what the current policy did: a new rollout once PASSES passes over the last one are made.

    The policy acts, so a batch depends on more than its position: all of that is in `state_dict`. The running mean and
    variance of observations are also buffers of the policy, so that its weights are of use without this.
    """

    policy: Any

    def __init__(self, name: str, robots: int, steps: int, context: Context) -> None:
        from stable_baselines3.common.running_mean_std import RunningMeanStd
        from stable_baselines3.common.vec_env import VecNormalize

        if robots * steps % context.batch_size:
            raise UsageError(f"--batch-size {context.batch_size} must divide the {robots * steps:,} steps of a rollout")
        self.seed, self.batch_size, self.steps, self.size = context.seed, context.batch_size, steps, robots * steps
        self.simulators = worlds(name, robots, EPISODE)
        self.simulators.seed(SEED_STEP * context.seed)
        self.world: Any = VecNormalize(self.simulators, norm_reward=False)
        self.returns: Any = RunningMeanStd(epsilon=0.0)
        self.observations: Any = self.world.reset()
        self.passed = -1
        self.rollout: dict[str, Tensor] = {}  # steps × robots
        self.data: dict[str, Tensor] = {}  # the same for the loss, one row per step of a robot

    def attach(self, policy: Any) -> None:
        self.policy = policy
        for name in STATISTICS:
            value = torch.as_tensor(getattr(self.world.obs_rms, name), dtype=torch.float64)
            policy.register_buffer(f"observed_{name}", value.clone())

    def __call__(self, position: int) -> dict[str, Tensor]:
        passed, index = divmod(position, self.size // self.batch_size)
        if passed != self.passed:
            with torch.no_grad():
                if passed // PASSES != self.passed // PASSES:
                    self.collect()
                self.judge()
            self.passed = passed
        order = torch.randperm(self.size, generator=generator(self.seed, passed))
        chosen = order[index * self.batch_size : (index + 1) * self.batch_size]
        return {key: value[chosen] for key, value in self.data.items()}

    def collect(self) -> None:
        import numpy as np

        policy, space, statistics = self.policy, self.world.action_space, self.world.obs_rms
        if self.passed < 0:  # the policy may have started from the weights of another run
            for name in STATISTICS:
                setattr(statistics, name, getattr(policy, f"observed_{name}").cpu().numpy())
            self.observations = self.world.normalize_obs(self.world.get_original_obs())
        parts: dict[str, list[Any]] = {name: [] for name in COLLECTED}
        for _ in range(self.steps):
            actions, _, log_prob = policy(policy.obs_to_tensor(self.observations)[0])
            following, rewards, ended, infos = self.world.step(np.clip(actions.cpu().numpy(), space.low, space.high))
            after, fell = following.copy(), ended.copy()
            for i in ended.nonzero()[0]:
                after[i] = infos[i]["terminal_observation"]
                fell[i] = not infos[i]["TimeLimit.truncated"]
            for name, value in zip(
                COLLECTED, (self.observations, after, actions, log_prob, rewards, ended, fell), strict=True
            ):
                parts[name].append(torch.as_tensor(value).cpu())
            self.observations = following
        self.rollout = {name: torch.stack(values) for name, values in parts.items()}
        for name in STATISTICS:
            getattr(policy, f"observed_{name}").copy_(torch.as_tensor(getattr(statistics, name)))

    def judge(self) -> None:
        """Returns and advantages by the present value; an episode that its length cut off goes on in expectation."""
        rollout, deviation = self.rollout, (float(self.returns.var) + EPS) ** 0.5
        values, following = (self.value(rollout[name]) * deviation for name in ("observations", "following"))
        surprise = rollout["rewards"] + DISCOUNT * following * ~rollout["fell"] - values
        advantages, gain = surprise.clone(), surprise[0] * 0
        for step in reversed(range(self.steps)):
            gain = surprise[step] + DISCOUNT * GAE_LAMBDA * ~rollout["ended"][step] * gain
            advantages[step] = gain
        returns = advantages + values
        tensors = {"advantages": advantages, "returns": returns / deviation}
        tensors |= {name: rollout[name] for name in ("observations", "actions", "log_prob")}
        self.data = {name: value.float().flatten(0, 1) for name, value in tensors.items()}
        self.returns.update(returns.flatten().double().numpy())

    def value(self, observations: Tensor) -> Tensor:
        values: Tensor = self.policy.predict_values(observations.flatten(0, 1).to(self.policy.device))
        return values.view(observations.shape[:2]).cpu()

    def state_dict(self) -> dict[str, Any]:
        running = [
            [torch.as_tensor(getattr(statistics, name)).clone() for name in STATISTICS]
            for statistics in (self.world.obs_rms, self.returns)
        ]
        return {
            "passed": self.passed,
            "rollout": self.rollout,
            "data": self.data,
            "observations": torch.as_tensor(self.observations),
            "statistics": running,
            "simulators": [world.state() for world in self.simulators.envs],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.passed, self.rollout, self.data = state["passed"], dict(state["rollout"]), dict(state["data"])
        self.observations = state["observations"].numpy()
        for statistics, values in zip((self.world.obs_rms, self.returns), state["statistics"], strict=True):
            for name, value in zip(STATISTICS, values, strict=True):
                setattr(statistics, name, value.numpy())
        for world, snapshot in zip(self.simulators.envs, state["simulators"], strict=True):
            world.load_state(snapshot)


def worlds(name: str, count: int, length: int) -> Any:
    """Simulators side by side; an episode is cut off after `length` steps."""
    import gymnasium
    import mujoco
    from stable_baselines3.common.vec_env import DummyVecEnv

    kind = mujoco.mjtState.mjSTATE_INTEGRATION

    class Simulator(gymnasium.Wrapper):
        """A simulator whose state can be kept."""

        env: Any  # gymnasium's TimeLimit, which counts the steps of an episode

        def state(self) -> dict[str, Any]:
            inner: Any = self.unwrapped
            vector = torch.empty(mujoco.mj_stateSize(inner.model, kind), dtype=torch.float64)
            mujoco.mj_getState(inner.model, inner.data, vector.numpy(), kind)
            # Ant's next reward starts at the xpos of the last substep, which the state does not determine.
            positions = torch.tensor(inner.data.xpos)
            random = inner.np_random.bit_generator.state
            return {"steps": self.env._elapsed_steps, "vector": vector, "positions": positions, "random": random}

        def load_state(self, state: Mapping[str, Any]) -> None:
            inner: Any = self.unwrapped
            self.env._elapsed_steps = state["steps"]
            mujoco.mj_setState(inner.model, inner.data, state["vector"].numpy(), kind)
            inner.data.xpos[:] = state["positions"].numpy()
            inner.np_random.bit_generator.state = state["random"]

    def make() -> Any:
        return Simulator(gymnasium.make(name, max_episode_steps=length, disable_env_checker=True))

    return DummyVecEnv([make] * count)
