"""The tensors of a step as parallel lists, and what engines need to know about a tensor's memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from adan.scalars import Options, host_readable

#: The moments and the previous gradient, under their names in a state dict.
STATES = ("exp_avg", "exp_avg_diff", "exp_avg_sq", "prev_grad")

#: Numbers that a state holds: the count of its gradients, and the factor of v in the 4-bit format.
NUMBERS = ("step", "averaging")

#: All that a parameter's state may hold: also those numbers, and what some options add.
NAMES = (*NUMBERS, *STATES, "exponents", "compensation")


class Columns(NamedTuple):
    """Parameters with their gradients and states, by the names of the state dict; complex ones as views of reals.

    A row has None for what it does not have: `exp_avg_diff` in the coupled form, `exponents` unless its states are
    quantized, `averaging` unless v is in 4 bits, `compensation` without Kahan summation.
    """

    options: list[Options]  #: of the parameter groups
    group: list[int]  #: the index of the row's options
    rng_offset: list[int]  #: where the row's random bits for stochastic rounding start
    param: list[Tensor]
    grad: list[Any]
    exp_avg: list[Tensor]
    exp_avg_diff: list[Any]
    exp_avg_sq: list[Tensor]
    prev_grad: list[Tensor]
    step: list[Tensor]
    averaging: list[Any]
    exponents: list[Any]
    compensation: list[Any]

    @classmethod
    def empty(cls) -> Columns:
        return cls(*([] for _ in cls._fields))

    def select(self, rows: list[int]) -> Columns:
        columns: tuple[Any, ...] = self[1:]
        return Columns(self.options, *([column[i] for i in rows] if column else [] for column in columns))

    def rounds_stochastically(self, row: int) -> bool:
        asked = self.options[self.group[row]].stochastic_rounding and self.compensation[row] is None
        return asked and self.param[row].dtype == torch.bfloat16

    def clips(self) -> bool:
        return any(options.max_grad_norm > 0 for options in self.options)

    def like_grads(self) -> list[Tensor]:
        """Gradients, and parameters in place of missing ones: theirs will have the same layout."""
        return [p if grad is None else grad for p, grad in zip(self.param, self.grad, strict=True)]

    def forget(self) -> None:
        """Clear the states of rows whose count is 0: an automatic restart resets only the count."""
        for i, step in enumerate(self.step):
            if host_readable(step) and step.item():
                continue
            for column in (self.exp_avg, self.exp_avg_diff, self.exp_avg_sq, self.exponents, self.prev_grad):
                if (x := column[i]) is not None:
                    x.masked_fill_(step.to(x.device) == 0, 0)


#: Below it nothing is memory: such an address is an offset into a storage that was freed.
LEAST_ADDRESS = 4096


def addresses(name: str, tensors: list[Any]) -> list[int]:
    """Addresses of a column's tensors: 0 for None, and a dummy for a tensor without elements."""
    try:
        pointers = list(map(Tensor.data_ptr, tensors))
    except TypeError:  # one is missing
        pointers = [0 if x is None else x.data_ptr() for x in tensors]
    if min(pointers, default=LEAST_ADDRESS) >= LEAST_ADDRESS:
        return pointers
    for i, x in enumerate(tensors):
        if x is not None and pointers[i] < LEAST_ADDRESS:
            if x.numel():
                shape = tuple(x.shape)
                raise RuntimeError(f"a {name} of shape {shape} has no memory: its storage was freed; allocate it again")
            pointers[i] = LEAST_ADDRESS
    return pointers


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """fp64 for fp64, else fp32: states are stored, and every step is computed, in this type."""
    return torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32


def widest_dtype(device: torch.device | str) -> torch.dtype:
    """fp64 for counts, sums and squares, except on Apple's GPUs, which have none."""
    return torch.float32 if torch.device(device).type == "mps" else torch.float64


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


def is_laid_out_as(param: Tensor, x: Tensor) -> bool:
    """Whether `x`, which has the shape of `param`, has its elements in the same order in memory."""
    same = (x.is_contiguous() and param.is_contiguous()) or x.stride() == param.stride()
    return same and not x.is_neg() and not x.is_conj()


def laid_out_as(param: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` in the layout of `param` and the given type; `x` itself where it has them already."""
    if x.dtype == dtype and is_laid_out_as(param, x):
        return x
    return torch.empty_like(param, dtype=dtype, requires_grad=False).copy_(x)
