"""The oracle with restarts: Algorithm 1 with the condition of Eqn 8, fp64, in the paper's symbols.

Builds on `reference.ReferenceAdan` and imports nothing of the package. β is the paper's: the weight of what is new.

The conventions, where the paper leaves a choice:

- k counts the iterations of the cycle from 0; an iteration without any gradient, or a skipped one, does not count.
- y_0 = θ_0 and y_1 = θ_1 (Algorithm 2), then y_{k+1} = θ_{k+1} + η_k ∘ (u_k − β1·g_k) with u_k = m_k + (1 − β2)·v_k.
  An array that gets its first gradient of the cycle late has its own y_0 and y_1 there; the sum is over all arrays.
- η_k = η / (√n_k + ε) and ‖x‖²_{√n} = ⟨x, (√n + ε) ∘ x⟩; with de-bias, m, v and n are de-biased, g is not.
- The condition (k + 1)·Σ_{t≤k} ‖y_{t+1} − y_t‖²_{√n_t} > R² is asked after every iteration, that of k = 0 included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from reference import Array, ReferenceAdan

Gradients = Sequence[Array | None]


class RestartingAdan(ReferenceAdan):
    """Adan that restarts itself. `accumulated` is (k + 1)·Σ after the last step, `restarted` whether it passed R².

    `eta` may be changed between steps, as a schedule does: y_k was made with the η of its own step.
    """

    def __init__(self, theta: list[Array], eta: float, radius: float, **options: Any) -> None:
        self.radius = radius
        super().__init__(theta, eta, **options)
        self.accumulated, self.restarted = 0.0, False

    def restart(self) -> None:
        super().restart()
        self.cycle_k, self.sum = 0, 0.0
        self.y = [x.copy() for x in self.theta]

    def step(self, gradients: list[Array | None], loss_scale: float = 1.0) -> None:
        counts = list(self.k)
        for i, x in enumerate(self.theta):
            if counts[i] == 0:
                self.y[i] = x.copy()
        super().step(gradients, loss_scale)
        self.restarted = False
        updated = [i for i, count in enumerate(counts) if self.k[i] > count]
        if not updated:
            return
        for i in updated:
            y, root = self._extension_point(i)
            self.sum += float(((root + self.eps) * (y - self.y[i]) ** 2).sum())
            self.y[i] = y
        self.accumulated = (self.cycle_k + 1) * self.sum
        self.cycle_k += 1
        if self.accumulated > self.radius**2:
            self.restart()
            self.restarted = True

    def _extension_point(self, i: int) -> tuple[Array, Array]:
        """y_{k+1} and √n_k of one array, from the states that step k left."""
        beta1, beta2, beta3 = self.beta
        t = self.k[i]
        m, v, n = self.m[i], self.v[i], self.n[i]
        if self.debias:
            m, v, n = m / (1 - (1 - beta1) ** t), v / (1 - (1 - beta2) ** t), n / (1 - (1 - beta3) ** t)
        root = np.sqrt(n)
        if t == 1:
            return self.theta[i].copy(), root
        eta_k = self.eta / (root + self.eps)
        return self.theta[i] + eta_k * (m + (1 - beta2) * v - beta1 * self.g_last[i]), root


@dataclass
class Trajectory:
    """What a run did: parameters before the first step and after each, (k + 1)·Σ after each step, and which restarted.

    restarts: 1-based numbers of the steps after which the condition held; the next gradient is g_0 again.
    """

    theta: list[list[Array]] = field(default_factory=list)
    accumulated: list[float] = field(default_factory=list)
    restarts: list[int] = field(default_factory=list)


def trajectory(
    gradients: Iterable[Gradients] | Callable[[list[Array], int], Gradients],
    start: list[Array],
    radius: float,
    steps: int | None = None,
    **options: Any,
) -> Trajectory:
    """Run the oracle on given gradients, or on a function (parameters, step from 0) -> gradients with `steps`.

    options: those of ReferenceAdan, `eta` among them.
    """
    oracle = RestartingAdan(start, radius=radius, **options)
    found = Trajectory(theta=[[x.copy() for x in oracle.theta]])
    if callable(gradients):
        assert steps is not None, "a gradient function needs the number of steps"
        function = gradients
        sequence: Iterable[Gradients] = (function(oracle.theta, k) for k in range(steps))
    else:
        sequence = gradients
    for number, given in enumerate(sequence, start=1):
        oracle.step(list(given))
        found.theta.append([x.copy() for x in oracle.theta])
        found.accumulated.append(oracle.accumulated)
        if oracle.restarted:
            found.restarts.append(number)
    return found
