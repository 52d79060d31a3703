"""The lemmas under Theorem 2 about whole cycles: what one lowers f by, how many there are, where the average ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adan_bench.theory import methods, problems
from adan_bench.theory.check import Array, Chapter, Check, check, mean_ends
from adan_bench.theory.problems import Problem


@dataclass(frozen=True)
class CycleSetting:
    """η = ε/(6L), β3 = β⁴, ε = c∞. K is the longest cycle."""

    problem: Problem
    radius: float = 0.7
    beta: float = 0.01
    length: int = 12

    @property
    def eps(self) -> float:
        return 3 * self.problem.largest

    @property
    def eta(self) -> float:
        return self.eps / (6 * self.problem.smoothness)

    def descent(self, length: Array | float) -> Array:
        """Lemma (one-cycle)'s R²/(4𝒦η) − 4𝒦β²R²c∞²/(ηε²) − (𝒦β+1)ησ²/ε, what a cycle of 𝒦 iterations lowers f by."""
        square, c = self.radius**2, 3 * self.problem.largest
        drift = 4 * length * self.beta**2 * square * c**2 / (self.eta * self.eps**2)
        noise = (length * self.beta + 1) * self.eta * self.problem.variance / self.eps
        return np.asarray(square / (4 * length * self.eta) - drift - noise)

    def method(self, replicas: int) -> methods.Algorithm2:
        start = np.tile(self.problem.start, (replicas, 1))
        return methods.Algorithm2(start, self.eta, self.beta, self.eps, self.radius, beta3=self.beta**4)


def run(replicas: int = 64) -> Chapter:
    return Chapter("cycle", [_one_cycle(replicas), _at_the_minimum(replicas), _restarts(replicas), _output()])


def first_cycle(setting: CycleSetting, method: methods.Algorithm2, replicas: int) -> tuple[Array, Array]:
    """𝒦 and f(y_𝒦) − f(x_0) of each replica's first cycle; NaN where it lasts longer than K."""
    rng = np.random.default_rng(13)
    problem, begin = setting.problem, setting.problem.value(setting.problem.start)
    lengths, changes = np.full((2, replicas), np.nan)
    for k, _ in problem.visited(method, setting.length, rng):
        ended = method.restarted[:, 0] & np.isnan(lengths)
        lengths[ended], changes[ended] = k + 1, (problem.value(method.y) - begin)[ended]
    return lengths, changes


def _one_cycle(replicas: int) -> Check:
    setting = CycleSetting(problems.ripples(noise=0.05))
    lengths, changes = first_cycle(setting, setting.method(replicas), replicas)
    promised = float(setting.descent(lengths).mean())
    return check("cycle descent", mean_ends(changes)[1], min(-promised, 0.0), longest=f"{np.max(lengths):.0f}")


def _at_the_minimum(replicas: int) -> Check:
    """Started at the minimum a cycle cannot lower f, and noise alone ends it."""
    accuracy = 0.1
    problem = problems.ripples(start=0.0)
    setting = CycleSetting(problem, 0.05 * accuracy**0.5, accuracy**2, round(accuracy**-2))
    start = np.tile(problem.start, (replicas, 1))
    method = methods.Algorithm2(start, accuracy**1.5, setting.beta, 1.0, setting.radius)
    lengths, changes = first_cycle(setting, method, replicas)
    words = {"accuracy": accuracy, "longest": f"{np.max(lengths):.0f}"}
    return check("cycle at the minimum", mean_ends(changes)[0], 0.0, at_least=True, **words)


def _restarts(replicas: int, steps: int = 3000) -> Check:
    setting = CycleSetting(problems.slope(), radius=0.8)
    rng, method = np.random.default_rng(14), setting.method(replicas)
    running, restarts = np.ones(replicas, dtype=bool), np.zeros(replicas)
    for _ in setting.problem.visited(method, steps, rng):
        running &= method.k[:, 0] < setting.length  # a cycle of K iterations is the last
        restarts += method.restarted[:, 0] & running
        if not running.any():
            break
    bound = float(setting.problem.value(setting.problem.start) / setting.descent(setting.length))
    most = mean_ends(np.where(running, np.nan, restarts))[1]
    return check("cycle restarts", most, bound, radius=setting.radius, length=setting.length)


def _output(length: int = 400) -> Check:
    """Constant gradient: the movement grows to the end of the cycle, so the argmin of the second half is its first."""
    beta = 0.5 / length
    method = methods.Algorithm2(np.zeros(1), 0.01, beta, 1.0)
    xs, moved = methods.trajectory(method, lambda x, k: np.ones(1), length, "moved")
    square = length * sum(moved[:, 0])  # the smallest R² with which the cycle lasts K
    _, k0 = methods.averaged_iterate(xs, moved)
    return check("cycle output", float(moved[k0, 0] / (2 * square / length**2)), 1.0)
