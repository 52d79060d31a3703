"""Each compared optimizer against its published update, written out naively, in fp64 over 20 steps.

Where the package differs from the paper on purpose, the reference is the package's documented form, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from adan_bench.training.optimizers import build, get_optimizer

STEPS = 20
TOLERANCE = {"nadam": 1e-6}  # torch keeps ∏ μ in fp32; all others: 1e-12
State = dict[str, Any]
Update = Callable[[list[Tensor], list[Tensor], State, int, Any], list[Tensor]]


def gradients(thetas: list[Tensor], t: int) -> list[Tensor]:
    """Of a quadratic with noise that shrinks: v falls, so that a missing maximum over it shows."""
    source = torch.Generator().manual_seed(t)
    noise = [torch.randn(theta.shape, generator=source, dtype=torch.float64) for theta in thetas]
    return [0.3 * theta + 2.0 * 0.7**t * z for theta, z in zip(thetas, noise, strict=True)]


def moments(grads: list[Tensor], state: State, s: Any) -> tuple[list[Tensor], list[Tensor]]:
    b1, b2 = s["betas"]
    zeros = [torch.zeros_like(g) for g in grads]
    state["m"] = [b1 * m + (1 - b1) * g for m, g in zip(state.get("m", zeros), grads, strict=True)]
    state["v"] = [b2 * v + (1 - b2) * g * g for v, g in zip(state.get("v", zeros), grads, strict=True)]
    return state["m"], state["v"]


def coupled(thetas: list[Tensor], grads: list[Tensor], s: Any) -> list[Tensor]:
    return [g + s["weight_decay"] * x for x, g in zip(thetas, grads, strict=True)]


def decayed(thetas: list[Tensor], s: Any) -> list[Tensor]:
    return [(1 - s["lr"] * s["weight_decay"]) * x for x in thetas]


def minus(thetas: list[Tensor], steps: list[Tensor]) -> list[Tensor]:
    return [x - step for x, step in zip(thetas, steps, strict=True)]


def sgd(thetas: list[Tensor], grads: list[Tensor], state: State, t: int, s: Any) -> list[Tensor]:
    """Momentum: b = μ b + g;  Nesterov in Sutskever's shifted variables: the step is g + μ b."""
    mu, grads = s.get("momentum", 0.0), coupled(thetas, grads, s)
    state["b"] = [mu * b + g for b, g in zip(state["b"], grads, strict=True)] if t > 1 else grads
    steps = [g + mu * b for b, g in zip(state["b"], grads, strict=True)] if s.get("nesterov") else state["b"]
    return minus(thetas, [s["lr"] * step for step in steps])


def adam_step(m: Tensor, v: Tensor, t: int, s: Any) -> Tensor:
    b1, b2 = s["betas"]
    step: Tensor = s["lr"] * (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + s["eps"])
    return step


def adam(thetas: list[Tensor], grads: list[Tensor], state: State, t: int, s: Any) -> list[Tensor]:
    m, v = moments(coupled(thetas, grads, s), state, s)
    return minus(thetas, [adam_step(a, b, t, s) for a, b in zip(m, v, strict=True)])


def adamw(thetas: list[Tensor], grads: list[Tensor], state: State, t: int, s: Any) -> list[Tensor]:
    m, v = moments(grads, state, s)
    return minus(decayed(thetas, s), [adam_step(a, b, t, s) for a, b in zip(m, v, strict=True)])


def nadam(thetas: list[Tensor], grads: list[Tensor], state: State, t: int, s: Any) -> list[Tensor]:
    """Dozat 2016 as torch has it: m averages with β1, where he has μ_t, and n̂ lacks his factor ν."""
    b1, b2 = s["betas"]
    grads = coupled(thetas, grads, s)
    m, v = moments(grads, state, s)
    mu, following = (b1 * (1 - 0.5 * 0.96 ** (i * 0.004)) for i in (t, t + 1))
    product = state["product"] = state.get("product", 1.0) * mu
    steps = []
    for g, a, b in zip(grads, m, v, strict=True):
        ahead = (1 - mu) / (1 - product) * g + following / (1 - product * following) * a
        steps.append(s["lr"] * ahead / ((b / (1 - b2**t)).sqrt() + s["eps"]))
    return minus(thetas, steps)


def radam(thetas: list[Tensor], grads: list[Tensor], state: State, t: int, s: Any) -> list[Tensor]:
    """Liu et al. 2020 with the threshold ρ > 5 of their code and of torch; the paper's text has 4."""
    b1, b2 = s["betas"]
    m, v = moments(grads, state, s)
    limit = 2 / (1 - b2) - 1
    rho = limit - 2 * t * b2**t / (1 - b2**t)
    steps = []
    for a, b in zip(m, v, strict=True):
        step = a / (1 - b1**t)
        if rho > 5:
            r = math.sqrt((rho - 4) * (rho - 2) * limit / ((limit - 4) * (limit - 2) * rho))
            step = r * step * math.sqrt(1 - b2**t) / (b.sqrt() + s["eps"])
        steps.append(s["lr"] * step)
    return minus(decayed(thetas, s), steps)


def lamb(thetas: list[Tensor], grads: list[Tensor], state: State, t: int, s: Any) -> list[Tensor]:
    """You et al. 2020, Algorithm 2, φ the identity."""
    m, v = moments(grads, state, s)
    steps = []
    for x, a, b in zip(thetas, m, v, strict=True):
        r = adam_step(a, b, t, {**s, "lr": 1.0}) + s["weight_decay"] * x
        steps.append(s["lr"] * x.norm() / r.norm() * r)
    return minus(thetas, steps)


def adabelief(thetas: list[Tensor], grads: list[Tensor], state: State, t: int, s: Any) -> list[Tensor]:
    """Zhuang et al. 2020, Algorithm 2, without rectification."""
    b2 = s["betas"][1]
    grads = grads if s["weight_decouple"] else coupled(thetas, grads, s)
    m, _ = moments(grads, state, s)
    before = state.get("s", [torch.zeros_like(g) for g in grads])
    state["s"] = [b2 * b + (1 - b2) * (g - a) ** 2 + s["eps"] for b, g, a in zip(before, grads, m, strict=True)]
    thetas = decayed(thetas, s) if s["weight_decouple"] else thetas
    return minus(thetas, [adam_step(a, b, t, s) for a, b in zip(m, state["s"], strict=True)])


def adabound(thetas: list[Tensor], grads: list[Tensor], state: State, t: int, s: Any) -> list[Tensor]:
    """Luo et al. 2019 as released: bias corrections, and no 1/√t, which Algorithm 1 has."""
    b1, b2 = s["betas"]
    m, v = moments(coupled(thetas, grads, s), state, s)
    low, high = s["final_lr"] * (1 - 1 / (s["gamma"] * t + 1)), s["final_lr"] * (1 + 1 / (s["gamma"] * t))
    rate = s["lr"] * math.sqrt(1 - b2**t) / (1 - b1**t)
    return minus(thetas, [(rate / (b.sqrt() + s["eps"])).clamp(low, high) * a for a, b in zip(m, v, strict=True)])


def yogi(thetas: list[Tensor], grads: list[Tensor], state: State, t: int, s: Any) -> list[Tensor]:
    """Zaheer et al. 2018 as in AdaBelief's code: both moments start at 1e-6, with bias corrections."""
    b1, b2 = s["betas"]
    grads = coupled(thetas, grads, s)
    start = [torch.full_like(g, 1e-6) for g in grads]
    state["m"] = [b1 * m + (1 - b1) * g for m, g in zip(state.get("m", start), grads, strict=True)]
    state["v"] = [
        v - (1 - b2) * torch.sign(v - g * g) * g * g for v, g in zip(state.get("v", start), grads, strict=True)
    ]
    return minus(thetas, [adam_step(a, b, t, s) for a, b in zip(state["m"], state["v"], strict=True)])


def padam(thetas: list[Tensor], grads: list[Tensor], state: State, t: int, s: Any) -> list[Tensor]:
    """Chen et al. 2020: AMSGrad's maximum, and its root to the power 2p; bias corrections as in their code."""
    b1, b2 = s["betas"]
    m, v = moments(coupled(thetas, grads, s), state, s)
    state["max"] = [torch.maximum(a, b) for a, b in zip(state.get("max", v), v, strict=True)]
    rate = s["lr"] * math.sqrt(1 - b2**t) / (1 - b1**t)
    steps = [rate * a / (b.sqrt() + s["eps"]) ** (2 * s["partial"]) for a, b in zip(m, state["max"], strict=True)]
    return minus(thetas, steps)


def adai(thetas: list[Tensor], grads: list[Tensor], state: State, t: int, s: Any) -> list[Tensor]:
    """Xie et al. 2022: one mean of v̂ over all parameters sets every weight's momentum."""
    b0, b2 = s["betas"]
    grads = coupled(thetas, grads, s)
    zeros, ones = ([torch.full_like(g, value) for g in grads] for value in (0.0, 1.0))
    state["v"] = [b2 * v + (1 - b2) * g * g for v, g in zip(state.get("v", zeros), grads, strict=True)]
    hats = [v / (1 - b2**t) for v in state["v"]]
    mean = torch.cat([hat.flatten() for hat in hats]).mean()
    b1 = [(1 - b0 / mean * hat).clamp(0, 1 - s["eps"]) for hat in hats]
    state["product"] = [p * b for p, b in zip(state.get("product", ones), b1, strict=True)]
    state["m"] = [b * m + (1 - b) * g for b, m, g in zip(b1, state.get("m", zeros), grads, strict=True)]
    return minus(thetas, [s["lr"] * m / (1 - p) for m, p in zip(state["m"], state["product"], strict=True)])


TWO = {"betas": (0.9, 0.99), "eps": 1e-3, "weight_decay": 0.1}
CASES: list[tuple[str, Update, dict[str, Any]]] = [
    ("sgd", sgd, {"lr": 0.1, "weight_decay": 0.1}),
    ("sgd-momentum", sgd, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    ("sgd-nesterov", sgd, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("adam", adam, {"lr": 0.1, **TWO}),
    ("adam", adamw, {"lr": 0.1, "decoupled_weight_decay": True, **TWO}),  # Fairseq's and Megatron's “Adam”
    ("adamw", adamw, {"lr": 0.1, **TWO}),
    ("nadam", nadam, {"lr": 0.1, **TWO}),
    ("radam", radam, {"lr": 0.1, "decoupled_weight_decay": True, **TWO}),
    ("lamb", lamb, {"lr": 0.1, **TWO}),
    ("adabelief", adabelief, {"lr": 0.1, "weight_decouple": False, **TWO}),
    ("adabelief", adabelief, {"lr": 0.1, "weight_decouple": True, **TWO}),
    ("adabound", adabound, {"lr": 0.1, "final_lr": 0.3, "gamma": 0.1, "weight_decouple": False, **TWO}),
    ("yogi", yogi, {"lr": 0.1, "weight_decouple": False, **TWO}),
    ("padam", padam, {"lr": 0.1, "partial": 0.125, **TWO}),
    ("padam", padam, {"lr": 0.1, "partial": 0.4, **TWO}),
    ("adai", adai, {"lr": 0.1, "betas": (0.1, 0.99), "eps": 1e-3, "weight_decay": 0.1}),
]


def start(scale: float = 1.0) -> list[Tensor]:
    source = torch.Generator().manual_seed(0)
    return [scale * torch.randn(shape, generator=source, dtype=torch.float64) for shape in ((4, 3), (5,))]


def distance(a: list[Tensor], b: list[Tensor]) -> float:
    """Relative to the length of b."""
    first, second = (torch.cat([x.detach().flatten() for x in tensors]) for tensors in (a, b))
    return float((first - second).norm() / second.norm())


@pytest.mark.parametrize(("name", "update", "settings"), CASES, ids=[f"{case[0]} {i}" for i, case in enumerate(CASES)])
@pytest.mark.parametrize("scale", [1.0, 1e-3], ids=["", "small"])
def test_published_update(name: str, update: Update, settings: dict[str, Any], scale: float) -> None:
    """Small gradients tell Adai with a floor under its mean from Adai without."""
    params = [torch.nn.Parameter(x.clone()) for x in start(scale)]
    thetas, state = start(scale), State()
    optimizer = build(get_optimizer(name), params, settings)
    for t in range(1, STEPS + 1):
        for p, g in zip(params, gradients([p.detach() for p in params], t), strict=True):
            p.grad = scale * g
        optimizer.step()
        thetas = update(thetas, [scale * g for g in gradients(thetas, t)], state, t, settings)
        assert distance(params, thetas) < TOLERANCE.get(name, 1e-12), t
    assert distance(thetas, start(scale)) > 1e-3


def test_lamb_without_trust_ratio_for_what_does_not_decay() -> None:
    """The default of timm, with which A2 was made: such tensors take Adam's step."""
    settings = {"lr": 0.1, **TWO, "weight_decay": 0.0}
    params, thetas, state = [torch.nn.Parameter(x) for x in start()], start(), State()
    optimizer = build(get_optimizer("lamb"), params, {**settings, "always_adapt": False})
    for t in range(1, STEPS + 1):
        for p, g in zip(params, gradients([p.detach() for p in params], t), strict=True):
            p.grad = g
        optimizer.step()
        thetas = adam(thetas, gradients(thetas, t), state, t, settings)
    assert distance(params, thetas) < 1e-12


def test_sam() -> None:
    """Foret et al. 2021: SGD's step from θ with the gradient at θ + ρ g / ‖g‖; the package takes ‖g‖ in fp32."""
    settings = {"lr": 0.1, "rho": 0.3, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}
    params, thetas, state = [torch.nn.Parameter(x) for x in start()], start(), State()
    optimizer: Any = build(get_optimizer("sam"), params, settings)
    for t in range(1, STEPS + 1):
        for move in (optimizer.first_step, optimizer.second_step):
            for p, g in zip(params, gradients([p.detach() for p in params], t), strict=True):
                p.grad = g
            move(zero_grad=True)
        grads = gradients(thetas, t)
        norm = torch.cat([g.flatten() for g in grads]).norm()
        ahead = gradients([x + 0.3 * g / norm for x, g in zip(thetas, grads, strict=True)], t)
        thetas = sgd(thetas, ahead, state, t, settings)
    assert distance(params, thetas) < 1e-7
