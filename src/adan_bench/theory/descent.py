"""The lemmas under Theorem 1: the proximal step's descent, and how far m and v are from what they estimate."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from adan_bench.theory import methods, problems
from adan_bench.theory.check import Chapter, Check, check, mean_ends
from adan_bench.theory.theorem1 import decayed_problem


def run(replicas: int = 2000) -> Chapter:
    return Chapter("descent", [_prox(), _large_eps(), *_averages(replicas)])


def _prox(steps: int = 300) -> Check:
    problem = decayed_problem()
    c = 3 * problem.largest
    eps, mu = c / 10, 1e-4
    eta = eps / (3 * problem.smoothness)
    lam = 1 / (10 * eta)  # η = min(ε/(3L), 1/(10λ)), both at once
    rng = np.random.default_rng(11)
    adan = methods.Algorithm1(problem.start, eta, (0.3, 0.3, (mu * eps / c) ** 2 / 2), eps, lam, mu)
    promised, size, worst = math.inf, 1.0, -math.inf
    for k, theta in problem.visited(adan, steps, rng):
        root, lam_k = np.sqrt(adan.n) + eps, methods.decayed(lam, mu, k)
        objective = float(problem.value(theta) + lam_k / 2 * methods.squared_norm(theta, root)[0])
        worst = max(worst, (objective - promised) / size)
        descent = eta / (4 * c) * float(((adan.u + lam_k * root * theta) ** 2).sum())
        error = eta / (2 * eps) * float(((problem.full(theta) - adan.u) ** 2).sum())
        promised, size = objective - descent + error, descent + error
    return check("descent prox", worst, 0.0)


def _large_eps() -> Check:
    """f(θ) = gθ: a step lowers f by ηg²/(g + ε), and the lemma promises ηg²/(4c∞)."""
    g, eta = 1.0, 0.1
    c = 3 * g
    adan = methods.Algorithm1(np.zeros(1), eta, (0.1, 0.1, 0.1), eps=10 * c)
    adan.step(np.array([g]))
    return check("descent large ε", eta * g**2 / (4 * c) / float(-g * adan.theta[0]), 1.0, at_least=True)


def _averages(replicas: int, steps: int = 40) -> list[Check]:
    """Lemmas (mk) and (vk) at every k; the upper end of the interval of left − right, as a share of the right."""
    problem, beta = problems.ripples(), 0.2
    rng = np.random.default_rng(12)
    start = np.tile(problem.start, (replicas, 1))
    adan = methods.Algorithm1(start, 0.05, (beta, beta, 0.01), 1.0, footnote=False)
    smooth, variance = problem.smoothness**2, problem.variance
    states = []
    worst = np.full(2, -np.inf)
    for _, theta in problem.visited(adan, steps, rng):
        g = problem.full(theta)
        states.append((((adan.m - g) ** 2).sum(-1), (adan.v**2).sum(-1), theta, g))
    for (m, v, theta_last, g_last), (*now, theta, g) in pairwise(states):
        moved, turned = ((theta - theta_last) ** 2).sum(-1), ((g - g_last) ** 2).sum(-1)
        rights = (
            (1 - beta) * m + (1 - beta) ** 2 * smooth / beta * moved + beta**2 * variance,
            (1 - beta) * v + 2 * beta * turned + 3 * beta**2 * variance,
        )
        for i, (left, right) in enumerate(zip(now, rights, strict=True)):
            worst[i] = max(worst[i], mean_ends(left - right)[1] / float(right.mean()))
    return [
        check(f"descent {name}", w, 0.0, beta=beta, replicas=replicas)
        for name, w in zip("mv", worst.tolist(), strict=True)
    ]
