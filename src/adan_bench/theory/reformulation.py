"""Algorithm 1 and Algorithm 2, step by step: β1 = β2 = β, β3 = β², η_k from n_{k−1}."""

from __future__ import annotations

import numpy as np

from adan_bench.theory import methods, problems
from adan_bench.theory.check import ROUNDING, Array, Chapter, Check, check, distance
from adan_bench.theory.methods import Algorithm1, Algorithm2, Gradient

BETA, ETA, EPS = 0.2, 0.02, 0.1


def run() -> Chapter:
    quadratic, zero = problems.quadratic()
    network, start = problems.digits_network()
    rng = np.random.default_rng(4)
    noise = 0.1 * rng.standard_normal((200, *zero.shape))
    checks = [
        *_same("a noisy quadratic", lambda x, k: quadratic(x, k) + noise[k], zero, 200),
        *_same("a network on digits", network, start, 100),
        *_starts(quadratic, zero),
    ]
    return Chapter("reformulation", checks)


def _algorithm1(start: Array, footnote: bool) -> Algorithm1:
    # A finite radius that nothing reaches makes Algorithm 1 keep y.
    return methods.Algorithm1(start, ETA, (BETA, BETA, BETA**2), EPS, radius=1e9, lagged=True, footnote=footnote)


def _same(name: str, gradient: Gradient, start: Array, steps: int) -> list[Check]:
    one = _algorithm1(start, footnote=False)
    two = methods.Algorithm2(start, ETA, BETA, EPS, printed=False)
    x, y, definition = 0.0, 0.0, 0.0
    for k in range(steps):
        before = one.theta
        one.step(gradient(one.theta, k))
        two.step(gradient(two.theta, k))
        x = max(x, distance(one.theta, two.theta))
        if k >= 1:  # y_1 is θ_1 in Algorithm 1's condition
            y = max(y, distance(one.y, two.y))
            definition = max(definition, distance(one.y, before - BETA * one.eta_k * one.g))
    return [
        check("reformulation x, $name", x, ROUNDING, name=name, steps=steps),
        check("reformulation y, $name", y, ROUNDING, name=name),
        check("reformulation Eqn 8's y, $name", definition, ROUNDING, name=name),
    ]


def _starts(gradient: Gradient, start: Array) -> list[Check]:
    """Where the printed texts part: at x_2."""

    def second(method: Algorithm1 | Algorithm2) -> tuple[Array, Array, Array, Array]:
        g0 = gradient(start, 0)
        method.step(g0)
        g1 = gradient(method.theta, 1)
        method.step(g1)
        return method.theta, method.eta_k, g0, g1

    plain, eta_1, g0, g1 = second(_algorithm1(start, footnote=False))
    printed, *_ = second(methods.Algorithm2(start, ETA, BETA, EPS))
    footnote, *_ = second(_algorithm1(start, footnote=True))
    checks = []
    for name, other, gap in (
        ("reformulation start y_1 = x_1", printed, (1 - BETA) ** 2 * eta_1 * g0),
        ("reformulation start v_1 = g_1 − g_0", footnote, -((1 - BETA) ** 2) * eta_1 * (g1 - g0)),
    ):
        difference = f"{distance(other, plain):.2e}"
        checks.append(check(name, distance(other - plain, gap), ROUNDING, difference=difference))
    return checks
