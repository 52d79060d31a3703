"""Theorems 1 and 2 on two nonconvex stochastic problems: bounds with the theorem's own constants, and fitted exponents.

A fitted exponent on two problems is evidence about these problems. The theorems are upper bounds over all problems, so
what is checked is that the decay is not slower than the bound's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adan_bench.stats import Interval, interval
from adan_bench.theory import methods, problems
from adan_bench.theory.check import Array, Check, Study, Table
from adan_bench.theory.problems import Problem

COLORS = {"Adan": "#D55E00", "Adan with restart": "#CC79A7", "Adam": "#56B4E9", "LAMB": "#009E73"}


@dataclass(frozen=True)
class Setting:
    """The constants that the supplement's proof of Theorem 1 asks for at accuracy ϵ, each at the end of its range."""

    accuracy: float
    beta: float
    beta3: float
    eta: float
    mu: float
    lam: float
    eps: float
    steps: int


def theorem1_setting(problem: Problem, accuracy: float, lam: float = 1e-3) -> Setting:
    """β ≤ c_l·ϵ²/(96·c_u·σ²), η² ≤ c_l·β²/(8·c_u³·L²), T ≥ max(24Δ_0/(η·c_l·ϵ²), 24·c_u·σ²/(β·c_l·ϵ²)).

    c_l = 1/c∞ and c_u = 1/ε, with the stability ε = c∞/3 and μ = √(2β3)·c∞/ε = 1e-4.
    """
    c = 3 * problem.largest
    eps, mu = c / 3, 1e-4
    c_l, c_u, sigma2 = 1 / c, 1 / eps, problem.variance
    beta = min(2 / 3, c_l * accuracy**2 / (96 * c_u * sigma2))
    eta = math.sqrt(c_l * beta**2 / (8 * c_u**3 * problem.smoothness**2))
    eta = min(eta, eps / (3 * problem.smoothness), 1 / (10 * lam))
    # F(θ_0) includes the decay; √n + ε ≤ c∞ + ε.
    gap = float(problem.value(problem.start)) + lam / 2 * (c + eps) * float(problem.start @ problem.start)
    steps = max(24 * gap / (eta * c_l * accuracy**2), 24 * c_u * sigma2 / (beta * c_l * accuracy**2))
    return Setting(accuracy, beta, (mu * eps / c) ** 2 / 2, eta, mu, lam, eps, math.ceil(steps))


def theorem1(problem: Problem, setting: Setting, replicas: int, every: int = 20) -> Array:
    """The mean of ‖∇F_k(θ_k)‖² over every 20th iteration, for each replica; F_k has the decay λ_k = λ(1−μ)^k in it."""
    rng = np.random.default_rng(7)
    beta = (setting.beta, setting.beta, setting.beta3)
    adan = methods.Adan(
        np.tile(problem.start, (replicas, 1)), setting.eta, beta, setting.eps, lam=setting.lam, mu=setting.mu
    )
    total, count = np.zeros(replicas), 0
    for k in range(setting.steps):
        theta = adan.theta
        adan.step(problem.sample(theta, rng))
        if k % every == 0:
            weight = methods.decayed(setting.lam, setting.mu, k) * (np.sqrt(adan.n) + setting.eps)
            total += ((problem.full(theta) + weight * theta) ** 2).sum(-1)
            count += 1
    return total / count


Method = Callable[[Array, float, tuple[float, float, float], float], Any]


def root_mean_square(problem: Problem, method: Method, steps: int, replicas: int, every: int = 10) -> Array:
    """√(mean of ‖∇f(θ_k)‖²) over a run of T steps: ϵ = T^(−1/4), β1 = β2 = ϵ², η = 4ϵ², ε = 1."""
    rng = np.random.default_rng(8)
    square = steps**-0.5
    optimizer = method(np.tile(problem.start, (replicas, 1)), 4 * square, (square, square, 1e-4), 1.0)
    total = np.zeros(replicas)
    for k in range(steps):
        if k % every == 0:
            total += (problem.full(optimizer.theta) ** 2).sum(-1)
        optimizer.step(problem.sample(optimizer.theta, rng))
    return np.sqrt(total / math.ceil(steps / every))


def theorem2(problem: Problem, accuracy: float, replicas: int, printed: bool = True) -> tuple[Array, Array]:
    """Algorithm 2 until a cycle lasts K iterations: (iterations, ‖∇f(x̄)‖) of each replica.

    R = ϵ^0.5, β1 = β2 = ϵ², β3 = ϵ⁴, η = 3ϵ^1.5, K = ϵ^−2, η_k from n_{k−1}; x̄ is the average of x_1 … x_{K0}.
    A replica that has not stopped after 20·ϵ^−3.5 iterations gets NaN. printed: see `methods.Algorithm2`.
    """
    rng = np.random.default_rng(9)
    beta, length = accuracy**2, round(accuracy**-2)
    start = np.tile(problem.start, (replicas, 1))
    method = methods.Algorithm2(start, 3 * accuracy**1.5, beta, 1.0, radius=accuracy**0.5, printed=printed)
    stopped, norms = np.full(replicas, np.nan), np.full(replicas, np.nan)
    sums, mean, best = np.zeros_like(start), np.zeros_like(start), np.full((replicas, 1), np.inf)
    for iteration in range(math.ceil(20 * accuracy**-3.5)):
        k, x = method.k, method.theta
        sums = np.where(k == 0, 0.0, sums + x)  # x_1 + … + x_k of the cycle
        method.step(problem.sample(x, rng))
        # K0 is the k of the least movement in the second half of the cycle.
        better = (k >= length // 2) & ((method.moved < best) | (k == length // 2))
        best, mean = np.where(better, method.moved, best), np.where(better, sums / np.maximum(k, 1), mean)
        done = (method.k[:, 0] >= length) & np.isnan(stopped)
        if done.any():
            stopped[done] = iteration + 1
            norms[done] = np.linalg.norm(problem.full(mean), axis=-1)[done]
            if not np.isnan(stopped).any():
                break
    return stopped, norms


def slopes(x: Sequence[float] | Array, y: Array) -> Interval:
    """The slope of log y against log x, one fit a replica: mean and 95% t interval. y: (points, replicas)."""
    logs = np.log(np.broadcast_to(np.asarray(x).reshape(len(y), -1), y.shape)), np.log(y)
    return interval([float(np.polyfit(a, b, 1)[0]) for a, b in zip(logs[0].T, logs[1].T, strict=True)])


def _text(found: Interval) -> str:
    return f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"


def run(
    accuracies: Sequence[float] = (0.4, 0.35, 0.3),
    budgets: Sequence[int] = (512, 1024, 2048, 4096, 8192, 16384),
    restarted: Sequence[float] = (0.25, 0.2, 0.16, 0.125, 0.1, 0.08, 0.06),
    replicas: int = 16,
) -> Study:
    checks, rows, drawings, starts = _bounds(accuracies, replicas), [], [], []
    for problem in (problems.ripples(), problems.regression()):
        curves: dict[str, tuple[Any, Array]] = {}
        for name, method in (("Adan", methods.Adan), ("Adam", methods.Adam), ("LAMB", methods.Lamb)):
            found = np.array([root_mean_square(problem, method, steps, replicas) for steps in budgets])
            curves[name] = budgets, found
            rate = slopes(budgets, found)
            bound = "−1/4 = −0.250" if name != "LAMB" else "−1/4, for batches of ϵ^−4, which these are not"
            rows.append([problem.name, name, "√mean‖∇f(θ_k)‖² against T", _text(rate), bound])
            if name == "Adan":
                assert rate.low is not None
                checks.append(
                    Check(
                        f"theorem-1 exponent, {problem.name}",
                        "Adan's exponent in T is not above −1/4: the lower end of its 95% interval",
                        rate.low,
                        -0.25,
                        note=f"{_text(rate)}, {replicas} replicas",
                    )
                )
        runs = [theorem2(problem, accuracy, replicas) for accuracy in restarted]
        iterations, norms = np.array([r[0] for r in runs]), np.array([r[1] for r in runs])
        curves["Adan with restart"] = iterations.mean(1), norms
        found_checks, found_rows = _restarted(problem, restarted, iterations, norms)
        checks += found_checks
        rows += found_rows
        starts += _starts(problem, restarted[1:4], iterations[1:4], replicas)
        drawings.append((problem, curves))

    def plot(figure: Any) -> None:
        for axes, (problem, curves) in zip(figure.subplots(1, 2), drawings, strict=True):
            for name, (x, y) in curves.items():
                axes.loglog(x, np.exp(np.log(y).mean(1)), "o-", color=COLORS[name], markersize=3, label=name)
            x, y = curves["Adan"]
            level = float(np.exp(np.log(y[0]).mean()))
            scale = np.array([x[0], x[-1]], dtype=float)
            axes.loglog(scale, level * (scale / x[0]) ** -0.25, color="black", linestyle=":", label="T^(−1/4)")
            axes.loglog(scale, level * (scale / x[0]) ** (-1 / 3.5), color="gray", linestyle="--", label="T^(−1/3.5)")
            axes.set(title=problem.name, xlabel="iterations T", ylabel="gradient norm")
            axes.legend(frameon=False, fontsize=7)

    return Study(
        "theorems",
        "Theorems 1 and 2",
        "Theorem 1 with the constants of its proof on `ripples`; then, on two problems, runs whose β, η, R and K "
        "follow ϵ as the theorems say with every O(·) taken as a constant of order one. The exponents are measured "
        "on these problems only. Adan with restart reports ‖∇f(x̄)‖ at the end, the others the root mean square over "
        "the run, so the heights of the curves cannot be compared across that line. Adam and LAMB run with the same "
        "β and η, untuned, and are there to look at. Theorem 2 is run with Algorithm 2 as printed, which its proof "
        "follows: a cycle starts without momentum. Algorithm 1 starts it with m_0 = g_0, noise included; the second "
        "table shows what that does here.",
        checks,
        {"theory-rates.png": plot},
        [
            Table("Fitted exponents", ["problem", "method", "what", "exponent, 95% interval", "theory"], rows),
            Table(
                "Iterations until a cycle lasts K, median of the runs, by how a cycle starts",
                ["problem", "ϵ", "ϵ^−3.5", "Algorithm 2 as printed", "with Algorithm 1's m_0 = g_0"],
                starts,
            ),
        ],
    )


def _bounds(accuracies: Sequence[float], replicas: int) -> list[Check]:
    """(1/T)Σ E‖∇F_k(θ_k)‖² ≤ 4ϵ² with the constants of the proof, at the upper end of the interval of the mean."""
    problem = problems.ripples(noise=0.05)
    checks = []
    for accuracy in accuracies:
        setting = theorem1_setting(problem, accuracy)
        found = interval(list(theorem1(problem, setting, replicas)))
        assert found.high is not None
        checks.append(
            Check(
                f"theorem-1 bound, ϵ = {accuracy:g}",
                "mean of ‖∇F_k(θ_k)‖² ≤ 4ϵ² (upper end of the 95% interval)",
                found.high,
                4 * accuracy**2,
                note=f"T = {setting.steps:,}, β = {setting.beta:.2g}, η = {setting.eta:.2g}, λ_k = λ(1−μ)^k",
            )
        )
    return checks


def _restarted(
    problem: Problem, accuracies: Sequence[float], iterations: Array, norms: Array
) -> tuple[list[Check], list[list[str]]]:
    unfinished = float(np.isnan(iterations).sum())
    checks = [
        Check(
            f"theorem-2 ends, {problem.name}",
            "every run ends: some cycle lasts K iterations within 20·ϵ^−3.5",
            unfinished,
            0.0,
            note=f"{iterations.size} runs; those that did not end",
        )
    ]
    if unfinished:
        return checks, []
    inverse = [1 / accuracy for accuracy in accuracies]
    cost, size = slopes(inverse, iterations), slopes(inverse, norms)
    rate = slopes(iterations.mean(1), norms)
    assert cost.low is not None
    assert size.low is not None
    checks += [
        Check(
            f"theorem-2 iterations, {problem.name}",
            "iterations grow no faster than ϵ^−3.5: the lower end of the interval of the exponent in 1/ϵ",
            cost.low,
            3.5,
            note=_text(cost),
        ),
        Check(
            f"theorem-2 gradient, {problem.name}",
            "‖∇f(x̄)‖ falls at least like ϵ: the lower end of the interval of the exponent in 1/ϵ",
            size.low,
            -1.0,
            note=_text(size),
        ),
    ]
    row = [problem.name, "Adan with restart", "‖∇f(x̄)‖ against iterations", _text(rate), "−1/3.5 = −0.286"]
    return checks, [row]


def _starts(problem: Problem, accuracies: Sequence[float], printed: Array, replicas: int) -> list[list[str]]:
    rows = []
    for accuracy, iterations in zip(accuracies, printed, strict=True):
        other, _ = theorem2(problem, accuracy, replicas, printed=False)
        # A run that did not end counts as longer than any.
        medians = [float(np.median(np.where(np.isnan(found), np.inf, found))) for found in (iterations, other)]
        rows.append([problem.name, f"{accuracy:g}", f"{accuracy**-3.5:.0f}", *(f"{m:.0f}" for m in medians)])
    return rows
