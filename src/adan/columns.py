"""The tensors of a step as parallel lists, and what engines need to know about a tensor's memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adan.scalars import Options, host_readable

#: The moments and the previous gradient, under their names in a state dict.
STATES = ("exp_avg", "exp_avg_diff", "exp_avg_sq", "prev_grad")

#: The rest of a parameter's state: the count of its gradients, and what some options add.
EXTRAS = ("step", "prev_scale", "exponents", "compensation")


class Columns(NamedTuple):
    """Parameters with their gradients and states, a row for each parameter; complex ones as views of reals.

    Lists have the names of the state dict. A row has None for what it does not have: `exp_avg_diff` in the coupled
    form, `prev_scale` unless its gradient is consumed, `exponents` unless its states are quantized to 8 bits,
    `compensation` without Kahan summation. Where there is a `prev_scale`, the previous gradient is the buffer that
    backward filled, and the scale is the factor it was used with.
    """

    options: list[Options]  #: of the parameter groups
    group: list[int]  #: the index of the row's options
    rng_offset: list[int]  #: where the row's random bits for stochastic rounding start
    param: list[Tensor]
    grad: list[Tensor]
    exp_avg: list[Tensor]
    exp_avg_diff: list[Any]
    exp_avg_sq: list[Tensor]
    prev_grad: list[Tensor]
    step: list[Tensor]
    prev_scale: list[Any]
    exponents: list[Any]
    compensation: list[Any]

    @classmethod
    def empty(cls) -> Columns:
        return cls([], [], [], [], [], [], [], [], [], [], [], [], [])

    def select(self, rows: Iterable[int]) -> Columns:
        rows = list(rows)
        columns = (getattr(self, name) for name in self._fields if name != "options")
        return Columns(self.options, *([column[i] for i in rows] for column in columns))

    def rounds_stochastically(self, row: int) -> bool:
        """Whether a row's parameter is rounded stochastically."""
        return self.options[self.group[row]].stochastic_rounding and self.param[row].dtype == torch.bfloat16

    def clips(self) -> bool:
        return any(options.max_grad_norm > 0 for options in self.options)

    def measures(self) -> bool:
        """Whether the displacement of y is asked for; if so, it is in all groups."""
        return self.options[0].last_lr is not None

    def keep_previous(self) -> None:
        """After a skipped step: a consumed gradient is about to become the previous one, so write that into it."""
        for grad, prev_grad, prev_scale in zip(self.grad, self.prev_grad, self.prev_scale, strict=True):
            if prev_scale is not None:
                grad.copy_(prev_grad)

    def forget(self) -> None:
        """Clear the states of rows whose count is 0: resetting a counter is a restart, on whatever device it is."""
        for i, step in enumerate(self.step):
            if host_readable(step) and step.item():
                continue
            prev_grad = self.prev_grad[i] if self.prev_scale[i] is None else None
            for x in (self.exp_avg[i], self.exp_avg_diff[i], self.exp_avg_sq[i], self.exponents[i], prev_grad):
                if x is not None:
                    x.masked_fill_(step.to(x.device) == 0, 0)


class Strides(NamedTuple):
    """How tensors of known shapes lie in memory."""

    contiguous: list[bool]
    others: list[tuple[int, ...]]  #: the strides of those that are not contiguous

    @classmethod
    def of(cls, tensors: list[Tensor]) -> Strides:
        contiguous = list(map(Tensor.is_contiguous, tensors))
        others = (
            [] if all(contiguous) else [x.stride() for x, is_so in zip(tensors, contiguous, strict=True) if not is_so]
        )
        return cls(contiguous, others)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """fp64 for fp64, else fp32: states are stored, and every step is computed, in this type."""
    return torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32


def is_dense(x: Tensor) -> bool:
    """Whether the elements fill their memory without gaps or overlaps, in any order of the dimensions."""
    if x.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def laid_out_as(param: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` with the strides of `param` and the given type; `x` itself where it has them already."""
    same = (x.is_contiguous() and param.is_contiguous()) or x.stride() == param.stride()
    if same and x.dtype == dtype and not x.is_neg():
        return x
    return torch.empty_like(param, dtype=dtype, requires_grad=False).copy_(x)
