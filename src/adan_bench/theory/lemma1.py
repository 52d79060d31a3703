"""Lemma 1: Nesterov's AGD and AGD-II are one trajectory in two sets of variables."""

from __future__ import annotations

from typing import Any

import numpy as np

from adan_bench.theory import methods, problems
from adan_bench.theory.check import ROUNDING, Array, Chapter, Check, check, distance
from adan_bench.theory.methods import Gradient


def run(samples: int = 4000) -> Chapter:
    quadratic, zero = problems.quadratic()
    network, start = problems.digits_network(batch=128, examples=128)
    rng = np.random.default_rng(1)
    noise = 0.3 * rng.standard_normal((120, *zero.shape))
    checks = [
        *_same("a quadratic", quadratic, zero, eta=0.5, beta=0.1, steps=120),
        *_same("a network on digits", network, start, eta=0.05, beta=0.1, steps=60),
        *_same("a quadratic, the same noise", lambda x, k: quadratic(x, k) + noise[k], zero, 0.5, 0.1, 120),
    ]
    expectation, plot = _expectation(quadratic, zero, samples)
    return Chapter("lemma-1", [*checks, *expectation], plot)


def _same(name: str, gradient: Gradient, start: Array, eta: float, beta: float, steps: int) -> list[Check]:
    bar, bar_m = methods.agd(gradient, start, eta, beta, steps)
    theta, m = methods.agd2(gradient, start, eta, beta, steps)
    expected = [start] + [bar[k + 1] - eta * (1 - beta) * bar_m[k] for k in range(steps)]
    before = [np.zeros_like(start), *bar_m[:-1]]
    expected_m = [(1 - beta) ** 2 * before[k] + (2 - beta) * gradient(theta[k], k) for k in range(steps)]
    return [
        check("lemma-1 θ, $name", distance(theta, expected), ROUNDING, name=name, steps=steps),
        check("lemma-1 m, $name", distance(m, expected_m), ROUNDING, name=name),
    ]


def _expectation(quadratic: Gradient, start: Array, samples: int) -> tuple[list[Check], Any]:
    """Each method with noise of its own: the means agree within their standard errors, on the path and at the end."""
    eta, beta, steps = 0.5, 0.3, 150
    many = np.zeros((samples, *start.shape))

    def noisy(seed: int) -> Gradient:
        rng = np.random.default_rng(seed)
        return lambda x, k: quadratic(x, k) + 0.3 * rng.standard_normal(x.shape)

    bar, bar_m = methods.agd(noisy(2), many, eta, beta, steps)
    theta, _ = methods.agd2(noisy(3), many, eta, beta, steps)

    def deviation(a: Array, b: Array) -> float:
        """The largest difference of means over the coordinates, in standard errors."""
        error = np.sqrt((a.var(0) + b.var(0)) / samples)
        return float((np.abs(a.mean(0) - b.mean(0)) / error).max())

    path = [deviation(theta[k + 1], bar[k + 1] - eta * (1 - beta) * bar_m[k]) for k in range(0, steps, 10)]
    # 15 × 10 comparisons: one beyond 5 standard errors has a probability of 1e-4.
    checks = [
        check("lemma-1 expectation, path", max(path), 5.0, samples=samples, beta=beta),
        check("lemma-1 expectation, end", deviation(theta[-1], bar[-1]), 5.0, steps=steps),
    ]
    means = np.array([x.mean(0)[0] for x in theta]), np.array([x.mean(0)[0] for x in bar])

    def plot(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        exact, exact_m = methods.agd(quadratic, start, eta, beta, steps)
        second, _ = methods.agd2(quadratic, start, eta, beta, steps)
        moved = [start] + [exact[k + 1] - eta * (1 - beta) * exact_m[k] for k in range(steps)]
        left.plot([x[0] for x in exact], color="#0072B2", label="AGD: θ̄")
        left.plot([x[0] for x in second], color="#D55E00", label="AGD-II: θ")
        left.plot([x[0] for x in moved], color="black", linestyle=":", label="θ̄ − η(1−β)m̄")
        left.set(title="no noise: one coordinate", xlabel="k", xlim=(0, 40))
        right.plot(means[1], color="#0072B2", label="mean of θ̄")
        right.plot(means[0], color="#D55E00", label="mean of θ")
        right.set(title=f"independent noise: mean of {samples}", xlabel="k")

    return checks, plot
