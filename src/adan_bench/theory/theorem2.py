"""Theorem 2: restarted cycles with a Lipschitz Hessian, on the two problems of Theorem 1's study."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from adan_bench.theory import methods, problems
from adan_bench.theory.check import Array, Check, Study, Table
from adan_bench.theory.problems import Problem
from adan_bench.theory.theorem1 import geometric_mean, slopes, text


def cycles(problem: Problem, accuracy: float, replicas: int, printed: bool = True) -> tuple[Array, Array]:
    """Algorithm 2 until a cycle lasts K iterations: (iterations, ‖∇f(x̄)‖) of each replica.

    R = ϵ^0.5, β1 = β2 = ϵ², β3 = ϵ⁴, η = 3ϵ^1.5, K = ϵ^−2, η_k from n_{k−1}; x̄ is the average of x_1 … x_{K0}.
    A replica that has not stopped after 20·ϵ^−3.5 iterations gets NaN. printed: see `methods.Algorithm2`.
    """
    rng = np.random.default_rng(9)
    beta, length = accuracy**2, round(accuracy**-2)
    start = np.tile(problem.start, (replicas, 1))
    method = methods.Algorithm2(start, 3 * accuracy**1.5, beta, 1.0, radius=accuracy**0.5, printed=printed)
    stopped, norms = np.full(replicas, np.nan), np.full(replicas, np.nan)
    xs, moved = deque([start], maxlen=length + 1), deque[Array](maxlen=length)
    for iteration in range(math.ceil(20 * accuracy**-3.5)):
        method.step(problem.sample(method.theta, rng))
        xs.append(method.theta)
        moved.append(method.moved[:, 0])
        for i in np.flatnonzero((method.k[:, 0] == length) & np.isnan(stopped)):
            average, _ = methods.averaged_iterate([x[i] for x in xs], [float(m[i]) for m in moved])
            stopped[i], norms[i] = iteration + 1, np.linalg.norm(problem.full(average))
        if not np.isnan(stopped).any():
            break
    return stopped, norms


def run(
    accuracies: Sequence[float] = (0.25, 0.2, 0.16, 0.125, 0.1, 0.08, 0.06),
    compared: Sequence[float] = (0.25, 0.2, 0.16, 0.125),
    replicas: int = 16,
) -> Study:
    checks: list[Check] = []
    rows, starts, drawings = [], [], []
    for problem in (problems.ripples(), problems.regression()):
        runs = [cycles(problem, accuracy, replicas) for accuracy in accuracies]
        iterations, norms = np.array([r[0] for r in runs]), np.array([r[1] for r in runs])
        unfinished = float(np.isnan(iterations).sum())
        checks.append(
            Check(
                f"theorem-2 ends, {problem.name}",
                "runs in which no cycle lasts K iterations within 20·ϵ^−3.5",
                unfinished,
                0.0,
                note=f"of {iterations.size}",
            )
        )
        if unfinished:
            continue
        checks += _exponents(problem, accuracies, iterations, norms)
        rate = slopes(iterations.mean(1), norms)
        rows.append([problem.name, "‖∇f(x̄)‖ against iterations", text(rate), "−1/3.5 = −0.286"])
        medians = []
        for accuracy in compared:
            other, _ = cycles(problem, accuracy, replicas, printed=False)
            # A run that did not end counts as longer than any.
            medians.append(float(np.median(np.where(np.isnan(other), np.inf, other))))
            printed = np.median(iterations[list(accuracies).index(accuracy)])
            budget = f"{accuracy**-3.5:.0f}"
            starts.append([problem.name, f"{accuracy:g}", budget, f"{printed:.0f}", f"{medians[-1]:.0f}"])
        drawings.append((problem.name, iterations, norms, medians))

    def plot(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        inverse = 1 / np.array(accuracies)
        for color, (name, iterations, norms, medians) in zip(("#D55E00", "#0072B2"), drawings, strict=False):
            left.loglog(inverse, np.median(iterations, 1), "o-", color=color, markersize=3, label=f"{name}, as printed")
            label = f"{name}, m_0 = g_0"
            left.loglog(1 / np.array(compared), medians, "s--", color=color, markersize=3, alpha=0.5, label=label)
            right.loglog(inverse, geometric_mean(norms), "o-", color=color, markersize=3, label=name)
        left.loglog(inverse, inverse**3.5, color="black", linestyle=":", label="ϵ^−3.5")
        right.loglog(inverse, 1 / inverse, color="black", linestyle=":", label="ϵ")
        left.set(title="iterations until a cycle lasts K", xlabel="1/ϵ")
        right.set(title="‖∇f(x̄)‖ at the end", xlabel="1/ϵ")
        for axes in (left, right):
            axes.legend(frameon=False, fontsize=7)

    return Study(
        "theorem-2",
        "Theorem 2: ϵ^−3.5",
        "R = ϵ^0.5, β1 = β2 = ϵ², β3 = ϵ⁴, η = 3ϵ^1.5, K = ϵ^−2, η_k from n_{k−1}; a run ends when a cycle lasts K "
        "iterations, and x̄ is that cycle's average. This is Algorithm 2 as printed, which the proof follows: a cycle "
        "starts without momentum. Algorithm 1 starts it with m_0 = g_0, noise included; table and dashed curves "
        "show what that does with these settings.",
        checks,
        {"theory-theorem-2.png": plot},
        [
            Table("Fitted exponent in iterations", ["problem", "what", "exponent, 95% interval", "theory"], rows),
            Table(
                "Median of the iterations, by how a cycle starts (inf: more than half did not end)",
                ["problem", "ϵ", "ϵ^−3.5", "Algorithm 2 as printed", "with Algorithm 1's m_0 = g_0"],
                starts,
            ),
        ],
    )


def _exponents(problem: Problem, accuracies: Sequence[float], iterations: Array, norms: Array) -> list[Check]:
    inverse = [1 / accuracy for accuracy in accuracies]
    cost, size = slopes(inverse, iterations), slopes(inverse, norms)
    assert cost.low is not None
    assert size.low is not None
    return [
        Check(
            f"theorem-2 iterations, {problem.name}",
            "iterations grow no faster than ϵ^−3.5: the lower end of the interval of the exponent in 1/ϵ",
            cost.low,
            3.5,
            note=text(cost),
        ),
        Check(
            f"theorem-2 gradient, {problem.name}",
            "‖∇f(x̄)‖ falls at least like ϵ: the lower end of the interval of the exponent in 1/ϵ",
            size.low,
            -1.0,
            note=text(size),
        ),
    ]
