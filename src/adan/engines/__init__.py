"""The update rule, one engine per file. Read `loop` first: the others do the same, faster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from adan.columns import Columns, is_dense
from adan.scalars import Signals


@dataclass
class Memo:
    """What an engine caches about the tensors it was called with, for as long as the plan holds."""

    captured: list[Any]  #: what a captured CUDA graph reads at every replay; lives as long as the optimizer
    capturable: bool = False  #: whether a step may be captured
    tables: Any = None  #: anything that the next step with the same tensors can use again


class Engine(Protocol):
    """One implementation of the update rule.

    `update` makes one step of every row of `columns`, all of which are on one device:

    - the coefficients are those of `adan.scalars.step_scalars` for the row's options and count;
    - parameters, states and `step` are updated in place, gradients are only read;
    - a row whose gradient is None stays as it is; only a fused engine is called with such rows;
    - where `signals.skip` is 1 nothing changes;
    - if `last_lr` of the options, of all or of none, is not None, it returns Σ ‖y_{k+1} − y_k‖²_√n
      (`adan.scalars.Displacement`) as a 0-dim fp64 tensor, else None;
    - nothing waits for the device;
    - between two calls with the same `memo`, rows are the same tensors at the same addresses; only gradients are
      others, of the same types, sizes and strides. Once a fused engine has put tables into it, columns have no states.

    The flags say what `adan.plan` need not do for it.
    """

    name: str
    fused: bool  #: it measures gradients in a pass of its own, knows quantized states, and has tables of its rows
    forgets: bool  #: it reads states as zeros where a count is 0 and `signals.forget` is set
    counts_on_device: bool  #: `step` must be beside the parameter, so that the host never reads it

    def update(self, columns: Columns, memo: Memo, signals: Signals) -> Tensor | None:
        """Run one step; see above."""


class DeviceEngine(Engine, Protocol):
    """An engine for tensors of one device. To add one, write it in a file here and add it to `adan.plan.ENGINES`."""

    device_type: str

    def unsupported_reason(self, param: Tensor) -> str | None:
        """Why this engine cannot serve a parameter; None if it can."""


class FusedEngine:
    """Base of engines with kernels of their own."""

    fused = True
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.complex128)

    def unsupported_reason(self, param: Tensor) -> str | None:
        if param.dtype not in self.dtypes:
            return f"supported dtypes are {', '.join(str(dtype).removeprefix('torch.') for dtype in self.dtypes)}"
        if param.layout is not torch.strided or not is_dense(param):
            return "it is not dense, its strides leave gaps or overlap; make it contiguous"
        return self.missing()

    def missing(self) -> str | None:
        """What this installation lacks for the kernels; None if nothing."""
        raise NotImplementedError


class PlainEngine:
    """Base of engines that use PyTorch's own operations: they serve every tensor, and `adan.plan` does the rest."""

    fused = forgets = counts_on_device = False
