"""The lemmas under Theorem 2 about whole cycles: what one lowers f by, how many there are, where the average ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adan_bench.theory import methods, problems
from adan_bench.theory.check import Array, Chapter, Check, mean_ends
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
    return Chapter(
        "cycle",
        "The lemmas under Theorem 2",
        "Lemma (one-cycle): a cycle that ends by the restart condition lowers f by R²/(4𝒦η) − 4𝒦β²R²c∞²/(ηε²) − "
        "(𝒦β+1)ησ²/ε; so there are at most Δ_f divided by that many. The printed proof leaves four gaps. (1) All "
        "three terms are of the order ϵ^1.5, so the orders of R, β, η and K do not make the sum positive: constants "
        "do. (2) The second term uses |η_k/η_{k−1} − 1| ≤ √2β²c∞/ε, which Proposition (eta_diff) gives for β3 = β⁴, "
        "not for the β3 = β² of the theorem. (3) The proof sums f(y_𝒦) − f(x_0) over cycles, but the next one starts "
        "at x_𝒦; f(x_𝒦) ≤ f(y_{𝒦+1}) + O(βη) repairs it. (4) n_0 = g_0² makes η_0 depend on the noise of g_0; the "
        "bound ησ²/ε holds still, because g ↦ g/(|g| + ε) is 1/ε-Lipschitz. None of it depends on v's sign as long "
        "as ηL/ε is small.",
        [_one_cycle(replicas), _at_the_minimum(replicas), _restarts(replicas), _output()],
    )


def first_cycle(setting: CycleSetting, method: methods.Algorithm2, replicas: int) -> tuple[Array, Array]:
    """𝒦 and f(y_𝒦) − f(x_0) of each replica's first cycle; NaN where it lasts longer than K."""
    rng = np.random.default_rng(13)
    problem, begin = setting.problem, setting.problem.value(setting.problem.start)
    lengths, changes = np.full((2, replicas), np.nan)
    for k in range(setting.length):
        method.step(problem.sample(method.theta, rng))
        ended = method.restarted[:, 0] & np.isnan(lengths)
        lengths[ended], changes[ended] = k + 1, (problem.value(method.y) - begin)[ended]
    return lengths, changes


def _one_cycle(replicas: int) -> Check:
    setting = CycleSetting(problems.ripples(noise=0.05))
    lengths, changes = first_cycle(setting, setting.method(replicas), replicas)
    promised = float(setting.descent(lengths).mean())
    return Check(
        "cycle descent",
        "Lemma (one-cycle): E(f(y_𝒦) − f(x_0)) ≤ −R²/(4𝒦η) + 4𝒦β²R²c∞²/(ηε²) + (𝒦β+1)ησ²/ε < 0 (upper end of the 95% "
        "interval)",
        mean_ends(changes)[1],
        min(-promised, 0.0),
        note=f"𝒦 ≤ {np.max(lengths):.0f}; 6Lη ≤ ε, β ≤ ε/(2√2c∞ + ε), 16𝒦²β²c∞² < ε², β3 = β⁴",
    )


def _at_the_minimum(replicas: int) -> Check:
    """Started at the minimum a cycle cannot lower f, and noise alone ends it."""
    accuracy = 0.1
    problem = problems.ripples(start=0.0)
    setting = CycleSetting(problem, 0.05 * accuracy**0.5, accuracy**2, round(accuracy**-2))
    start = np.tile(problem.start, (replicas, 1))
    method = methods.Algorithm2(start, accuracy**1.5, setting.beta, 1.0, setting.radius)
    lengths, changes = first_cycle(setting, method, replicas)
    return Check(
        "cycle at the minimum",
        "counterexample to Lemma (one-cycle) as printed: with R = 0.05ϵ^0.5, β = ϵ², η = ϵ^1.5 and 𝒦 ≤ K = ϵ^−2 a "
        "cycle from the minimum raises f (lower end of the 95% interval)",
        mean_ends(changes)[0],
        0.0,
        at_least=True,
        note=f"ϵ = {accuracy}, every 𝒦 ≤ {np.max(lengths):.0f}; so the lemma needs σ small against R/η",
    )


def _restarts(replicas: int, steps: int = 3000) -> Check:
    setting = CycleSetting(problems.slope(), radius=0.8)
    rng, method = np.random.default_rng(14), setting.method(replicas)
    running, restarts = np.ones(replicas, dtype=bool), np.zeros(replicas)
    for _ in range(steps):
        method.step(setting.problem.sample(method.theta, rng))
        running &= method.k[:, 0] < setting.length  # a cycle of K iterations is the last
        restarts += method.restarted[:, 0] & running
        if not running.any():
            break
    bound = float(setting.problem.value(setting.problem.start) / setting.descent(setting.length))
    return Check(
        "cycle restarts",
        "at most Δ_f/(R²/(4Kη) − 4Kβ²R²c∞²/(ηε²) − (Kβ+1)ησ²/ε) cycles end before one lasts K (upper end of the 95% "
        "interval)",
        mean_ends(np.where(running, np.nan, restarts))[1],
        bound,
        note=f"f(x) = √(1 + x²) from x = 30, R = {setting.radius}, K = {setting.length}; conditions as for the descent",
    )


def _output(length: int = 400) -> Check:
    """Constant gradient: the movement grows to the end of the cycle, so the argmin of the second half is its first."""
    beta = 0.5 / length
    method = methods.Algorithm2(np.zeros(1), 0.01, beta, 1.0)
    moved, xs = [], [method.theta]
    for _ in range(length):
        method.step(np.ones(1))
        moved.append(float(method.moved[0]))
        xs.append(method.theta)
    square = length * sum(moved)  # the smallest R² with which the cycle lasts K
    _, k0 = methods.averaged_iterate(xs, moved)
    return Check(
        "cycle output",
        "Lemma (last-cycle), step (d): ‖y_{K0+1} − y_{K0}‖²_√n ≤ 2R²/K² at the K0 of the output rule (share)",
        moved[k0] / (2 * square / length**2),
        1.0,
        note="constant gradient, the smallest R that lets the cycle last K; the proof has y_{K0} − y_{K0−1} there",
    )
