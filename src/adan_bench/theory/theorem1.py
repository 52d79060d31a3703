"""Theorem 1 on nonconvex stochastic problems: its bounds with the constants of the proof, and fitted exponents.

A fitted exponent on a few problems is evidence about these problems. The theorem is an upper bound over all problems,
so what is checked is that the decay is not slower than the bound's, at the unfavorable end of the exponent's interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adan_bench.records.stats import Interval, interval
from adan_bench.theory import methods, moments, problems
from adan_bench.theory.check import ROUNDING, Array, Chapter, ChapterTable, Check, check, distance, mean_ends
from adan_bench.theory.methods import Signs
from adan_bench.theory.problems import Problem

COLORS = {"Adan, λ = 0.1": "#D55E00", "Adan": "#E69F00", "Adam": "#56B4E9", "LAMB": "#009E73"}


def proof_constants(
    accuracy: float, c: float, eps: float, smoothness: float, variance: float, gap: float
) -> tuple[float, float, float]:
    """β, η and T of the supplement's proof at accuracy ϵ, each at the end of its range.

    β ≤ c_l·ϵ²/(96·c_u·σ²), η² ≤ c_l·β²/(8·c_u³·L²), T ≥ max(24Δ_0/(η·c_l·ϵ²), 24·c_u·σ²/(β·c_l·ϵ²)), with c_l = 1/c∞
    and c_u = 1/ε.
    """
    c_l, c_u = 1 / c, 1 / eps
    beta = min(2 / 3, c_l * accuracy**2 / (96 * c_u * variance))
    eta = math.sqrt(c_l * beta**2 / (8 * c_u**3 * smoothness**2))
    steps = max(24 * gap / (eta * c_l * accuracy**2), 24 * c_u * variance / (beta * c_l * accuracy**2))
    return beta, eta, steps


def theorem1_setting(problem: Problem, accuracy: float, lam: float = 0.65) -> tuple[dict[str, Any], int]:
    """Algorithm 1's constants, and T: `proof_constants` with μ = √(2β3)·c∞/ε = 0.1/T, so that the decay stays.

    ε = c∞/5 because Lemma (prox) ends with a step that needs √n + ε ≤ (4/3)·c∞/(1 + ηλ)²; so ηλ ≤ 0.05.
    """
    c = 3 * problem.largest
    eps = c / 5
    # F_0(θ_0) includes the decay; √n_0 = |g_0| ≤ c∞/3.
    gap = float(problem.value(problem.start)) + lam / 2 * (c / 3 + eps) * float(problem.start @ problem.start)
    beta, eta, steps = proof_constants(accuracy, c, eps, problem.smoothness, problem.variance, gap)
    assert eta <= min(eps / (3 * problem.smoothness), 0.05 / lam)
    mu = 0.1 / steps
    betas = beta, beta, (mu * eps / c) ** 2 / 2
    return {"beta": betas, "eta": eta, "mu": mu, "lam": lam, "eps": eps}, math.ceil(steps)


#: What the proof bounds on the way to 4ϵ², each with its bound in units of ϵ².
BOUNDED = {"∇F_k(θ_k)": 4.0, "u_k + λ_k(√n_k + ε)∘θ_k": 1.0, "m_k − ∇f(θ_k)": 0.25, "v_k": 0.25}


def theorem1(problem: Problem, accuracy: float, replicas: int, signs: Signs = methods.ADAN, every: int = 20) -> Array:
    """The mean over every 20th iteration of the squared norms of `BOUNDED`, divided by their bounds: (4, replicas)."""
    rng = np.random.default_rng(7)
    start = np.tile(problem.start, (replicas, 1))
    constants, steps = theorem1_setting(problem, accuracy)
    adan = methods.Algorithm1(start, **constants, signs=signs)
    bounds = np.array(list(BOUNDED.values()))[:, None] * accuracy**2
    total = np.zeros((len(bounds), replicas))
    for k, theta in problem.visited(adan, steps, rng, every):
        decay = methods.decayed(adan.lam, adan.mu, k) * (np.sqrt(adan.n) + adan.eps) * theta
        g = problem.full(theta)
        total += np.array([(x**2).sum(-1) for x in (g + decay, adan.u + decay, adan.m - g, adan.v)])
    return np.asarray(total / math.ceil(steps / every) / bounds)


LENGTH = 16  # T = 16·ϵ^−4: long enough to pass the transient of every start below


def root_mean_square(
    problem: Problem, method: Callable[..., Any], steps: int, replicas: int, lam: float = 0.0, every: int = 10
) -> Array:
    """√(mean of ‖∇F_k(θ_k)‖²) over T steps: ϵ⁴ = 16/T, β1 = β2 = ϵ², η = 2ϵ², ε = 1, λ_k = λ(1−μ)^k, μ = 0.1/T."""
    rng = np.random.default_rng(8)
    square, mu = math.sqrt(LENGTH / steps), 0.1 / steps
    start = np.tile(problem.start, (replicas, 1))
    decaying = {"lam": lam, "mu": mu} if lam else {}
    optimizer = method(start, 2 * square, (square, square, 1e-4), 1.0, **decaying)
    total = np.zeros(replicas)
    for k, theta in problem.visited(optimizer, steps, rng, every):
        decay = methods.decayed(lam, mu, k) * (np.sqrt(optimizer.n) + 1.0) * theta
        total += ((problem.full(theta) + decay) ** 2).sum(-1)
    return np.sqrt(total / math.ceil(steps / every))


def slopes(x: Sequence[float] | Array, y: Array) -> Interval:
    """The slope of log y against log x, one fit a replica: mean and 95% t interval. y: (points, replicas)."""
    logs = np.log(np.broadcast_to(np.asarray(x).reshape(len(y), -1), y.shape)), np.log(y)
    return interval([float(np.polyfit(a, b, 1)[0]) for a, b in zip(logs[0].T, logs[1].T, strict=True)])


def geometric_mean(y: Array) -> Array:
    """Over the replicas. y: (points, replicas)."""
    return np.asarray(np.exp(np.log(y).mean(1)))


def text(exponent: Interval) -> str:
    return f"{exponent.mean:.3f} [{exponent.low:.3f}, {exponent.high:.3f}]"


def run(
    accuracies: Sequence[float] = (0.45, 0.35),
    budgets: Sequence[int] = (512, 1024, 2048, 4096, 8192),
    replicas: int = 16,
    others: bool = True,
) -> Chapter:
    """others: also run Adam, LAMB and the algorithms of `methods.OTHERS`, for the tables."""
    checks = [_step(), *_bounds(accuracies, replicas)]
    rows, drawings, lam = [], [], 0.1
    compared = {"Adan": methods.Algorithm1, "Adam": methods.Adam, "LAMB": methods.OneLayerLamb} if others else {}
    for name, problem in {
        "ripples": problems.ripples(center=1.5),
        "ripples, start twice as far": problems.ripples(start=2.0),
        "regression": problems.regression(),
    }.items():
        curve = np.array([root_mean_square(problem, methods.Algorithm1, steps, replicas, lam) for steps in budgets])
        rate = slopes(budgets, curve)
        rows.append([name, f"Adan, λ = {lam}", text(rate), "−1/4"])
        checks.append(
            check("theorem-1 exponent, $name", rate.high, -0.25, name=name, rate=text(rate), replicas=replicas, lam=lam)
        )
        curves = {f"Adan, λ = {lam}": curve}
        for other, method in compared.items():
            curve = np.array([root_mean_square(problem, method, steps, replicas) for steps in budgets])
            bound = "−1/4" if other != "LAMB" else "−1/4, for batches of ϵ^−4, which these are not"
            rows.append([name, f"{other}, λ = 0", text(slopes(budgets, curve)), bound])
            curves[other] = curve
        drawings.append((name, curves))
    tables = [ChapterTable("Fitted exponents in T", ["problem", "method", "exponent, 95% interval", "theory"], rows)]
    if others:
        tables.append(_others(accuracies[0], replicas))

    def plot(figure: Any) -> None:
        scale = np.array([budgets[0], budgets[-1]], dtype=float)
        for axes, (name, curves) in zip(figure.subplots(1, 3), drawings, strict=True):
            for method, curve in curves.items():
                axes.loglog(budgets, geometric_mean(curve), "o-", color=COLORS[method], markersize=3, label=method)
            level = geometric_mean(next(iter(curves.values())))[0]
            axes.loglog(scale, level * (scale / scale[0]) ** -0.25, color="black", linestyle=":", label="T^(−1/4)")
            axes.set(title=name, xlabel="iterations T")
            axes.xaxis.set_minor_formatter("")

    return Chapter("theorem-1", checks, plot, tables)


def decayed_problem() -> Problem:
    """Starts at the minimum of f, away from 0: decay alone moves it, so a wrong decay shows in ∇F_k."""
    return problems.ripples(noise=0.02, start=0.0, center=1.0)


def _step(steps: int = 60) -> Check:
    """Eqn (eta-diff), which the proof uses twice; u, n and λ_k do not come from `methods`: so it must be Adan."""
    problem, beta, eta, eps, lam, mu = problems.ripples(), (0.1, 0.2, 0.05), 0.1, 0.5, 0.3, 0.01
    rng = np.random.default_rng(3)
    adan = methods.Algorithm1(problem.start, eta, beta, eps, lam, mu)
    theta, g = methods.trajectory(adan, lambda x, k: problem.sample(x, rng), steps, "g")
    u, n = moments.closed_sums(g, beta)
    lam_k = lam * (1 - mu) ** np.arange(steps)[:, None]
    left = lam_k * theta[:-1] + u / (np.sqrt(n) + eps)
    return check("theorem-1 step", distance(left, (1 + eta * lam_k) / eta * (theta[:-1] - theta[1:])), ROUNDING)


def _bounds(accuracies: Sequence[float], replicas: int) -> list[Check]:
    """The bounds with the constants of the proof, at the upper ends of the intervals of the means."""
    problem, checks = decayed_problem(), []
    for accuracy in accuracies:
        constants, steps = theorem1_setting(problem, accuracy)
        note = "β = {beta[0]:.2g}, η = {eta:.2g}, λ = {lam:g}, ε = c∞/5".format(**constants)
        note = f"T = {steps:,}, {note}"
        for (name, bound), shares in zip(BOUNDED.items(), theorem1(problem, accuracy, replicas), strict=True):
            values: dict[str, Any] = {"name": name, "accuracy": f"{accuracy:g}", "share": f"{bound:g}", "note": note}
            checks.append(check("theorem-1 bound $name, ϵ = $accuracy", mean_ends(shares)[1], 1.0, **values))
    return checks


def _others(accuracy: float, replicas: int) -> ChapterTable:
    """The bound of the statement for other algorithms."""
    problem = decayed_problem()
    covered = {
        "v dropped": "no: the proof needs only ‖u − ∇f‖² ≤ 2‖m − ∇f‖² + 2‖v‖²",
        "v flipped": "no: that inequality has no sign of v in it",
        "n of g_k − (1−β2)(g_k − g_{k−1})": "no: the proof needs only √n ≤ c∞ and |η_k/η_{k−1} − 1| ≤ μ",
    }
    rows = []
    for name, signs in {"Adan": methods.ADAN, **methods.OTHERS}.items():
        with np.errstate(all="ignore"):
            share = float(theorem1(problem, accuracy, replicas, signs)[0].mean())
        shown = f"{share:.3g}" if math.isfinite(share) else "diverges"
        rows.append([name, shown, "" if name == "Adan" else covered.get(name, "yes")])
    return ChapterTable(
        f"Other algorithms: mean of ‖∇F_k(θ_k)‖² / 4ϵ² at ϵ = {accuracy:g}",
        ["algorithm", "share of the bound", "can the statement tell it from Adan?"],
        rows,
    )
