"""adan.Adan itself, in fp64 on a network: its steps, Eqn 8's sum and its restarts, from sums over its gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from adan_bench.theory import methods, moments, problems
from adan_bench.theory.check import ROUNDING, Array, Chapter, ChapterTable, check, distance

Decay = Callable[..., Array]

BETA = (0.02, 0.08, 0.01)  # of the package's default betas
ETA, EPS, LAM = 0.02, 1e-8, 0.3
RADIUS = 0.5
#: Options of the package, by the name of the check of its steps with them.
PATHS: dict[str, dict[str, Any]] = {
    "de-biased": {},
    "foreach": {"fused": False, "foreach": True},
    "loop": {"fused": False, "foreach": False},
    "footnote": {"bias_correction": False},
    "AdamW's decay": {"no_prox": True},
    "coupled": {"betas": (0.92, 0.92, 0.99)},
}


@dataclass(frozen=True)
class PackageRun:
    """θ_0 … θ_K, g_0 … g_{K−1}; of each step, whether a restart followed, and otherwise Eqn 8's sum so far."""

    thetas: Array
    gradients: Array
    restarted: Array
    sums: Array

    def cycles(self) -> Iterator[slice]:
        """The steps of each cycle."""
        ends = [*(np.flatnonzero(self.restarted) + 1), len(self.gradients)]
        return (slice(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True) if b > a)


def drive(steps: int, **options: Any) -> PackageRun:
    """The network trained by the package with its own defaults but for these options."""
    import torch

    from adan import Adan

    gradient, start = problems.digits_network()
    p = torch.tensor(start, requires_grad=True)
    optimizer = Adan([p], lr=ETA, weight_decay=LAM, **options)
    thetas, gradients, counts, sums = [start], [], [0], []
    for k in range(steps):
        gradients.append(gradient(thetas[-1], k))
        p.grad = torch.tensor(gradients[-1])
        optimizer.step()
        thetas.append(p.detach().numpy().copy())
        counts.append(optimizer.restarts)
        sums.append(optimizer.restart_progress.sum if "restart" in options else 0.0)
    return PackageRun(
        np.array(thetas), np.array(gradients), np.diff(np.array(counts, dtype=np.float64)), np.array(sums)
    )


def step_error(run: PackageRun, debias: bool = True, decay: Decay = methods.proximal_step, beta: Any = BETA) -> float:
    """How far the steps are from line 7 of Algorithm 1 with u and n as sums over the gradients of their cycle."""
    worst = 0.0
    for cycle in run.cycles():
        u, n = moments.closed_sums(run.gradients[cycle], beta, debias=debias)
        expected = decay(run.thetas[cycle], u, ETA, ETA / (np.sqrt(n) + EPS), LAM)
        worst = max(worst, distance(run.thetas[1:][cycle], expected))
    return worst


def extension_sums(run: PackageRun, cycle: slice) -> Array:
    """Eqn 8's Σ_{t≤k} ‖y_{t+1} − y_t‖²_√n for every k of a cycle."""
    g, theta, ahead = run.gradients[cycle], run.thetas[cycle], run.thetas[1:][cycle]
    u, n = moments.closed_sums(g, BETA, debias=True)
    root = np.sqrt(n) + EPS
    y = ahead + ETA / root * (u - BETA[0] * g)
    y = np.concatenate([theta[:1], ahead[:1], y[1:]])
    return np.asarray(np.cumsum((root * np.diff(y, axis=0) ** 2).sum(-1)))


def run(steps: int = 80, others: bool = True) -> Chapter:
    """others: also run Algorithm 1 with the step size of Theorem 2, for the table."""
    from adan import Restart

    restarting, probe = (drive(steps, restart=rule) for rule in (Restart(radius=RADIUS), Restart.probe()))
    wrong, sums = 0, extension_sums(probe, slice(0, steps))
    for cycle in restarting.cycles():
        own = extension_sums(restarting, cycle)
        due = np.arange(1, len(own) + 1) * own > RADIUS**2
        wrong += int((due != (restarting.restarted[cycle] > 0)).sum())
    checks = [
        *(check("package steps, $name", _path(steps, name), ROUNDING, name=name, steps=steps) for name in PATHS),
        check("package steps between restarts", step_error(restarting), ROUNDING),
        check("package Σ", float(np.max(np.abs(probe.sums / sums - 1))), ROUNDING),
        check("package restarts", wrong, 0, radius=RADIUS, steps=steps),
        check("package cycles", float(restarting.restarted.sum()), 3, at_least=True),
    ]
    return Chapter("package", checks, tables=[_lagged(steps)] if others else [])


def _path(steps: int, name: str) -> float:
    options = PATHS[name]
    decay = methods.adamw_step if "no_prox" in options else methods.proximal_step
    beta = tuple(1 - b for b in options["betas"]) if "betas" in options else BETA
    return step_error(drive(steps, **options), "bias_correction" not in options, decay, beta)


def _lagged(steps: int) -> ChapterTable:
    """What Theorem 2's step size does to a run: nothing of it is claimed."""
    gradient, start = problems.digits_network()
    rows = []
    for beta3 in (BETA[2], 0.1):
        ends = []
        for lagged in (False, True):
            adan = methods.Algorithm1(start, ETA, (*BETA[:2], beta3), EPS, LAM, lagged=lagged)
            ends += methods.trajectory(adan, gradient, steps)
        apart, way = (np.linalg.norm(x, axis=1) for x in (ends[1] - ends[0], ends[0] - start))
        rows.append([f"{1 - beta3:g}", *(f"{apart[k] / way[k]:.2g}" for k in (2, 10, steps))])
    head = ["b3", *(f"after {k} steps" for k in (2, 10, steps))]
    return ChapterTable(
        "η_k from n_{k−1}: distance to the run with n_k, as a share of the way from the start", head, rows
    )
