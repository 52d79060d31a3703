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
#: torch's NAdam keeps ∏ μ in fp32, SOAP's bases come from a QR decomposition in fp32, Prodigy sums in fp32, and the
#: package's MARS adds 1e-15 to v; all others: 1e-12.
TOLERANCE = {"nadam": 1e-6, "nadamw": 1e-6, "soap": 1e-6, "prodigy": 1e-6, "mars": 1e-6}
State = dict[str, Any]
Update = Callable[[list[Tensor], list[Tensor], State, int, Any], list[Tensor]]


def gradients(thetas: list[Tensor], t: int) -> list[Tensor]:
    """Of a quadratic with noise that shrinks: v falls, so that a missing maximum over it shows."""
    source = torch.Generator().manual_seed(t)
    noise = [torch.randn(theta.shape, generator=source, dtype=torch.float64) for theta in thetas]
    return [0.3 * theta + 2.0 * 0.7**t * z for theta, z in zip(thetas, noise, strict=True)]


def average(state: State, name: str, values: list[Tensor], beta: float, start: float = 0.0) -> list[Tensor]:
    before = state.get(name) or [torch.full_like(x, start) for x in values]
    state[name] = [beta * a + (1 - beta) * x for a, x in zip(before, values, strict=True)]
    found: list[Tensor] = state[name]
    return found


def moments(grads: list[Tensor], state: State, s: Any) -> tuple[list[Tensor], list[Tensor]]:
    b1, b2 = s["betas"]
    return average(state, "m", grads, b1), average(state, "v", [g * g for g in grads], b2)


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
    decoupled = s.get("decoupled_weight_decay", False)
    grads, thetas = (grads, decayed(thetas, s)) if decoupled else (coupled(thetas, grads, s), thetas)
    m, v = moments(grads, state, s)
    mu, following = (b1 * (1 - 0.5 * 0.96 ** (i * s.get("momentum_decay", 0.004))) for i in (t, t + 1))
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
    average(state, "m", grads, b1, start=1e-6)
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
    hats = [v / (1 - b2**t) for v in average(state, "v", [g * g for g in grads], b2)]
    mean = torch.cat([hat.flatten() for hat in hats]).mean()
    b1 = [(1 - b0 / mean * hat).clamp(0, 1 - s["eps"]) for hat in hats]
    state["product"] = [p * b for p, b in zip(state.get("product", ones), b1, strict=True)]
    state["m"] = [b * m + (1 - b) * g for b, m, g in zip(b1, state.get("m", zeros), grads, strict=True)]
    return minus(thetas, [s["lr"] * m / (1 - p) for m, p in zip(state["m"], state["product"], strict=True)])


def orthogonalized(g: Tensor) -> Tensor:
    """Jordan's five Newton-Schulz steps in bf16, rounded where torch rounds."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = (g if len(g) <= len(g.T) else g.T).bfloat16()
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x if len(g) <= len(g.T) else x.T).double()


def muon(thetas: list[Tensor], grads: list[Tensor], state: State, t: int, s: Any) -> list[Tensor]:
    """Jordan et al. 2024 for matrices, in the scale of Liu et al. 2025 or their own; AdamW for vectors."""
    mu, rest = s["momentum"], state.setdefault("rest", State())
    moved = []
    for i, (x, g) in enumerate(zip(thetas, grads, strict=True)):
        if x.dim() != 2:
            other = {**s, "lr": s["rest_factor"] * s["lr"]}
            moved += adamw([x], [g], rest, t, other)
            continue
        buffer = state[i] = mu * state.get(i, torch.zeros_like(g)) + (1 - mu) * g
        rows, columns = x.shape
        matched = 0.2 * math.sqrt(max(rows, columns))
        scale = matched if s["adjust_lr_fn"] == "match_rms_adamw" else math.sqrt(max(1, rows / columns))
        direction = orthogonalized((1 - mu) * g + mu * buffer if s["nesterov"] else buffer)
        moved.append((1 - s["lr"] * s["weight_decay"]) * x - s["lr"] * scale * direction)
    return moved


def soap(thetas: list[Tensor], grads: list[Tensor], state: State, t: int, s: Any) -> list[Tensor]:
    """Vyas et al. 2024, Algorithm 3, as released: the first gradient only begins L and R, whose bases come by eigh.

    Then one power iteration and a QR decomposition every f steps, eigenvectors in descending order.
    """
    b1, b2 = s["betas"]
    moved = []
    for i, (x, g) in enumerate(zip(thetas, grads, strict=True)):
        own = state.setdefault(i, {"m": torch.zeros_like(g), "v": torch.zeros_like(g), "sides": [], "bases": []})
        outer = [g @ g.T, g.T @ g] if g.dim() == 2 else []
        if t == 1:
            own["sides"] = [(1 - b2) * side for side in outer]
            own["bases"] = [torch.linalg.eigh(side)[1].flip(1) for side in own["sides"]]
            moved.append(x)
            continue
        left, right = own["bases"] or (torch.eye(len(g), dtype=g.dtype), None)

        def rotated(value: Tensor, l: Tensor = left, r: Tensor | None = right) -> Tensor:  # noqa: E741
            return l.T @ value if r is None else l.T @ value @ r

        own["m"] = b1 * own["m"] + (1 - b1) * g
        own["v"] = b2 * own["v"] + (1 - b2) * rotated(g) ** 2
        direction = left @ (rotated(own["m"]) / (own["v"].sqrt() + s["eps"]))
        direction = direction if right is None else direction @ right.T
        x = x - s["lr"] * math.sqrt(1 - b2 ** (t - 1)) / (1 - b1 ** (t - 1)) * direction
        moved.append((1 - s["lr"] * s["weight_decay"]) * x)
        own["sides"] = [b2 * a + (1 - b2) * b for a, b in zip(own["sides"], outer, strict=True)]
        if (t - 1) % s["precondition_frequency"] == 0:
            for axis, (side, basis) in enumerate(zip(own["sides"], own["bases"], strict=True)):
                order = torch.diag(basis.T @ side @ basis).argsort(descending=True)
                own["v"] = own["v"].index_select(axis, order)
                own["bases"][axis] = torch.linalg.qr((side @ basis[:, order]).float())[0].double()
    return moved


def schedule_free(thetas: list[Tensor], grads: list[Tensor], state: State, t: int, s: Any) -> list[Tensor]:
    """Defazio et al. 2024, Algorithm 1: thetas are y, where gradients and decay are taken; x is the weighted mean of z.

    The weights are the squares of the largest rate so far, as released.
    """
    b1, b2 = s["betas"]
    squares = average(state, "v", [g * g for g in grads], b2)
    state["weights"] = state.get("weights", 0.0) + s["lr"] ** 2
    share = s["lr"] ** 2 / state["weights"]
    z, x = state.get("z", thetas), state.get("x", thetas)
    steps = [
        g / ((v / (1 - b2**t)).sqrt() + s["eps"]) + s["weight_decay"] * y
        for g, v, y in zip(grads, squares, thetas, strict=True)
    ]
    state["z"] = minus(z, [s["lr"] * step for step in steps])
    state["x"] = [(1 - share) * a + share * b for a, b in zip(x, state["z"], strict=True)]
    return [(1 - b1) * b + b1 * a for a, b in zip(state["x"], state["z"], strict=True)]


def ademamix(thetas: list[Tensor], grads: list[Tensor], state: State, t: int, s: Any) -> list[Tensor]:
    """Pagliardini et al. 2024, Algorithm 1: α grows linearly, the half-life of the slow average, too."""
    b1, b2, b3 = s["betas"]
    done = min(1.0, t / s["t_alpha_beta3"])
    life = (1 - done) * math.log(0.5) / math.log(b1) + done * math.log(0.5) / math.log(b3)
    slow, alpha = 0.5 ** (1 / life), done * s["alpha"]
    m, v = moments(grads, state, {"betas": (b1, b2)})
    steps = [
        s["lr"] * (a / (1 - b1**t) + alpha * c) / ((b / (1 - b2**t)).sqrt() + s["eps"])
        for a, b, c in zip(m, v, average(state, "slow", grads, slow), strict=True)
    ]
    return minus(decayed(thetas, s), steps)


def lion(thetas: list[Tensor], grads: list[Tensor], state: State, t: int, s: Any) -> list[Tensor]:
    """Chen et al. 2023, Algorithm 2."""
    b1, b2 = s["betas"]
    before = state.get("m", [torch.zeros_like(g) for g in grads])
    steps = [s["lr"] * torch.sign(b1 * m + (1 - b1) * g) for m, g in zip(before, grads, strict=True)]
    average(state, "m", grads, b2)
    return minus(decayed(thetas, s), steps)


def mars(thetas: list[Tensor], grads: list[Tensor], state: State, t: int, s: Any) -> list[Tensor]:
    """Yuan et al. 2024, MARS-AdamW with last gradients, AdamW for vectors; the package divides ε by √(1 − b2ᵗ), too."""
    before = state.get("before", [torch.zeros_like(g) for g in grads])
    state["before"] = grads
    moved = []
    for i, (x, g, last) in enumerate(zip(thetas, grads, before, strict=True)):
        (b1, b2), lr, decay = s["betas"], s["lr"], s["weight_decay"]
        if x.dim() == 2:
            g = g + s["gamma"] * b1 / (1 - b1) * (g - last)
            g = g / max(1.0, float(g.norm()))
        else:
            (b1, b2), lr, decay = s["betas_1d"], s["lr_1d"], s["weight_decay_1d"]
        (m,), (v,) = moments([g], state.setdefault(i, State()), {"betas": (b1, b2)})
        step = m / (1 - b1**t) / ((v.sqrt() + s["eps"]) / math.sqrt(1 - b2**t))
        moved.append((1 - lr * decay) * x - lr * step)
    return moved


def prodigy(thetas: list[Tensor], grads: list[Tensor], state: State, t: int, s: Any) -> list[Tensor]:
    """Mishchenko and Defazio 2023, Algorithm 4 with the released d/d0 in numerator and denominator."""
    b1, b2 = s["betas"]
    b3, d, d0 = math.sqrt(b2), state.get("d", s["d0"]), s["d0"]
    start = state.setdefault("start", thetas)
    zeros = [torch.zeros_like(g) for g in grads]
    rate = d * s["lr"] * (math.sqrt(1 - b2**t) / (1 - b1**t) if s["bias_correction"] else 1.0)
    along = sum(float((g * (a - x)).sum()) for g, a, x in zip(grads, start, thetas, strict=True))
    state["along"] = b3 * state.get("along", 0.0) + d / d0 * rate * along
    m, v = moments([d * g for g in grads], state, s)
    weight = d / d0 * (d if s["safeguard_warmup"] else rate)
    state["s"] = [b3 * a + weight * g for a, g in zip(state.get("s", zeros), grads, strict=True)]
    d = state["d"] = max(d, s["d_coef"] * state["along"] / sum(float(a.abs().sum()) for a in state["s"]))
    thetas = [(1 - rate * s["weight_decay"]) * x for x in thetas]
    steps = [rate * a / (b.sqrt() + d * s["eps"]) for a, b in zip(m, v, strict=True)]
    return minus(thetas, steps)


TWO = {"betas": (0.9, 0.99), "eps": 1e-3, "weight_decay": 0.1}
MUON = {"lr": 0.1, **TWO, "momentum": 0.9, "nesterov": True, "adjust_lr_fn": "match_rms_adamw", "rest_factor": 0.5}
ONE_D = {"lr_1d": 0.05, "betas_1d": (0.8, 0.95), "weight_decay_1d": 0.2}
FOUND = {"safeguard_warmup": True, "bias_correction": True, "d0": 0.01, "d_coef": 2.0}
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
    # no trust ratio for what does not decay, the default of timm, with which A2 was made: there Adam's step
    ("lamb", adam, {"lr": 0.1, **TWO, "weight_decay": 0.0, "always_adapt": False}),
    ("adabelief", adabelief, {"lr": 0.1, "weight_decouple": False, **TWO}),
    ("adabelief", adabelief, {"lr": 0.1, "weight_decouple": True, **TWO}),
    ("adabound", adabound, {"lr": 0.1, "final_lr": 0.3, "gamma": 0.1, "weight_decouple": False, **TWO}),
    ("yogi", yogi, {"lr": 0.1, "weight_decouple": False, **TWO}),
    ("padam", padam, {"lr": 0.1, "partial": 0.125, **TWO}),
    ("padam", padam, {"lr": 0.1, "partial": 0.4, **TWO}),
    ("adai", adai, {"lr": 0.1, "betas": (0.1, 0.99), "eps": 1e-3, "weight_decay": 0.1}),
    ("muon", muon, MUON),
    ("muon", muon, {**MUON, "nesterov": False, "adjust_lr_fn": "original"}),
    ("soap", soap, {"lr": 0.1, **TWO, "precondition_frequency": 3}),
    ("schedule-free", schedule_free, {"lr": 0.1, **TWO}),
    (
        "ademamix",
        ademamix,
        {"lr": 0.1, **TWO, "betas": (0.9, 0.99, 0.999), "alpha": 5.0, "t_alpha_beta3": 15, "weight_decouple": True},
    ),
    ("lion", lion, {"lr": 0.1, "betas": (0.9, 0.99), "weight_decay": 0.1}),
    ("nadamw", nadam, {"lr": 0.1, "decoupled_weight_decay": True, "momentum_decay": 1e3, **TWO}),
    ("mars", mars, {"lr": 0.1, **TWO, **ONE_D, "gamma": 0.1}),
    ("prodigy", prodigy, {"lr": 0.5, **TWO, **FOUND}),
    ("prodigy", prodigy, {"lr": 1.0, **TWO, **FOUND, "safeguard_warmup": False, "bias_correction": False}),
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
    optimizer: Any = build(get_optimizer(name), params, settings)
    if name == "schedule-free":
        optimizer.train()
    for t in range(1, STEPS + 1):
        for p, g in zip(params, gradients([p.detach() for p in params], t), strict=True):
            p.grad = scale * g
        optimizer.step()
        thetas = update(thetas, [scale * g for g in gradients(thetas, t)], state, t, settings)
        assert distance(params, thetas) < TOLERANCE.get(name, 1e-12), t
    assert distance(thetas, start(scale)) > 1e-3
    if name == "schedule-free":
        optimizer.eval()
        assert distance(params, state["x"]) < 1e-12


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
