"""The table that every engine is held against: described option rows, problems, and the tolerance of each type."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from reference import ReferenceAdan
from torch import Tensor

from adan import Adan, scalars

#: Largest distance from the fp64 oracle: parameters of order one, lr 0.02, 30 given gradients.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 3e-5}

BETAS = (0.9, 0.8, 0.95)


@dataclass(frozen=True)
class Row:
    """One choice of options, for the package and in the oracle's words. Values are large enough to tell them apart."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def oracle(self, theta: list[Any], lr: float) -> ReferenceAdan:
        o = self.options
        b1, b2, b3 = o.get("betas", BETAS)
        return ReferenceAdan(
            theta,
            lr,
            (1 - b1, 1 - b2, 1 - b3),
            eps=o.get("eps", 1e-8),
            lam=o.get("weight_decay", 0.0),
            debias=o.get("bias_correction", True),
            proximal=not o.get("no_prox", False),
            clip=o.get("max_grad_norm", 0.0),
            ascend=o.get("maximize", False),
            skip_nonfinite=o.get("skip_nonfinite", False),
        )

    def optimizer(self, params: Any, lr: float | Tensor, **engine: Any) -> Adan:
        return Adan(params, lr=lr, **{"betas": BETAS, **self.options, **engine})


#: The norm of the first gradients of `gradients` is 15.4, 15.2 and 15.5, then 16.3: some are clipped at 15.6.
ROWS = [
    Row("defaults", {"betas": (0.98, 0.92, 0.99)}),
    Row("fast betas"),
    Row("no momentum", {"betas": (0.0, 0.8, 0.95)}),
    Row("no difference", {"betas": (0.9, 0.0, 0.95)}),
    Row("large eps", {"eps": 0.3}),
    Row("proximal decay", {"weight_decay": 0.7}),
    Row("AdamW's decay", {"weight_decay": 0.7, "no_prox": True}),
    Row("Algorithm 1 to the letter", {"bias_correction": False}),
    Row("to the letter, decayed", {"bias_correction": False, "weight_decay": 0.7}),
    Row("clipped", {"max_grad_norm": 1.0}),
    Row("clipped now and then", {"max_grad_norm": 15.6}),
    Row("maximized", {"maximize": True}),
    Row("maximized, clipped, decayed", {"maximize": True, "max_grad_norm": 1.0, "weight_decay": 0.7}),
    Row("capturable", {"capturable": True, "max_grad_norm": 15.6}),
    Row("capturable, to the letter", {"capturable": True, "bias_correction": False, "weight_decay": 0.7}),
    Row("skipping", {"skip_nonfinite": True, "weight_decay": 0.7, "max_grad_norm": 15.6}),
    Row("skipping, captured", {"skip_nonfinite": True, "capturable": True, "weight_decay": 0.7, "eps": 0.0}),
    Row("coupled", {"betas": (0.9, 0.9, 0.95), "max_grad_norm": 15.6, "weight_decay": 0.7}),
    Row("coupled, to the letter", {"betas": (0.8, 0.8, 0.95), "bias_correction": False}),
    Row("equal betas, not coupled", {"betas": (0.9, 0.9, 0.95), "coupled": False, "weight_decay": 0.7}),
    Row("coupled, skipping, captured", {"betas": (0.9, 0.9, 0.95), "skip_nonfinite": True, "capturable": True}),
    Row("everything", {"max_grad_norm": 15.6, "weight_decay": 0.7, "no_prox": True, "maximize": True, "eps": 1e-3}),
]
ROW = {row.name: row for row in ROWS}

SHAPES = [(5, 7), (3,), (), (2, 3, 4, 5), (0,), (67,)]

Layout = Callable[[Tensor], Tensor]


def _transposed(x: Tensor) -> Tensor:
    return x.transpose(-2, -1).contiguous().transpose(-2, -1) if x.dim() > 1 else x


def channels_last(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last) if x.dim() == 4 else x


def _strided(x: Tensor) -> Tensor:
    wide = x.new_zeros((*x.shape[:-1], 2 * x.shape[-1])) if x.dim() else x.new_zeros(2)
    view = wide[..., ::2] if x.dim() else wide[1]
    return view.copy_(x)


def _dense(x: Tensor) -> Tensor:
    return x.contiguous()


#: How the parameter and how its gradient lie in memory.
LAYOUTS: dict[str, tuple[Layout, Layout]] = {
    "dense": (_dense, _dense),
    "channels_last": (channels_last, channels_last),
    "gradient transposed": (_dense, _transposed),
    "parameter transposed": (_transposed, _dense),
    "gradient strided": (_dense, _strided),
    "parameter strided": (_strided, _dense),
}


def gradients(steps: int, shapes: list[tuple[int, ...]], seed: int = 0) -> Iterator[list[Any]]:
    """Drifting gradients of order one: neighbors alike, so that differences matter, with a jump now and then."""
    rng = np.random.default_rng(seed)
    mean = [rng.standard_normal(shape) for shape in shapes]
    for k in range(steps):
        mean = [0.95 * x + 0.3 * rng.standard_normal(x.shape) * (10 if k % 50 == 20 else 1) for x in mean]
        yield [x + 0.1 * rng.standard_normal(x.shape) for x in mean]


def assert_parity(
    row: Row,
    dtype: torch.dtype = torch.float32,
    layout: str = "dense",
    device: str = "cpu",
    steps: int = 30,
    lr: float = 0.02,
    shapes: list[tuple[int, ...]] | None = None,
    tolerance: float | None = None,
    poison: bool = True,
    **engine: Any,
) -> Adan:
    """Run an engine and the oracle on the same gradients: the same parameters come out, and gradients are untouched."""
    shapes = SHAPES if shapes is None else shapes
    lay_param, lay_grad = LAYOUTS[layout]
    rng = np.random.default_rng(1)
    start = [torch.tensor(rng.standard_normal(shape)).to(dtype) for shape in shapes]
    params = [lay_param(x.to(device, copy=True)).requires_grad_() for x in start]
    oracle = row.oracle([x.double().numpy() for x in start], lr)
    optimizer = row.optimizer(params, lr, **engine)

    for k, arrays in enumerate(gradients(steps, shapes)):
        grads = [torch.tensor(x).to(dtype) for x in arrays]
        if poison and row.options.get("skip_nonfinite") and k % 7 == 0:
            grads[3].view(-1)[k % grads[3].numel()] = [float("nan"), float("inf")][k % 2]
        absent = [k % 5 == 2 and i == 1 for i in range(len(grads))]  # a parameter that now and then gets no gradient
        for p, grad, none in zip(params, grads, absent, strict=True):
            p.grad = None if none else lay_grad(grad.to(device))
        before = [None if p.grad is None else p.grad.clone() for p in params]
        optimizer.step()
        for p, copy in zip(params, before, strict=True):
            assert (p.grad is None) if copy is None else same_bits(p.grad, copy)
        oracle.step([None if none else x.double().numpy() for x, none in zip(grads, absent, strict=True)])

    tolerance = TOLERANCE[dtype] if tolerance is None else tolerance
    for p, theta in zip(params, oracle.theta, strict=True):
        distance = np.abs(p.detach().double().cpu().numpy() - theta).max(initial=0.0)
        assert distance <= tolerance, f"{row.name}: off by {distance:.2e}, allowed {tolerance:.0e}"
    return optimizer


def count_as_on_a_device(monkeypatch: Any) -> None:
    """Let the counters of a CPU be unreadable, as those on a GPU are: coefficients and skips become tensors."""
    monkeypatch.setattr(scalars.host_readable, "__code__", (lambda counter: False).__code__)


def same_bits(a: Tensor | None, b: Tensor) -> bool:
    """Equality that takes NaN for NaN and tells −0 from +0."""
    assert a is not None
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.contiguous().view(bits), b.contiguous().view(bits))
