"""The proximal step: the closed form is the argmin of Eqn (wd-update), and AdamW's decay its first-order expansion."""

from __future__ import annotations

from typing import Any

import numpy as np

from adan_bench.theory import methods
from adan_bench.theory.check import ROUNDING, Array, Chapter, check, distance

EPS = 0.05


def run() -> Chapter:
    rng = np.random.default_rng(5)
    theta, u, n = rng.standard_normal(12), rng.standard_normal(12), rng.random(12)
    lam = 0.7
    p = u / (np.sqrt(n) + EPS)
    by_gradient, by_search = _distances(theta, u, n, 0.1, lam)

    def both(eta: float) -> tuple[Array, Array]:
        eta_k = eta / (np.sqrt(n) + EPS)
        return methods.proximal_step(theta, u, eta, eta_k, lam), methods.adamw_step(theta, u, eta, eta_k, lam)

    rates = np.geomspace(1e-5, 1e-2, 13)
    gaps = np.array([np.linalg.norm(np.subtract(*both(eta))) for eta in rates])
    slope = float(np.polyfit(np.log(rates), np.log(gaps), 1)[0])
    eta = 1e-4
    closed, expanded = both(eta)
    coefficient = distance((closed - expanded) / eta**2, lam * (lam * theta + p)) / float(np.abs(lam * p).max())

    k = np.arange(200)
    schedule = methods.decayed(lam, 0.01, k)
    # Theorem 1's remark: with μ = c/T, λ_k/λ stays in [1 − c, 1].
    floor = float(methods.decayed(1.0, 0.3 / 1000, 1000))

    def plot(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        left.loglog(rates, gaps, color="#D55E00", label=f"measured, slope {slope:.3f}")
        left.loglog(rates, gaps[0] * (rates / rates[0]) ** 2, color="black", linestyle=":", label="η²")
        left.set(title="‖proximal − AdamW‖", xlabel="η")
        right.plot(k, schedule / lam, color="#0072B2", label="μ = 0.01")
        right.set(title="λ_k / λ = (1−μ)^k", xlabel="k", ylim=(0, 1.05))

    return Chapter(
        "proximal",
        [
            check("proximal argmin, gradient", by_gradient, ROUNDING),
            check("proximal argmin, search", by_search, 1e-6),
            check("proximal order", abs(slope - 2), 0.01),
            check("proximal second order", coefficient, 10 * eta, eta=f"{eta:g}"),
            check("proximal schedule, steps", distance(schedule[1:], 0.99 * schedule[:-1]), ROUNDING),
            check("proximal schedule, floor", floor, 0.7, at_least=True, floor=f"{floor:.4f}"),
        ],
        plot,
    )


def _distances(theta: Array, u: Array, n: Array, eta: float, lam: float) -> tuple[float, float]:
    """From the closed form to the argmin: by the gradient of the objective there, and by a search for its minimum."""
    import torch
    from scipy.optimize import minimize

    def objective(x: Any, theta: Any, u: Any, root: Any) -> Any:
        return lam / 2 * (root * x * x).sum() + u @ (x - theta) + (root * (x - theta) ** 2).sum() / (2 * eta)

    root = np.sqrt(n) + EPS
    closed = methods.proximal_step(theta, u, eta, eta / root, lam)
    x = torch.tensor(closed, requires_grad=True)
    value = objective(x, torch.tensor(theta), torch.tensor(u), torch.tensor(root))
    (gradient,) = torch.autograd.grad(value, x)
    solution = minimize(objective, theta, (theta, u, root), method="BFGS", options={"gtol": 1e-7})
    return float(gradient.norm() / ((1 / eta + lam) * root.min())), distance(solution.x, closed)
