"""Eqn (comparison): the first moments of Adan, Adam and Nadam from the same gradients, against their closed sums."""

from __future__ import annotations

import numpy as np

from adan_bench.theory import methods
from adan_bench.theory.check import ROUNDING, Array, Chapter, check, distance

BETA = 0.1
STEPS = 60


def weights(beta: float, k: int, debias: bool = False) -> Array:
    """c_{k,t} for t = 0 … k: β(1 − β)^{k−t}, and (1 − β)^k for t = 0; de-biased, all divided by 1 − (1 − β)^{k+1}."""
    c = beta * (1 - beta) ** (k - np.arange(k + 1.0))
    if debias:
        return np.asarray(c / -np.expm1((k + 1) * np.log1p(-beta)))
    c[0] = (1 - beta) ** k
    return c


def closed_sums(
    g: Array, beta: tuple[float, float, float], footnote: bool = True, debias: bool = False
) -> tuple[Array, Array]:
    """u_k = m_k + (1 − β2)v_k (Eqn mknew) and n_k as sums over the gradients g_0 … g_k, for every k.

    footnote: the weight of g_1 − g_0 is (1 − β2)^{k−1}, from v_1 = g_1 − g_0; without it β2(1 − β2)^{k−1}.
    debias: m, v and n de-biased, and no footnote.
    """
    beta1, beta2, beta3 = beta
    d = np.diff(g, axis=0, prepend=g[:1])  # g_0 − g_{−1} is 0: the footnote's v_0
    u, n = np.empty_like(g), np.empty_like(g)
    for k in range(len(g)):
        c = weights(beta2, k, debias)
        if footnote and k >= 1 and not debias:
            c[1] = (1 - beta2) ** (k - 1)
        u[k] = np.tensordot(weights(beta1, k, debias), g[: k + 1], 1) + (1 - beta2) * np.tensordot(c, d[: k + 1], 1)
        n[k] = np.tensordot(weights(beta3, k, debias), (g + (1 - beta2) * d)[: k + 1] ** 2, 1)
    return u, n


def nadam_recursion(gradients: Array, beta: float, mu: Array) -> list[Array]:
    """Nadam's first moment step by step; mu[t] is μ_t for t ≥ 1."""
    m, moments, product = np.zeros_like(gradients[0]), [], 1.0
    for k, g in enumerate(gradients):
        m = g if k == 0 else (1 - beta) * m + beta * g
        product *= mu[k] if k else 1.0
        # μ'_0 is an empty product's 1 − 1 = 0; the paper's formula begins at k = 1.
        if k:
            moments.append(mu[k + 1] / (1 - product * mu[k + 1]) * m + (1 - mu[k]) / (1 - product) * g)
    return moments


def run() -> Chapter:
    rng = np.random.default_rng(0)
    g = np.cumsum(rng.standard_normal((STEPS, 5)), axis=0) * 0.3
    ks = range(STEPS)
    c = [weights(BETA, k) for k in ks]

    beta = (BETA, BETA, 0.01)
    adan = methods.Algorithm1(np.zeros(5), 0.1, beta, 1e-3, footnote=False)
    adam = methods.Adam(np.zeros(5), 0.1, beta, 1e-3)
    _, us, ns = methods.trajectory(adan, lambda _, k: g[k], STEPS, "u", "n")
    _, ms = methods.trajectory(adam, lambda _, k: g[k], STEPS, "m")
    adan_sums, n_sums = closed_sums(g, beta, footnote=False)

    mu = (1 - BETA) * (1 - 0.5 * 0.96 ** (np.arange(STEPS + 1) / 250))  # Dozat's schedule
    nadam = nadam_recursion(g, BETA, mu)
    product = np.cumprod(np.concatenate([[1.0], mu[1:]]))
    nadam_sums = [
        mu[k + 1] / (1 - product[k + 1]) * (c[k] @ g[: k + 1]) + (1 - mu[k]) / (1 - product[k]) * g[k]
        for k in range(1, STEPS)
    ]
    return Chapter(
        "moments",
        [
            check("moments Adan", distance(us, adan_sums), ROUNDING),
            check("moments n", distance(ns, n_sums), ROUNDING),
            check("moments Adam", distance(ms, [c[k] @ g[: k + 1] for k in ks]), ROUNDING),
            check("moments Nadam", distance(nadam, nadam_sums), ROUNDING),
        ],
    )
