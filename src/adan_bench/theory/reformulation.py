"""Algorithm 1 and Algorithm 2, step by step: β1 = β2 = β, β3 = β², η_k from n_{k−1}."""

from __future__ import annotations

import numpy as np

from adan_bench.theory import methods, problems
from adan_bench.theory.check import ROUNDING, Array, Chapter, Check, distance
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
        _package(network, start),
    ]
    return Chapter(
        "reformulation",
        "Algorithm 1 and Algorithm 2",
        "With β1 = β2 the supplement rewrites Algorithm 1 with y_{k+1} = x_k − βη_k∘g_k. The two are the same step by "
        "step, from any state. Their printed starts differ at one step, and so does the footnote's v_1 = g_1 − g_0; "
        "both differences are measured below.",
        checks,
    )


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
        Check(f"reformulation x, {name}", f"max |θ_k − x_k| over {steps} steps, y_1 by line 7", x, ROUNDING),
        Check(f"reformulation y, {name}", "max |y_k(Algorithm 1) − y_k(Algorithm 2)|, k ≥ 2", y, ROUNDING),
        Check(
            f"reformulation Eqn 8's y, {name}",
            "θ_{k+1} + η_k∘(m_k + (1−β)v_k − βg_k) is θ_k − βη_k∘g_k, k ≥ 1",
            definition,
            ROUNDING,
        ),
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
    return [
        Check(
            "reformulation start y_1 = x_1",
            "Algorithm 2 as printed: x_2 − θ_2 is (1−β)²η_1∘g_0, no more",
            distance(printed - plain, (1 - BETA) ** 2 * eta_1 * g0),
            ROUNDING,
            note=f"the difference itself: {distance(printed, plain):.2e}",
        ),
        Check(
            "reformulation start v_1 = g_1 − g_0",
            "Algorithm 1 with its footnote: θ_2 moves by −(1−β)²η_1∘(g_1 − g_0), no more",
            distance(footnote - plain, -((1 - BETA) ** 2) * eta_1 * (g1 - g0)),
            ROUNDING,
            note=f"the difference itself: {distance(footnote, plain):.2e}",
        ),
    ]


def _package(gradient: Gradient, start: Array) -> Check:
    """Algorithm 1 as written here, η_k from n_k, footnote included, against the package in fp64."""
    import torch

    from adan import Adan

    beta, lam, steps = (0.1, 0.2, 0.05), 0.3, 80
    own = methods.Algorithm1(start, ETA, beta, 1e-3, lam=lam)
    p = torch.tensor(start, requires_grad=True)
    betas = (1 - beta[0], 1 - beta[1], 1 - beta[2])
    package = Adan([p], lr=ETA, betas=betas, eps=1e-3, weight_decay=lam, bias_correction=False)
    worst = 0.0
    for k in range(steps):
        p.grad = torch.tensor(gradient(p.detach().numpy(), k))
        own.step(gradient(own.theta, k))
        package.step()
        worst = max(worst, distance(own.theta, p.detach().numpy()))
    claim = f"Algorithm 1 here and adan.Adan(bias_correction=False): max |θ_k − θ_k| over {steps} steps"
    return Check("reformulation adan.Adan", claim, worst, ROUNDING)
