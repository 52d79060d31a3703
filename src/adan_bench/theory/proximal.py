"""The proximal step: the closed form is the argmin of Eqn (wd-update), and AdamW's decay its first-order expansion."""

from __future__ import annotations

from typing import Any

import numpy as np

from adan_bench.theory import methods
from adan_bench.theory.check import ROUNDING, Array, Chapter, Check, distance

EPS = 0.05


def run() -> Chapter:
    rng = np.random.default_rng(5)
    theta, u, n = rng.standard_normal(12), rng.standard_normal(12), rng.random(12)
    lam = 0.7
    p = u / (np.sqrt(n) + EPS)

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
        for axes in (left, right):
            axes.legend(frameon=False, fontsize=8)

    return Chapter(
        "proximal",
        "Weight decay by proximation",
        "The step θ_{k+1} = (θ_k − η_k∘u_k)/(1 + λη) minimizes (λ/2)‖θ‖²_{√n} + ⟨u, θ−θ_k⟩ + (1/2η)‖θ−θ_k‖²_{√n}. "
        "That objective is strongly convex, so the length of its gradient bounds the distance to the argmin.",
        [
            Check(
                "proximal argmin, gradient",
                "bound on the distance to the argmin: ‖gradient at the closed form‖ / ((1/η + λ)·min(√n + ε))",
                _distance_by_gradient(theta, u, n, 0.1, lam),
                ROUNDING,
                note="gradient by automatic differentiation",
            ),
            Check(
                "proximal argmin, search",
                "distance of the closed form to what a numerical minimizer finds",
                _distance_by_search(theta, u, n, 0.1, lam),
                1e-6,
                note="BFGS with differences; half of fp64's digits is what it can have",
            ),
            Check("proximal order", "|slope of log‖proximal − AdamW‖ against log η − 2|", abs(slope - 2), 0.01),
            Check(
                "proximal second order",
                "(proximal − AdamW)/η² is λ(λθ + u/(√n + ε)) up to O(η), relative",
                coefficient,
                10 * eta,
                note=f"at η = {eta:g}",
            ),
            Check(
                "proximal schedule, steps",
                "λ_k = λ(1−μ)^k: |λ_{k+1} − (1−μ)λ_k|",
                distance(schedule[1:], 0.99 * schedule[:-1]),
                ROUNDING,
            ),
            Check(
                "proximal schedule, floor",
                "Theorem 1's remark: with μ = c/T, λ_T/λ ≥ 1 − c; here c = 0.3, T = 1000",
                floor,
                0.7,
                at_least=True,
                note=f"λ_T/λ = {floor:.4f}",
            ),
        ],
        {"theory-proximal.png": plot},
    )


def _distance_by_gradient(theta: Array, u: Array, n: Array, eta: float, lam: float) -> float:
    import torch

    root = np.sqrt(n) + EPS
    x = torch.tensor(methods.proximal_step(theta, u, eta, eta / root, lam), requires_grad=True)
    start, direction, weight = torch.tensor(theta), torch.tensor(u), torch.tensor(root)
    moved = x - start
    objective = lam / 2 * (weight * x * x).sum() + direction @ moved + (weight * moved * moved).sum() / (2 * eta)
    (gradient,) = torch.autograd.grad(objective, x)
    return float(gradient.norm() / ((1 / eta + lam) * weight.min()))


def _distance_by_search(theta: Array, u: Array, n: Array, eta: float, lam: float) -> float:
    from scipy.optimize import minimize

    root = np.sqrt(n) + EPS

    def objective(x: Array) -> float:
        return float(lam / 2 * (root * x * x).sum() + u @ (x - theta) + (root * (x - theta) ** 2).sum() / (2 * eta))

    solution = minimize(objective, theta, method="BFGS", options={"gtol": 1e-7})
    return distance(solution.x, methods.proximal_step(theta, u, eta, eta / root, lam))
