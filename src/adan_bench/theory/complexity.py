"""Table 1: what the proven complexities say for given constants, and the constants measured on a model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from adan_bench.theory import theorem1
from adan_bench.theory.check import Chapter, ChapterTable, Check, check


@dataclass(frozen=True)
class Constants:
    """What Table 1 depends on: bounds of ‖g‖∞ and ‖g‖₂, and the number of parameters."""

    c_inf: float
    c_2: float
    d: float


#: The supplement's "Discussion about Convergence Complexity".
PAPER = {"ViT-S": Constants(8.2, 430.0, 2.2e7), "ResNet-50": Constants(78.0, 970.0, 2.5e7)}


@dataclass(frozen=True)
class Complexity:
    """A row of Table 1; factor: what stands before the power of 1/ϵ, by the constants and ϵ."""

    condition: str
    name: str
    formula: str
    exponent: float  # of 1/ϵ
    factor: Callable[[Constants, float], float]


SMOOTH, SMOOTHER = "Lipschitz gradient", "Lipschitz Hessian"
ROWS = [
    Complexity(SMOOTH, "Adam-type", "c∞²·d·ϵ^−4", 4, lambda c, _: c.c_inf**2 * c.d),
    Complexity(SMOOTH, "RMSProp", "√c∞·d·ϵ^−4", 4, lambda c, _: c.c_inf**0.5 * c.d),
    Complexity(SMOOTH, "AdaBelief", "c₂⁶·ϵ^−4", 4, lambda c, _: c.c_2**6),
    Complexity(SMOOTH, "Padam", "√c∞·d·ϵ^−4", 4, lambda c, _: c.c_inf**0.5 * c.d),
    Complexity(SMOOTH, "LAMB", "c₂²·d·ϵ^−4", 4, lambda c, _: c.c_2**2 * c.d),
    Complexity(SMOOTH, "Adan", "c∞^2.5·ϵ^−4", 4, lambda c, _: c.c_inf**2.5),
    Complexity(SMOOTHER, "A-NIGT", "ϵ^−3.5·log(c₂/ϵ)", 3.5, lambda c, e: math.log(max(c.c_2 / e, math.e))),
    Complexity(SMOOTHER, "Adam⁺", "ϵ^−3.625", 3.625, lambda c, e: 1.0),
    Complexity(SMOOTHER, "Adan", "c∞^1.25·ϵ^−3.5", 3.5, lambda c, e: c.c_inf**1.25),
]


def table(c: Constants, accuracy: float, title: str) -> ChapterTable:
    """Table 1 evaluated; constants that the O(·) hides are left out, so only the orders of magnitude mean something."""
    values = [row.factor(c, accuracy) * accuracy**-row.exponent for row in ROWS]
    own = {row.condition: value for row, value in zip(ROWS, values, strict=True) if row.name == "Adan"}
    return ChapterTable(
        f"{title}: c∞ = {c.c_inf:.3g}, c₂ = {c.c_2:.3g}, d = {c.d:.3g}, ϵ = {accuracy:g}",
        ["condition", "optimizer", "O(·)", "value", "÷ Adan"],
        [
            [row.condition, row.name, row.formula, f"{value:.2e}", f"{value / own[row.condition]:.2g}"]
            for row, value in zip(ROWS, values, strict=True)
        ],
    )


def run() -> Chapter:
    factors = {row.name: row.factor(PAPER["ViT-S"], 0.1) for row in ROWS if row.condition == SMOOTH}
    checks = []
    for name, value in {"Adam-type": 7.6e6, "AdaBelief": 3.3e13, "LAMB": 2.1e10}.items():
        ratio = factors[name] / factors["Adan"]
        words: dict[str, Any] = {"name": name, "value": f"{value:.1e}", "ratio": f"{ratio:.3g}"}
        checks.append(check("complexity $name", abs(ratio / value - 1), 0.02, **words))
    checks += [*_theorem1_exponents(), *_theorem2_exponents()]
    return Chapter("complexity", checks, tables=[table(c, 0.1, name) for name, c in PAPER.items()])


def _theorem1_exponents() -> list[Check]:
    c = np.geomspace(10, 1000, 5)

    def exponent(spread: float) -> float:
        """Of T in c∞ at fixed ε, L, Δ_0, ϵ, with σ² ∝ c∞^spread."""
        steps = [theorem1.proof_constants(0.1, value, 1.0, 1.0, value**spread, 1.0)[2] for value in c]
        return float(np.polyfit(np.log(c), np.log(steps), 1)[0])

    return [
        check("complexity c∞, Theorem 1", abs(exponent(0.0) - 2.5), 1e-9),
        check("complexity c∞, Theorem 1, σ ∝ c∞", abs(exponent(2.0) - 6), 1e-9),
    ]


#: Powers of (K, η, R, β, c∞, ε) in Theorem 2's proof. Lemma (last-cycle): what ‖∇f(x̄)‖ is at most, each to be O(ϵ).
Powers = tuple[float, ...]
GRADIENT: list[Powers] = [
    (-1, -1, 1, 0, 0.5, 0),
    (-2, -1, 1, -1, 0.5, 0),
    (0, -1, 1, 1, 1.5, -1),
    (-0.5, 0, 0, 0, 0, 0),
    (0, 0, 2, 0, 0, -1),
]
#: Lemma (one-cycle): what a cycle gains, and what it loses, each to be O(gain).
GAIN = (-1, -1, 2, 0, 0, 0)
LOSSES: list[Powers] = [(1, -1, 2, 2, 2, -2), (1, 1, 0, 1, 0, -1), (0, 1, 0, 0, 0, -1)]
#: Conditions, each to be O(1): Lη/ε and βc∞/ε.
CONDITIONS: list[Powers] = [(0, 1, 0, 0, 0, -1), (0, 0, 0, 1, 1, -1)]


def theorem2_exponent(c: float, eps: float, accuracy: float) -> float:
    """The smallest exponent of the iterations K/gain that the printed bounds allow, by linear programming.

    Everything is a power of one large number: c∞ of power c, ε of power eps, 1/ϵ of power accuracy.
    """
    from scipy.optimize import linprog

    rows: list[tuple[Powers, float]] = [(row, -accuracy) for row in GRADIENT]
    rows += [(tuple(a - b for a, b in zip(row, GAIN, strict=True)), 0.0) for row in LOSSES]
    rows += [(row, 0.0) for row in CONDITIONS]
    limits = [limit - row[4] * c - row[5] * eps for row, limit in rows]
    cost = [1 - GAIN[0], -GAIN[1], -GAIN[2], -GAIN[3]]
    solution = linprog(cost, A_ub=[row[:4] for row, _ in rows], b_ub=limits, bounds=(None, None))
    return float(solution.fun) if solution.success else math.nan


def _theorem2_exponents() -> list[Check]:
    checks = []
    for case, of, powers, value, aside in (
        ("1/ϵ, Theorem 2", "1/ϵ in the number of iterations", (0, 0, 1), 3.5, ""),
        ("c∞, Theorem 2", "c∞, ε fixed,", (1, 0, 0), 4.5, "; the paper states 1.25"),
        ("c∞, Theorem 2, ε ∝ c∞", "c∞, ε ∝ c∞,", (1, 1, 0), 0.0, "; the paper states 1.25"),
    ):
        words: dict[str, Any] = {"case": case, "of": of, "value": f"{value:g}", "aside": aside}
        checks.append(check("complexity $case", abs(theorem2_exponent(*powers) - value), 1e-6, **words))
    return checks


def measure(config: Any) -> tuple[Constants, list[tuple[int, float, float]]]:
    """Train as the configuration says; the largest ‖g‖∞ and ‖g‖₂ of the minibatch gradients, and both step by step."""
    import torch

    from adan_bench.training.trainer import Trainer

    trainer = Trainer(config)
    seen: list[tuple[int, float, float]] = []

    def look(*_: Any) -> None:
        gradients = [p.grad for p in trainer.model.parameters() if p.grad is not None]
        largest = max(float(g.abs().max()) for g in gradients)
        norm = float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g.double()) for g in gradients])))
        seen.append((trainer.state.step, largest, norm))

    trainer.optimizer.register_step_pre_hook(look)
    trainer.updater.forward.train()
    while trainer.state.step + trainer.spec.passes <= config.steps:
        trainer.update()
    return Constants(max(s[1] for s in seen), max(s[2] for s in seen), trainer.size), seen
