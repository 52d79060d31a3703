"""The paper's algorithms, in its symbols and in fp64. β is the paper's: the weight of what is new.

Arrays end in the axis of the parameters; axes before it are independent replicas, each with its own k.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adan_bench.theory.check import Array

Gradient = Callable[[Array, int], Array]  # (point, k) -> g_k; noise belongs to k, so that two methods can share it


def agd(gradient: Gradient, theta: Array, eta: float, beta: float, steps: int) -> tuple[list[Array], list[Array]]:
    """Nesterov's accelerated gradient, Eqn (AGD): θ̄_0 … θ̄_K and m̄_0 … m̄_{K−1}, from m̄_{−1} = 0."""
    m = np.zeros_like(theta)
    thetas, ms = [theta], []
    for k in range(steps):
        g = gradient(theta - eta * (1 - beta) * m, k)
        m = (1 - beta) * m + g
        theta = theta - eta * m
        thetas.append(theta)
        ms.append(m)
    return thetas, ms


def agd2(gradient: Gradient, theta: Array, eta: float, beta: float, steps: int) -> tuple[list[Array], list[Array]]:
    """AGD-II of Lemma 1: gradients at the iterate itself. m_{−1} = g_{−1} = 0, which is AGD's own start."""
    m, g_last = np.zeros_like(theta), np.zeros_like(theta)
    thetas, ms = [theta], []
    for k in range(steps):
        g = gradient(theta, k)
        m = (1 - beta) * m + g + (1 - beta) * (g - g_last)
        theta = theta - eta * m
        g_last = g
        thetas.append(theta)
        ms.append(m)
    return thetas, ms


def decayed(lam: float, mu: float, k: Any) -> Array:
    """Theorem 1's weight decay λ_k = λ(1 − μ)^k."""
    return np.asarray(lam * (1 - mu) ** np.asarray(k, dtype=np.float64))


def proximal_step(theta: Array, u: Array, eta: float, eta_k: Array, lam: Array | float) -> Array:
    """Line 7 of Algorithm 1, the argmin of Eqn (wd-update)."""
    return np.asarray((theta - eta_k * u) / (1 + lam * eta))


def adamw_step(theta: Array, u: Array, eta: float, eta_k: Array, lam: float) -> Array:
    """AdamW's decay: the expansion of the proximal step to first order in η."""
    return np.asarray((1 - lam * eta) * theta - eta_k * u)


def squared_norm(x: Array, root: Array) -> Array:
    """‖x‖²_{√n} = ⟨x, (√n + ε) ∘ x⟩ of each replica; root is √n + ε."""
    return np.asarray((root * x * x).sum(-1, keepdims=True))


@dataclass(frozen=True)
class Signs:
    """The factors of v in u, of g_k − g_{k−1} in n, and of the decay. All 1 is Adan; the rest is another algorithm."""

    v: float = 1.0
    n: float = 1.0
    decay: float = 1.0


ADAN = Signs()
#: What the theorems are also run with, to see which of their statements can tell it from Adan.
OTHERS = {
    "v dropped": Signs(v=0.0),
    "v flipped": Signs(v=-1.0),
    "n of g_k − (1−β2)(g_k − g_{k−1})": Signs(n=-1.0),
    "decay dropped": Signs(decay=0.0),
    "decay flipped": Signs(decay=-1.0),
}


class Cycles:
    """State of both algorithms, Eqn 8's sum over the steps of a cycle among it."""

    theta: Array
    radius: float

    def __post_init__(self) -> None:
        self.theta = np.array(self.theta, dtype=np.float64)
        self.m, self.v, self.n, self.g, self.y, self.eta_k = (np.zeros_like(self.theta) for _ in range(6))
        self.k = np.zeros((*self.theta.shape[:-1], 1))
        self.sum = np.zeros_like(self.k)  # Σ‖y_{t+1} − y_t‖² of the cycle
        self.moved, self.accumulated = self.sum, self.sum
        self.restarted = self.sum > 0

    def move(self, y: Array, root: Array) -> None:
        """Go on to y_{k+1}, before θ itself moves. root: √n_k + ε."""
        first = self.k == 0
        self.moved = squared_norm(y - np.where(first, self.theta, self.y), root)
        self.sum = np.where(first, 0.0, self.sum) + self.moved
        self.accumulated = (self.k + 1) * self.sum
        self.restarted = self.accumulated > self.radius**2
        self.y = y


@dataclass(eq=False)
class Algorithm1(Cycles):
    """Algorithm 1 with the restart of Eqn 8.

    mu: μ of the decay schedule λ_k = λ(1 − μ)^k; 0 keeps λ.
    radius: R of Eqn 8; y_0 = θ_0 and y_1 = θ_1 as in Algorithm 2.
    lagged: η_k from n_{k−1}, as Theorem 2 has it, so that η_k does not depend on the noise of g_k.
    footnote: v_1 = g_1 − g_0; without it v_1 = β2(g_1 − g_0) like any other.
    """

    theta: Array
    eta: float
    beta: tuple[float, float, float]
    eps: float
    lam: float = 0.0
    mu: float = 0.0
    radius: float = math.inf
    lagged: bool = False
    footnote: bool = True
    signs: Signs = ADAN

    def step(self, g: Array) -> None:
        beta1, beta2, beta3 = self.beta
        first, second = self.k == 0, self.k == 1
        n_last = self.n
        d = np.where(first, 0.0, g - self.g)
        w1, w3 = np.where(first, 1.0, beta1), np.where(first, 1.0, beta3)
        w2 = np.where(second, 1.0, beta2) if self.footnote else beta2
        self.m = (1 - w1) * self.m + w1 * g
        self.v = np.where(first, 0.0, (1 - w2) * self.v + w2 * d)
        self.n = (1 - w3) * self.n + w3 * (g + self.signs.n * (1 - beta2) * d) ** 2
        root = np.sqrt(np.where(first, self.n, n_last) if self.lagged else self.n) + self.eps
        eta_k = self.eta / root
        u = self.m + self.signs.v * (1 - beta2) * self.v
        lam = decayed(self.signs.decay * self.lam, self.mu, self.k) if self.lam else 0.0
        theta = proximal_step(self.theta, u, self.eta, eta_k, lam)
        if self.radius < math.inf:
            self.move(np.where(first, theta, theta + eta_k * (u - beta1 * g)), root)
        self.theta, self.g, self.u, self.eta_k = theta, g, u, eta_k
        self.k = np.where(self.restarted, 0.0, self.k + 1)


@dataclass(eq=False)
class Algorithm2(Cycles):
    """The supplement's reformulation: β1 = β2 = β, β3 = β² unless given, λ = 0, η_k from n_{k−1}.

    The text sets y_1 = x_1, so a cycle begins without momentum. Algorithm 1 has m_0 = g_0 there, and its x_2 goes
    (1 − β)²η_1∘g_0 further. With y_1 = x_0 − βη_0∘g_0, as line 7 has it (`printed=False`), both are one.
    signs: of v and n; another sign of v leaves a multiple of βη_k∘(g_k − g_{k−1}) in the momentum.
    """

    theta: Array
    eta: float
    beta: float
    eps: float
    radius: float = math.inf
    printed: bool = True
    beta3: float = 0.0
    signs: Signs = ADAN

    def __post_init__(self) -> None:
        super().__post_init__()
        self.beta3, self.y0 = self.beta3 or self.beta**2, self.theta

    def step(self, g: Array) -> None:
        beta, x, first = self.beta, self.theta, self.k == 0
        n = np.where(first, g * g, self.n)
        eta_k = self.eta / (np.sqrt(n) + self.eps)
        y = x - eta_k * beta * g
        d = np.where(first, 0.0, g - self.g)
        drift = (self.eta_k - eta_k) * (self.m - beta * self.g) + (1 - self.signs.v) * beta * eta_k * d
        theta = np.where(first, x - eta_k * g, y + (1 - beta) * ((y - self.y) + drift))
        if self.printed:
            y = np.where(first, theta, y)
        self.m = np.where(first, g, (1 - beta) * self.m + beta * (g + self.signs.v * (1 - beta) * d))
        ahead = g + self.signs.n * (1 - beta) * d
        self.n = (1 - self.beta3) * n + self.beta3 * ahead**2  # the n of the next k, which has g_{k−1} in it
        self.y0 = np.where(first, x, self.y0)
        self.move(y, self.eta / eta_k)
        self.theta, self.g, self.eta_k = theta, g, eta_k
        self.k = np.where(self.restarted, 0.0, self.k + 1)


class Adam:
    """Adam in the paper's form: no de-bias, m_0 = g_0, n_0 = g_0². β = (β1, β2, β3) for likeness; β2 is not used."""

    def __init__(self, theta: Array, eta: float, beta: tuple[float, float, float], eps: float) -> None:
        self.theta, self.eta, self.beta, self.eps = np.array(theta, dtype=np.float64), eta, beta, eps
        self.m, self.n, self.k = np.zeros_like(theta), np.zeros_like(theta), 0

    def direction(self, g: Array) -> Array:
        w1, w3 = (1.0, 1.0) if self.k == 0 else (self.beta[0], self.beta[2])
        self.m = (1 - w1) * self.m + w1 * g
        self.n = (1 - w3) * self.n + w3 * g**2
        self.k += 1
        return np.asarray(self.m / (np.sqrt(self.n) + self.eps))

    def step(self, g: Array) -> None:
        self.theta = self.theta - self.eta * self.direction(g)


class OneLayerLamb(Adam):
    """LAMB with one layer: Adam's direction, scaled to the length of the parameters."""

    def step(self, g: Array) -> None:
        r = self.direction(g)
        ratio = np.linalg.norm(self.theta, axis=-1, keepdims=True) / np.linalg.norm(r, axis=-1, keepdims=True)
        self.theta = self.theta - self.eta * ratio * r


def trajectory(method: Algorithm1 | Algorithm2 | Adam, gradient: Gradient, steps: int, *names: str) -> list[Array]:
    """Steps by the gradients at the iterates: θ_0 … θ_K, and what the method has under these names after each step."""
    thetas, states = [method.theta], []
    for k in range(steps):
        method.step(gradient(method.theta, k))
        thetas.append(method.theta)
        states.append([getattr(method, name) for name in names])
    return [np.array(thetas), *(np.array(values) for values in zip(*states, strict=True))]


def averaged_iterate(xs: Sequence[Array] | Array, moved: Sequence[float] | Array) -> tuple[Array, int]:
    """Theorem 2's output of a cycle of K iterations: the mean of x_1 … x_{K0}, and K0.

    xs: x_0 … x_K. moved: ‖y_{k+1} − y_k‖²_{√n_k} for k = 0 … K−1; K0 is its argmin over ⌊K/2⌋ ≤ k ≤ K−1.
    """
    k = len(moved)
    k0 = k // 2 + int(np.argmin(moved[k // 2 :]))
    k0 = max(k0, 1)
    return np.mean(xs[1 : k0 + 1], axis=0), k0
