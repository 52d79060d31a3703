"""Eqn (comparison): the first moments of Adan, Adam and Nadam from the same gradients, against their closed sums."""

from __future__ import annotations

import numpy as np

from adan_bench.theory import methods
from adan_bench.theory.check import ROUNDING, Array, Check, Study, distance

BETA = 0.1
STEPS = 60


def weights(beta: float, k: int) -> Array:
    """c_{k,t} for t = 0 … k: β(1 − β)^{k−t}, and (1 − β)^k for t = 0."""
    c = beta * (1 - beta) ** (k - np.arange(k + 1.0))
    c[0] = (1 - beta) ** k
    return c


def nadam_recursion(gradients: Array, beta: float, mu: Array) -> list[Array]:
    """Nadam's first moment step by step; mu[t] is μ_t for t ≥ 1."""
    m, found, product = np.zeros_like(gradients[0]), [], 1.0
    for k, g in enumerate(gradients):
        m = g if k == 0 else (1 - beta) * m + beta * g
        product *= mu[k] if k else 1.0
        # μ'_0 is an empty product's 1 − 1 = 0; the paper's formula begins at k = 1.
        if k:
            found.append(mu[k + 1] / (1 - product * mu[k + 1]) * m + (1 - mu[k]) / (1 - product) * g)
    return found


def run() -> Study:
    rng = np.random.default_rng(0)
    g = np.cumsum(rng.standard_normal((STEPS, 5)), axis=0) * 0.3
    d = np.diff(g, axis=0, prepend=g[:1])  # g_0 − g_{−1} is 0: the footnote's v_0
    ks = range(STEPS)
    c = [weights(BETA, k) for k in ks]

    adan = methods.Adan(np.zeros(5), 0.1, (BETA, BETA, 0.01), 1e-3, footnote=False)
    adam = methods.Adam(np.zeros(5), 0.1, (BETA, BETA, 0.01), 1e-3)
    us, ms = [], []
    for given in g:
        adan.step(given)
        adam.step(given)
        us.append(adan.u)
        ms.append(adam.m)

    mu = (1 - BETA) * (1 - 0.5 * 0.96 ** (np.arange(STEPS + 1) / 250))  # Dozat's schedule
    nadam = nadam_recursion(g, BETA, mu)
    product = np.cumprod(np.concatenate([[1.0], mu[1:]]))
    nadam_sums = [
        mu[k + 1] / (1 - product[k + 1]) * (c[k] @ g[: k + 1]) + (1 - mu[k]) / (1 - product[k]) * g[k]
        for k in range(1, STEPS)
    ]
    states, sums = _package(g, d)
    return Study(
        "moments",
        "Eqn (comparison): first moments",
        "From the same gradients: Adan averages g_t + (1−β)(g_t − g_{t−1}), Adam averages g_t, Nadam mixes Adam's "
        "average with g_k. c_{k,t} = β(1−β)^{k−t}, and (1−β)^k for t = 0; g_{−1} = g_0.",
        [
            Check(
                "moments Adan",
                "max |m_k + (1−β)v_k − Σ c_{k,t}[g_t + (1−β)(g_t − g_{t−1})]|",
                distance(us, [c[k] @ (g + (1 - BETA) * d)[: k + 1] for k in ks]),
                ROUNDING,
                note="with v_1 = β(g_1 − g_0); the footnote's v_1 = g_1 − g_0 is no such sum",
            ),
            Check("moments Adam", "max |m_k − Σ c_{k,t} g_t|", distance(ms, [c[k] @ g[: k + 1] for k in ks]), ROUNDING),
            Check(
                "moments Nadam",
                "max |m_k − (μ_{k+1}/μ'_{k+1} Σ c_{k,t} g_t + (1−μ_k)/μ'_k g_k)|, k ≥ 1",
                distance(nadam, nadam_sums),
                ROUNDING,
            ),
            Check(
                "moments adan.Adan",
                "the package's m_k + (1−β2)v_k, β1 ≠ β2, footnote included, against its two sums",
                distance(states, sums),
                ROUNDING,
                note="the weight of g_1 − g_0 is (1−β2)^{k−1}",
            ),
        ],
    )


def _package(g: Array, d: Array) -> tuple[list[Array], list[Array]]:
    """The states of adan.Adan (fp64, bias_correction=False) and what Eqn (mknew) says of them."""
    import torch

    from adan import Adan

    beta1, beta2 = 0.1, 0.3
    p = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    optimizer = Adan([p], betas=(1 - beta1, 1 - beta2, 0.99), bias_correction=False)
    states, sums = [], []
    for k in range(STEPS):
        p.grad = torch.tensor(g[k])
        optimizer.step()
        state = optimizer.state[p]
        states.append((state["exp_avg"] + (1 - beta2) * state["exp_avg_diff"]).numpy().copy())
        c = weights(beta2, k)
        if k >= 1:
            c[1] = (1 - beta2) ** (k - 1)
        sums.append(weights(beta1, k) @ g[: k + 1] + (1 - beta2) * (c @ d[: k + 1]))
    return states, sums
