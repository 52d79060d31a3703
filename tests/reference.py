"""The oracle: Algorithm 1 of the paper, in its own symbols, fp64, one line of the paper a line of code.

Written from the paper alone; imports nothing of the package. Here β is the paper's: the weight of what is new.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class ReferenceAdan:
    """Adan over a list of arrays; `debias=True` adds the supplement's de-bias strategy to the footnote's start.

    lagged: η_k from n_{k−1}, which Theorem 2 assumes, in place of Algorithm 1's n_k; η_0 is from n_0 in either.
    """

    def __init__(
        self,
        theta: list[Array],
        eta: float,
        beta: tuple[float, float, float] = (0.02, 0.08, 0.01),
        eps: float = 1e-8,
        lam: float = 0.0,
        debias: bool = True,
        proximal: bool = True,
        clip: float = 0.0,
        ascend: bool = False,
        skip_nonfinite: bool = False,
        lagged: bool = False,
    ) -> None:
        self.theta = [np.array(x, dtype=np.float64) for x in theta]
        self.eta, self.beta, self.eps, self.lam = eta, beta, eps, lam
        self.debias, self.proximal, self.clip = debias, proximal, clip
        self.ascend, self.skip_nonfinite, self.lagged = ascend, skip_nonfinite, lagged
        self.restart()

    def restart(self) -> None:
        """Line 9: the next gradient is g_0 again."""
        self.k = [0 for _ in self.theta]  # how many gradients this array has seen
        self.g_last: list[Array] = [np.zeros_like(x) for x in self.theta]
        self.m = [np.zeros_like(x) for x in self.theta]
        self.v = [np.zeros_like(x) for x in self.theta]
        self.n = [np.zeros_like(x) for x in self.theta]

    def step(self, gradients: list[Array | None], loss_scale: float = 1.0) -> None:
        """One iteration; None is an array without a gradient."""
        present = [np.asarray(g, dtype=np.float64) / loss_scale for g in gradients if g is not None]
        if self.skip_nonfinite and not all(np.isfinite(g).all() for g in present):
            return
        norm = np.sqrt(sum(float((g**2).sum()) for g in present))
        c = min(1.0, self.clip / (norm + 1e-6)) if self.clip > 0 else 1.0
        for i, gradient in enumerate(gradients):
            if gradient is not None:
                g = c * np.asarray(gradient, dtype=np.float64) / loss_scale
                self._update(i, -g if self.ascend else g)

    def _update(self, i: int, g: Array) -> None:
        beta1, beta2, beta3 = self.beta
        first, second = self.k[i] == 0, self.k[i] == 1
        difference = np.zeros_like(g) if first else g - self.g_last[i]
        n_last = self.n[i]

        if self.debias:
            self.m[i] = (1 - beta1) * self.m[i] + beta1 * g
            self.v[i] = (1 - beta2) * self.v[i] + beta2 * difference
            self.n[i] = (1 - beta3) * self.n[i] + beta3 * (g + (1 - beta2) * difference) ** 2
        elif first:
            self.m[i], self.v[i], self.n[i] = g.copy(), np.zeros_like(g), g**2
        else:
            self.m[i] = (1 - beta1) * self.m[i] + beta1 * g
            self.v[i] = difference if second else (1 - beta2) * self.v[i] + beta2 * difference
            self.n[i] = (1 - beta3) * self.n[i] + beta3 * (g + (1 - beta2) * difference) ** 2

        self.k[i] += 1
        self.g_last[i] = g.copy()
        m, v, n = self.m[i], self.v[i], self.n[i]
        if self.debias:
            m = m / (1 - (1 - beta1) ** self.k[i])
            v = v / (1 - (1 - beta2) ** self.k[i])
            n = n / (1 - (1 - beta3) ** self.k[i])
        if self.lagged and not first:
            n = n_last / (1 - (1 - beta3) ** (self.k[i] - 1)) if self.debias else n_last

        eta_k = self.eta / (np.sqrt(n) + self.eps)
        if self.proximal:
            self.theta[i] = (self.theta[i] - eta_k * (m + (1 - beta2) * v)) / (1 + self.lam * self.eta)
        else:
            self.theta[i] = (1 - self.lam * self.eta) * self.theta[i] - eta_k * (m + (1 - beta2) * v)
