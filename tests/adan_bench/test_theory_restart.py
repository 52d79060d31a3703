"""Restarts and components: the oracle with restarts, the fp64 Algorithm 1 and the rows of the ablation are one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from reference import ReferenceAdan
from restart_reference import RestartingAdan, trajectory

from adan import Adan
from adan_bench.theory import methods

SHAPES = [(5, 7), (3,), ()]
BETA = (0.1, 0.2, 0.05)
BETAS = (0.9, 0.8, 0.95)


def gradients(steps: int, seed: int = 0) -> list[list[Any]]:
    rng = np.random.default_rng(seed)
    mean = [rng.standard_normal(shape) for shape in SHAPES]
    given = []
    for _ in range(steps):
        mean = [0.95 * x + 0.3 * rng.standard_normal(x.shape) for x in mean]
        given.append([x + 0.1 * rng.standard_normal(x.shape) for x in mean])
    return given


def start(seed: int = 1) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in SHAPES]


def test_oracle_by_hand() -> None:
    """One number, β1 = β2 = 1/2, β3 = 1/4, ε = 0, η = 1, λ = 0, gradients 1, 1, 4, and Eqn 8 worked out on paper."""
    found = trajectory([[np.array(1.0)], [np.array(1.0)], [np.array(4.0)]], [np.array(0.0)], math.inf, eta=1.0,
                       beta=(0.5, 0.5, 0.25), eps=0.0, debias=False)  # fmt: skip
    # k = 0: m = n = 1, θ_1 = y_1 = −1, so 1·1.  k = 1: the same again, θ_2 = −2, y_2 = −2 + (1 − 1/2) = −1.5:
    # 2·(1 + 0.25) = 2.5.  k = 2: m = 2.5, v = 0·½ + ½·3 = 1.5, n = ¾ + ¼·5.5² = 8.3125, u = 3.25, η_2 = 1/√n.
    root = math.sqrt(8.3125)
    theta_3 = -2 - 3.25 / root
    y_3 = theta_3 + (3.25 - 2) / root
    assert [float(x[0]) for x in found.theta] == pytest.approx([0, -1, -2, theta_3])
    assert found.accumulated == pytest.approx([1, 2.5, 3 * (1.25 + root * (y_3 + 1.5) ** 2)])


@pytest.mark.parametrize("debias", [True, False])
def test_oracle_without_restarts_is_the_oracle(debias: bool) -> None:
    plain = ReferenceAdan(start(), 0.02, BETA, lam=0.7, debias=debias)
    found = trajectory(gradients(50), start(), 1e9, eta=0.02, beta=BETA, lam=0.7, debias=debias)
    for given in gradients(50):
        plain.step(list(given))
    assert found.restarts == []
    for a, b in zip(found.theta[-1], plain.theta, strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("debias", [True, False])
def test_oracle_restarts_where_the_condition_holds_and_forgets(debias: bool) -> None:
    options = {"eta": 0.02, "beta": BETA, "lam": 0.7, "debias": debias}
    given, radius = gradients(60), 1.5
    found = trajectory(given, start(), radius, **options)
    assert len(found.restarts) >= 3
    assert found.restarts == [k for k, value in enumerate(found.accumulated, 1) if value > radius**2]
    # After a restart the run is that of a new oracle from where it stands.
    cut = found.restarts[0]
    again = trajectory(given[cut:], found.theta[cut], radius, **options)
    assert again.restarts == [k - cut for k in found.restarts[1:]]
    assert np.array_equal(again.theta[-1][0], found.theta[-1][0])


def test_oracle_takes_a_gradient_function_and_absent_gradients() -> None:
    found = trajectory(lambda theta, k: [x - 1 for x in theta], start(), 0.3, steps=40, eta=0.05)
    assert found.restarts
    oracle = RestartingAdan(start(), 0.02, radius=1.0)
    oracle.step([None, None, None])
    assert (oracle.cycle_k, oracle.accumulated) == (0, 0.0)
    late = gradients(1)[0]
    oracle.step([late[0], None, None])
    oracle.step([late[0], late[1], None])  # the second array's own first step: y_1 = θ_1 there
    assert np.array_equal(oracle.y[1], oracle.theta[1])
    assert oracle.accumulated == pytest.approx(2 * oracle.sum)


def test_the_fp64_algorithm_restarts_as_the_oracle_does() -> None:
    given, begin = [g[0].ravel() for g in gradients(80)], start()[0].ravel()
    found = trajectory([[g] for g in given], [begin], 1.5, eta=0.02, beta=BETA, eps=0.01, lam=0.7, debias=False)
    own, restarts = methods.Algorithm1(begin, 0.02, BETA, 0.01, lam=0.7, radius=1.5), []
    for k, g in enumerate(given, 1):
        own.step(g)
        assert own.accumulated[0] == pytest.approx(found.accumulated[k - 1], rel=1e-10)
        restarts += [k] if own.restarted[0] else []
    assert len(restarts) >= 3
    assert restarts == found.restarts
    assert np.abs(own.theta - found.theta[-1][0]).max() < 1e-12


def drive(optimizer: Any, params: list[torch.Tensor], steps: int) -> None:
    for given in gradients(steps):
        for p, g in zip(params, given, strict=True):
            p.grad = torch.tensor(g, dtype=p.dtype)
        optimizer.step()


def parameters(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    return [torch.tensor(x, dtype=dtype, requires_grad=True) for x in start()]


def apart(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    return max(float((x - y).detach().abs().max()) for x, y in zip(a, b, strict=True))


def test_the_step_size_of_theorem_2() -> None:
    """From n_{k−1}: the oracle and the fp64 Algorithm 1 have it, the package has Algorithm 1's n_k."""
    options: dict[str, Any] = {"eta": 0.02, "beta": BETA, "lam": 0.7}
    lagged = ReferenceAdan([start()[0]], debias=False, lagged=True, **options)
    own = methods.Algorithm1(start()[0].ravel(), 0.02, BETA, 1e-8, 0.7, lagged=True)
    for given, *_ in gradients(40):
        lagged.step([given])
        own.step(given.ravel())
    assert np.allclose(lagged.theta[0].ravel(), own.theta, rtol=0, atol=1e-14)
    for debias in (True, False):
        oracles = [ReferenceAdan(start(), debias=debias, lagged=lag, **options) for lag in (False, True)]
        for given in gradients(40):
            for oracle in oracles:
                oracle.step(list(given))
        package = parameters()
        drive(Adan(package, lr=0.02, betas=BETAS, weight_decay=0.7, bias_correction=debias), package, 40)
        near, far = (apart(package, [torch.tensor(x) for x in oracle.theta]) for oracle in oracles)
        assert near < 1e-12
        assert far > 1e-3


def test_adan_without_nesterov_is_adamw() -> None:
    """The first row of the table, heavy ball, is the others without the difference of gradients: b2 = 0 in u and n."""
    package = parameters()
    drive(torch.optim.AdamW(package, lr=0.02, betas=(0.9, 0.95), weight_decay=0.7), package, 80)
    oracle = ReferenceAdan(start(), 0.02, (0.1, 1.0, 0.05), lam=0.7, debias=True, proximal=False)
    for given in gradients(80):
        oracle.step(list(given))
    assert apart(package, [torch.tensor(x) for x in oracle.theta]) < 1e-12
