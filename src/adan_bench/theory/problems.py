"""Problems whose constants are known: quadratics, a network on handwritten digits, two nonconvex stochastic ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from adan_bench.theory.check import Array
from adan_bench.theory.methods import Gradient


def quadratic(dimension: int = 10, condition: float = 100.0, seed: int = 0) -> tuple[Gradient, Array]:
    """∇f = A(x − x*) with eigenvalues from 1/condition to 1, and a start."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((dimension, dimension)))[0]
    a = basis * np.geomspace(1 / condition, 1.0, dimension) @ basis.T
    minimum = rng.standard_normal(dimension)
    return lambda x, k: (x - minimum) @ a, np.zeros(dimension)


def digits_network(hidden: int = 8, batch: int = 64, examples: int = 640, seed: int = 0) -> tuple[Gradient, Array]:
    """A tanh network of one hidden layer on scikit-learn's digits: the gradient of batch k as a vector, and a start."""
    import torch
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.data[:examples] / 8 - 1)
    labels = torch.tensor(digits.target[:examples])
    generator = torch.Generator().manual_seed(seed)
    shapes = [(64, hidden), (hidden,), (hidden, 10), (10,)]
    start = torch.cat(
        [torch.randn(shape, generator=generator, dtype=torch.float64).flatten() / 8 for shape in shapes]
    ).numpy()

    def gradient(x: Array, k: int) -> Array:
        theta = torch.tensor(x, requires_grad=True)
        w1, b1, w2, b2 = (
            part.view(shape) for part, shape in zip(theta.split([int(np.prod(s)) for s in shapes]), shapes, strict=True)
        )
        chosen = np.arange(k * batch, (k + 1) * batch) % examples
        logits = torch.tanh(images[chosen] @ w1 + b1) @ w2 + b2
        loss = torch.nn.functional.cross_entropy(logits, labels[chosen])
        (grad,) = torch.autograd.grad(loss, theta)
        return np.asarray(grad.numpy())

    return gradient, start


@dataclass(frozen=True)
class Problem:
    """A nonconvex stochastic problem over replicas, with the constants of Assumptions 1 to 3.

    sample: (points, generator) -> stochastic gradients; full: the exact gradients; value: f − min f.
    hessian: of one point, where it is needed. rho: its Lipschitz constant.
    largest: a bound on ‖g‖∞ with probability 1, that is c∞ / 3. variance: a bound on E‖ξ‖².
    """

    name: str
    start: Array
    sample: Callable[[Array, Any], Array]
    full: Callable[[Array], Array]
    value: Callable[[Array], Array]
    smoothness: float
    variance: float
    largest: float
    hessian: Callable[[Array], Array] | None = None
    rho: float = 0.0

    def visited(self, method: Any, steps: int, rng: Any, every: int = 1) -> Iterator[tuple[int, Array]]:
        """Steps of a method by stochastic gradients; after every `every`-th, its k and the θ_k that it started from."""
        for k in range(steps):
            theta = method.theta
            method.step(self.sample(theta, rng))
            if k % every == 0:
                yield k, theta


def ripples(
    dimension: int = 4, noise: float = 0.15, seed: int = 0, start: float = 1.0, steep: float = 1.0, center: float = 0.0
) -> Problem:
    """f(x) = Σ h_j·(√(1 + z_j²) − 1 + 0.3·(1 − cos 2z_j)), z = Q(x − center), Q a rotation; noise uniform in ±noise.

    Its only stationary point is the center, f is concave in z_j around ±π/2, ∇f is bounded, L = 2.2·max h, and the
    Hessian is Lipschitz with 3.2·max h. h = steep·(0.25 … 0.5); start: the z_j of the start, all the same.
    """
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((dimension, dimension)))[0]
    heights = steep * np.linspace(0.25, 0.5, dimension)

    def full(x: Array) -> Array:
        return np.asarray((heights * _slope((x - center) @ basis.T)) @ basis)

    return Problem(
        "ripples" if steep == 1 else "steep ripples",
        center + start * np.ones(dimension) @ basis,
        lambda x, generator: full(x) + generator.uniform(-noise, noise, x.shape),
        full,
        lambda x: np.asarray((heights * _height((x - center) @ basis.T)).sum(-1)),
        smoothness=2.2 * float(heights.max()),
        variance=dimension * noise**2 / 3,
        largest=1.6 * float(np.linalg.norm(heights)) + noise,  # ‖Qᵀw‖∞ ≤ ‖w‖₂
        hessian=lambda x: np.asarray((basis.T * (heights * _curvature(basis @ (x - center)))) @ basis),
        rho=3.2 * float(heights.max()),
    )


def slope(start: float = 30.0, noise: float = 0.05) -> Problem:
    """f(x) = √(1 + x²) − 1 in one dimension: far out a gradient of 1, so that cycle after cycle is the same."""

    def full(x: Array) -> Array:
        return np.asarray(x / np.sqrt(1 + x * x))

    return Problem(
        "slope",
        np.array([start]),
        lambda x, generator: full(x) + generator.uniform(-noise, noise, x.shape),
        full,
        lambda x: np.asarray((np.sqrt(1 + x * x) - 1).sum(-1)),
        smoothness=1.0,
        variance=noise**2 / 3,
        largest=1 + noise,
    )


def regression(dimension: int = 8, examples: int = 64, batch: int = 16, seed: int = 0) -> Problem:
    """f(x) = mean of 2φ(a_i·x − b_i), φ as in `ripples`, with outliers among the b_i; a gradient has 16 examples.

    |φ'| ≤ 1.6 and |φ''| ≤ 2.2, so ‖g‖∞ ≤ 3.2·max|a_ij|, L ≤ 4.4·‖AᵀA‖ / examples, and E‖ξ‖² ≤ max‖∇f_i‖² / batch.
    min f is not known; `value` is f itself, which is at least 0.
    """
    rng = np.random.default_rng(seed)
    a = np.clip(rng.standard_normal((examples, dimension)), -2, 2) / np.sqrt(dimension)
    b = a @ (2 + rng.standard_normal(dimension)) + 0.1 * rng.standard_normal(examples)
    b[: examples // 8] += 4 * rng.standard_normal(examples // 8)

    def sample(x: Array, generator: Any) -> Array:
        i = generator.integers(examples, size=(*x.shape[:-1], batch))
        r = (a[i] @ x[..., None])[..., 0] - b[i]
        return np.asarray((_slope(r)[..., None, :] @ a[i])[..., 0, :] * 2 / batch)

    return Problem(
        "regression",
        np.full(dimension, 0.1),
        sample,
        lambda x: np.asarray(_slope(x @ a.T - b) @ a * 2 / examples),
        lambda x: np.asarray(2 * _height(x @ a.T - b).mean(-1)),
        smoothness=4.4 * float(np.linalg.eigvalsh(a.T @ a).max()) / examples,
        variance=float((3.2 * np.linalg.norm(a, axis=1)).max() ** 2) / batch,
        largest=3.2 * float(np.abs(a).max()),
    )


def _height(z: Array) -> Array:
    return np.asarray(np.sqrt(1 + z * z) - 1 + 0.3 * (1 - np.cos(2 * z)))


def _slope(z: Array) -> Array:
    return np.asarray(z / np.sqrt(1 + z * z) + 0.6 * np.sin(2 * z))


def _curvature(z: Array) -> Array:
    return np.asarray((1 + z * z) ** -1.5 + 1.2 * np.cos(2 * z))
