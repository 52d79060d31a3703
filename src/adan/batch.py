"""The tensors that one engine updates together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from adan.scalars import Options, Signals, readable


class Batch(NamedTuple):
    """Parameters of one group, their gradients and states, as parallel lists; of complex ones the views as reals.

    A list of what this group's parameters do not have is empty: `exp_avg_diffs` in the coupled form, `prev_scales`
    unless gradients are consumed, `exponents` unless states are in 8 bits, `compensations` without Kahan summation.
    Where some of them have it, it is None for the others, and `dispatch` parts them.

    With `prev_scales` a previous gradient is the buffer that backward filled, and its scale is the factor it was used
    with. `streams` start the random numbers of stochastic rounding.

    `cache` is for whoever works on a batch, and lasts as long as its parameters and states are the same tensors.
    """

    options: Options
    params: list[Tensor]
    grads: list[Tensor]
    exp_avgs: list[Tensor]
    exp_avg_diffs: list[Tensor]
    exp_avg_sqs: list[Tensor]
    prev_grads: list[Tensor]
    steps: list[Tensor]
    prev_scales: list[Tensor]
    exponents: list[Tensor]
    compensations: list[Tensor]
    streams: list[int]
    cache: dict[str, Any]

    @classmethod
    def empty(cls, options: Options) -> Batch:
        return cls(options, [], [], [], [], [], [], [], [], [], [], [], {})

    def tensors(self) -> tuple[list[Tensor], ...]:
        # Not a slice of itself: torch 2.6 cannot trace that.
        states = (self.exp_avgs, self.exp_avg_diffs, self.exp_avg_sqs, self.prev_grads, self.steps, self.prev_scales)
        return (self.params, self.grads, *states, self.exponents, self.compensations)

    def of(self, *tensors: list[Tensor], streams: list[int]) -> Batch:
        """Other tensors under the same options."""
        return Batch._make((self.options, *tensors, streams, {}))

    def select(self, indices: Iterable[int]) -> Batch:
        """Some of the parameters, all of which must have the same kinds of state."""
        chosen = list(indices)
        lists = ([tensors[i] for i in chosen] if tensors else [] for tensors in self.tensors())
        present = ([] if tensors and tensors[0] is None else tensors for tensors in lists)
        return self.of(*present, streams=[self.streams[i] for i in chosen])

    @property
    def draws_weights(self) -> bool:
        """Whether the parameters are rounded stochastically; `dispatch` parts those that are from the others."""
        return self.options.stochastic_rounding and self.params[0].dtype == torch.bfloat16

    def without_grads(self) -> Batch:
        """To be kept for the next step: a gradient must not be, nor a previous one that was consumed."""
        return self._replace(grads=[], prev_grads=[] if self.prev_scales else self.prev_grads)

    def keep_previous(self) -> None:
        """Of a skipped step: a consumed gradient is about to be the previous one, so let it be the one before it."""
        for grad, prev, _ in zip(self.grads, self.prev_grads, self.prev_scales, strict=False):
            grad.copy_(prev)

    def forget(self) -> None:
        """Clear the states whose counts are 0: setting a counter is a restart, wherever it lies."""
        kinds = (self.exp_avgs, self.exp_avg_diffs, self.exp_avg_sqs, self.exponents)
        kept = [tensors for tensors in (*kinds, [] if self.prev_scales else self.prev_grads) if tensors]
        for step, *states in zip(self.steps, *kept, strict=True):
            if readable(step) and step.item():
                continue
            for x in states:
                x.masked_fill_(step == 0, 0)

    def as_real(self) -> Batch:
        if not any(map(Tensor.is_complex, self.params)):
            return self
        views = (
            [torch.view_as_real(x) if x is not None and x.is_complex() else x for x in tensors]
            for tensors in self.tensors()
        )
        return self.of(*views, streams=self.streams)


def is_dense(x: Tensor) -> bool:
    """Whether the elements fill their memory without gaps or overlaps, in whatever order of the dimensions."""
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
    """A tensor in a parameter's layout and in a type: itself where it is so already."""
    alike = (x.is_contiguous() and param.is_contiguous()) or x.stride() == param.stride()
    if alike and x.dtype == dtype and not x.is_neg():
        return x
    return torch.empty_like(param, dtype=dtype, requires_grad=False).copy_(x)


#: The signature of every engine: one step of every batch, on one device. Returns ‖y_{k+1} − y_k‖²_√n in fp64, the way
#: of the step (`adan.scalars.Way`), where options ask for it.
Engine: TypeAlias = Callable[[list[Batch], Signals], Tensor | None]


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """fp64 for fp64, else fp32: states are kept, and every step is computed, in this type."""
    return torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32
