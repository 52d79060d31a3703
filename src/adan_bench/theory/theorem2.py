"""Theorem 2: restarted cycles with a Lipschitz Hessian, on problems where a cycle turns around.

There the average x̄ is better than the points it averages, so the output rule matters.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from adan_bench.theory import methods, moments, problems
from adan_bench.theory.check import ROUNDING, Array, Chapter, ChapterTable, Check, check, distance
from adan_bench.theory.methods import Signs
from adan_bench.theory.problems import Problem
from adan_bench.theory.theorem1 import geometric_mean, slopes, text


def cycles(
    problem: Problem, accuracy: float, replicas: int, printed: bool = True, signs: Signs = methods.ADAN
) -> tuple[Array, Array, Array]:
    """Algorithm 2 until a cycle lasts K iterations: (iterations, ‖∇f(x̄)‖, ‖∇f(x_0)‖ of that cycle) of each replica.

    R = 0.3ϵ^0.5, β1 = β2 = ϵ², β3 = ϵ⁴, η = ϵ^1.5, K = ϵ^−2, η_k from n_{k−1}; x̄ is the average of x_1 … x_{K0}.
    Starts differ by up to half. A replica that has not stopped after 20·ϵ^−3.5 iterations gets NaN. printed, signs: see
    `methods.Algorithm2`.
    """
    rng = np.random.default_rng(9)
    beta, length = accuracy**2, round(accuracy**-2)
    start = problem.start * (1 + 0.5 * rng.uniform(-1, 1, (replicas, len(problem.start))))
    radius = 0.3 * accuracy**0.5
    method = methods.Algorithm2(start, accuracy**1.5, beta, 1.0, radius, printed, signs=signs)
    stopped, norms, firsts = np.full((3, replicas), np.nan)
    xs, moved = deque([start], maxlen=length + 1), deque[Array](maxlen=length)
    for iteration, _ in problem.visited(method, math.ceil(20 * accuracy**-3.5), rng):
        xs.append(method.theta)
        moved.append(method.moved[:, 0])
        for i in np.flatnonzero((method.k[:, 0] == length) & np.isnan(stopped)):
            average, _ = methods.averaged_iterate([x[i] for x in xs], [float(m[i]) for m in moved])
            stopped[i] = iteration + 1
            norms[i], firsts[i] = (np.linalg.norm(problem.full(x)) for x in (average, xs[0][i]))
        if not np.isnan(stopped).any():
            break
    return stopped, norms, firsts


def run(
    accuracies: Sequence[float] = (0.12, 0.096, 0.077, 0.062, 0.05, 0.04),
    compared: Sequence[float] = (0.25, 0.2, 0.16, 0.12),
    replicas: int = 256,
    others: bool = True,
) -> Chapter:
    """others: also run other algorithms and a second problem for the table, with a quarter of the replicas."""
    steep = problems.ripples(noise=0.02, steep=4.0)
    checks, rows, starts, drawings = [_recursion(), *_last_cycle()], [], [], []
    inverse = [1 / accuracy for accuracy in accuracies]
    runs = {"Adan": (steep, methods.ADAN)}
    if others:
        chosen = [name for name in methods.OTHERS if "decay" not in name]  # λ = 0 here
        runs |= {name: (steep, methods.OTHERS[name]) for name in chosen}
        runs |= {"Adan on regression": (problems.regression(), methods.ADAN)}
    for name, (problem, signs) in runs.items():
        n = replicas if name == "Adan" else replicas // 4
        cycled = []
        for accuracy in accuracies:
            cycled.append(cycles(problem, accuracy, n, signs=signs))
            if np.isnan(cycled[-1][0]).any():
                break  # a smaller ϵ takes longer and does not change the verdict
        arrays = iterations, norms, firsts = [np.array(x) for x in zip(*cycled, strict=True)]
        unfinished = int(np.isnan(iterations).sum())
        if name == "Adan":
            checks.append(check("theorem-2 ends", unfinished, 0, runs=iterations.size, problem=problem.name))
        if unfinished:
            rows.append([name, f"{unfinished} of {iterations.size} runs did not end", "", ""])
            continue
        rows.append([name, *(text(slopes(inverse, x)) for x in arrays)])
        if name == "Adan":
            cost, size = slopes(inverse, iterations), slopes(inverse, norms)
            checks.append(check("theorem-2 iterations", cost.high, 3.5, note=text(cost)))
            checks.append(check("theorem-2 gradient", size.high, -0.75, size=text(size)))
            drawings.append((problem.name, iterations, norms, firsts))
    for accuracy in compared:
        medians = []
        for printed in (True, False):
            stopped = cycles(problems.ripples(), accuracy, 16, printed)[0]
            # A run that did not end counts as longer than any.
            medians.append(float(np.median(np.where(np.isnan(stopped), np.inf, stopped))))
        starts.append([f"{accuracy:g}", f"{accuracy**-3.5:.0f}", *(f"{m:.0f}" for m in medians)])

    def plot(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        for name, iterations, norms, firsts in drawings:
            left.loglog(inverse, np.median(iterations, 1), "o-", color="#D55E00", markersize=3, label=name)
            right.loglog(inverse, geometric_mean(norms), "o-", color="#D55E00", markersize=3, label="‖∇f(x̄)‖")
            right.loglog(inverse, geometric_mean(firsts), "s-", color="#0072B2", markersize=3, label="‖∇f(x_0)‖")
            level = geometric_mean(norms)[0]
            right.loglog(inverse, level * inverse[0] / np.array(inverse), color="black", linestyle=":", label="ϵ")
        left.loglog(inverse, np.array(inverse) ** 3.5, color="black", linestyle=":", label="ϵ^−3.5")
        left.set(title="iterations until a cycle lasts K", xlabel="1/ϵ")
        right.set(title="the last cycle", xlabel="1/ϵ")

    rows.append(["theory, at most", "3.5", "−1", "−1/2"])
    head = ["algorithm", "iterations", "‖∇f(x̄)‖", "‖∇f(x_0)‖"]
    title = "Median of the iterations on ripples, by how a cycle starts (inf: more than half did not end)"
    kinds = ["ϵ", "ϵ^−3.5", "Algorithm 2 as printed", "with Algorithm 1's m_0 = g_0"]
    tables = [ChapterTable("Exponents in 1/ϵ, 95% intervals", head, rows), ChapterTable(title, kinds, starts)]
    return Chapter("theorem-2", checks, plot, tables)


def _recursion(steps: int = 60) -> Check:
    """Eqn (xy-reformulate), from which the proof starts, along Algorithm 1. η_k comes from sums over the gradients."""
    problem, beta, eta, eps = problems.ripples(steep=4.0), 0.1, 0.1, 0.5
    betas = (beta, beta, beta**2)
    rng = np.random.default_rng(3)
    adan = methods.Algorithm1(problem.start, eta, betas, eps, lagged=True, footnote=False)
    x, g = methods.trajectory(adan, lambda x, k: problem.sample(x, rng), steps, "g")
    n = moments.closed_sums(g, betas, footnote=False)[1]
    eta_k = eta / (np.sqrt(np.concatenate([n[:1], n[:-1]])) + eps)
    y = x[:-1] - beta * eta_k * g  # y_1 … y_K
    momentum = y[1:] - y[:-1] + (eta_k[1:] / eta_k[:-1] - 1) * (x[1:-1] - y[:-1])
    return check("theorem-2 recursion", distance(x[2:], y[1:] + (1 - beta) * momentum), ROUNDING)


def _last_cycle(length: int = 4000) -> list[Check]:
    """A quadratic without noise, along which a cycle of K iterations swings several times: σ = ρ = 0."""
    beta, smoothness = 1 / length, 1.0
    c = eps = 3 * smoothness  # the largest gradient is that of the start, 1
    eta = eps / (6 * smoothness)
    method = methods.Algorithm2(np.ones(1), eta, beta, eps, beta3=beta**4)
    x, moved = methods.trajectory(method, lambda x, k: smoothness * x, length, "moved")
    radius = math.sqrt(length * sum(moved[:, 0]))  # the smallest with which the cycle lasts K
    average, k0 = methods.averaged_iterate(x, moved)
    bound = 2 * math.sqrt(2 * c) * radius / (eta * length)
    bound += 4 * radius * math.sqrt(c) / (beta * eta * length**2)
    bound += 4 * beta * c**1.5 * radius / (eta * eps)
    share, bounds = smoothness * float(np.abs(average).max()) / bound, f"{smoothness / bound:.0f}"
    mean = x[0] + ((1 - np.arange(k0) / k0)[:, None] * np.diff(x[: k0 + 1], axis=0)).sum(0)
    return [
        check("theorem-2 last cycle", share, 1.0, bounds=bounds, length=length, k0=k0),
        check("theorem-2 output", distance(average, mean), ROUNDING),
    ]
