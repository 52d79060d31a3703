"""The bounds of the supplement along real runs, with the margin that they leave.

Assumption 2 is ‖g_k‖∞ ≤ c∞/3; so c∞ here is three times the largest |g| of the run.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adan_bench.theory import methods, problems
from adan_bench.theory.check import Array, Chapter, Check, check


def run(steps: int = 300) -> Chapter:
    network, start = problems.digits_network()
    beta = (0.02, 0.08, 0.01)
    _, sequence = methods.trajectory(methods.Algorithm1(start, 0.01, beta, 1e-8), network, steps, "g")
    cycle_checks, plot_cycle = _cycle()

    shares, moments = _shares(sequence, beta, 1e-8), _largest(sequence, beta, 1e-8)
    flip = np.array([(-1.0) ** k for k in range(3000)])[:, None]
    flipped = _largest(flip, beta, 1e-8)
    flip_bound = ((1 + 2 * (1 - beta[1])) / 3) ** 2
    constant = _largest(np.ones((50, 1)), beta, 1e-8)
    # After silence one full gradient makes n jump: the step size falls by the most that β3 allows.
    jump = np.concatenate([np.full((20, 1), 1e-9), np.ones((20, 1))])
    large = 30.0 * float(np.abs(sequence).max())
    ratio, spike = _largest(sequence, beta, large)["eta"], _largest(jump, (0.02, 0.08, 1e-4), 30.0)["eta"]
    # The bound that the proofs of Proposition (x-y) and of Theorem 2's lemmas use has β² where β3 = β² gives β.
    b = 0.02
    lagging = _largest(jump, (b, b, b**2), 30.0)["eta"] / b

    def plot(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        left.semilogy(shares["m"], color="#0072B2", label="‖m_k‖∞ / c∞")
        left.semilogy(shares["n"], color="#D55E00", label="‖n_k‖∞ / c∞²")
        left.axhline(1, color="black", linestyle=":", label="bound")
        left.set(title="a network on digits", xlabel="k")
        plot_cycle(right)

    least, bound = f"{flip_bound:.4f}", f"{math.sqrt(2 * beta[2]) * large / 10 / 1e-8:.0e}"
    checks = [
        check("propositions m, digits", moments["m"], 1.0),
        check("propositions m, constant g", 3 * constant["m"], 1 + 1e-12),
        check("propositions n, digits", moments["n"], 1.0),
        check("propositions n, alternating g", flipped["n"], 1.0),
        check("propositions n, reached", flipped["n"], flip_bound * (1 - 1e-9), at_least=True, flip_bound=least),
        check("propositions η ratio, digits", ratio, 1.0, bound=bound),
        check("propositions η ratio, jump", spike, 1.0),
        check("propositions η ratio, β²", lagging, 1.0, at_least=True, beta=b),
    ]
    return Chapter("propositions", [*checks, *cycle_checks, _last_iteration()], plot)


def _shares(gradients: Array, beta: tuple[float, float, float], eps: float) -> dict[str, Array]:
    """‖m_k‖∞/c∞, ‖n_k‖∞/c∞² and |η_k/η_{k−1} − 1|·ε/(√(2β3)·c∞) along a sequence of gradients."""
    c = 3 * float(np.abs(gradients).max())
    run_ = methods.Algorithm1(np.zeros_like(gradients[0]), 0.01, beta, eps)
    _, m, n, eta = methods.trajectory(run_, lambda _, k: gradients[k], len(gradients), "m", "n", "eta_k")
    ratio = np.abs(eta[1:] / eta[:-1] - 1)
    return {"m": np.abs(m).max(1) / c, "n": n.max(1) / c**2, "eta": ratio.max(1) * eps / (math.sqrt(2 * beta[2]) * c)}


def _largest(gradients: Array, beta: tuple[float, float, float], eps: float) -> dict[str, float]:
    return {name: float(values.max()) for name, values in _shares(gradients, beta, eps).items()}


def _last_iteration() -> Check:
    """g_0 = 0, then a gradient of c∞/3: the second step ends the cycle and is longer than R."""
    radius, eps, beta, eta = 1e-4, 3.0, 0.1, 0.1
    run_ = methods.Algorithm2(np.zeros(1), eta, beta, eps, radius)
    for g in (0.0, 1.0):
        run_.step(np.array([g]))
    ratio = float(np.sqrt(methods.squared_norm(run_.theta - run_.y, np.sqrt(run_.n) + eps)[0])) / radius
    measured = ratio if run_.restarted[0] else math.nan
    return check("propositions x − y, k = 𝒦", measured, 1.0, at_least=True, radius=f"{radius:g}", beta=beta)


def _cycle(steps: int = 400) -> tuple[list[Check], Any]:
    """Within a cycle ‖x − y‖_{√n} ≤ R, √ε·‖y_k − y_0‖ ≤ R and ‖δ_k‖ ≤ 2ρR²/ε: Algorithm 2 down from a hilltop.

    The problem is −f of `ripples`: from its maximum at 0 the gradients grow, so that the radius comes to matter.
    """
    problem = problems.ripples(noise=0.02)
    assert problem.hessian is not None
    rng = np.random.default_rng(6)
    radius, eps, beta, eta = 0.03, 3 * problem.largest, 0.05, 0.1
    largest_beta = eps / (math.sqrt(2) * 3 * problem.largest + eps)
    run_ = methods.Algorithm2(0.01 * problem.start, eta, beta, eps, radius)
    shares, path, restarts, remainders, deltas = [], [], [], [0.0], [0.0]
    for k in range(steps):
        run_.step(-problem.sample(run_.theta, rng))
        if run_.restarted[0]:
            restarts.append(k)
            continue
        # x and y are those of the next k by now, and so is n.
        root = np.sqrt(run_.n) + eps
        shares.append(float(np.sqrt(methods.squared_norm(run_.theta - run_.y, root)[0])) / radius)
        path.append(math.sqrt(eps) * float(np.linalg.norm(run_.y - run_.y0)) / radius)
        away = run_.theta - run_.y0
        delta = problem.full(run_.theta) - problem.full(run_.y0) - problem.hessian(run_.y0) @ away
        size = float(np.linalg.norm(delta))
        remainders.append(size / (problem.rho / 2 * float(away @ away)))
        deltas.append(size / (2 * problem.rho * radius**2 / eps))

    def plot(axes: Any) -> None:
        axes.plot(path, color="#0072B2", label="√ε‖y_k − y_0‖ / R")
        axes.plot(shares, color="#D55E00", label="‖x_k − y_k‖_√n / R")
        axes.axhline(1, color="black", linestyle=":", label="bound")
        axes.set(title=f"Algorithm 2, {len(restarts)} restarts", xlabel="iterations within cycles")

    where = f"k < 𝒦, β = {beta} ≤ ε/(√2·c∞ + ε) = {largest_beta:.2f}, {len(restarts)} restarts in {steps} steps"
    return [
        check("propositions x − y", max(shares), 1.0, note=where),
        check("propositions y − y_0", max(path), 1.0, note=where),
        check("propositions Taylor remainder", max(remainders), 1.0, where=where),
        check("propositions δ_k", max(deltas), 1.0, note=where),
        check("propositions restarts", float(len(restarts)), 3.0, at_least=True),
    ], plot
