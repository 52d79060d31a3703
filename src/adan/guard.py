"""The check that a plan still holds. It keeps no tensor alive: states that a program drops are freed at once."""

from __future__ import annotations

import ctypes
import functools
import weakref
from array import array
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from operator import is_
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adan import sharding
from adan.columns import NAMES
from adan.options import OPTIONS

try:
    from torch._C._dynamo.guards import TensorGuards
except ImportError:  # not part of PyTorch's interface
    TensorGuards = None  # type: ignore[assignment, misc]

_LIBRARY = Path(__file__).parent / "engines" / "_cpu.so"

State = Mapping[Tensor, dict[str, Tensor]]

_SHAPING = [name for name, option in OPTIONS.items() if option.shapes_plan]


class Guard:
    """A record of what a plan was made from: options, states, addresses, types and layouts of gradients.

    `rows` are positions among all parameters. A gradient that is missing is expected to be laid out as its parameter.
    """

    def __init__(
        self, groups: list[dict[str, Any]], rows: list[int], params: list[Tensor], grads: list[Any], state: State
    ) -> None:
        self._rows, self._options = rows, _options(groups)
        self._is_sharded = sharding.any_dtensor(params)
        entries = [state[p] for p in params]
        #: Whether wrappers keep something in the states that is no tensor.
        self._mixed = not all(isinstance(x, Tensor) for entry in entries for x in entry.values())
        held = params + self._tensors(entries)
        self._dead: list[Any] = []  #: weak references to states that were freed since
        # Not to parameters: `torch.utils.swap_tensors`, by which `model.to` converts DTensors, rejects such tensors.
        self._refs = [weakref.ref(x, self._dead.append) for x in held[len(params) :]]
        self._ids = array("q", map(id, held))
        self._addresses = array("q", map(Tensor.data_ptr, map(sharding.local, held)))
        self._are_same = None if self._is_sharded else _identity_check()
        params = list(map(sharding.local, params))
        tensors = params + [p.detach() if grad is None else grad for p, grad in zip(params, grads, strict=True)]
        self._layouts = list(map(_layout, tensors))
        self._check = None
        if TensorGuards is not None:
            # Of `torch.compile`: 18 µs for 161 tensors, a fifth of what it takes in Python.
            sizes, strides = ([list(f(x)) for x in tensors] for f in (Tensor.size, Tensor.stride))
            self._check = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check  # type: ignore[arg-type]

    def holds(self, groups: list[dict[str, Any]], params: list[Tensor], grads: list[Any], state: State) -> bool:
        """Whether the plan holds for a step of these parameters with these local gradients (None: no gradient)."""
        if len(params) != len(self._rows):
            present = sum(grad is not None for grad in grads)
            rows = [i for i in self._rows if i < len(params)]
            params, grads = [params[i] for i in rows], [grads[i] for i in rows]
            if len(rows) < len(self._rows) or present > sum(grad is not None for grad in grads):
                return False  # parameters were taken away, or one has its first gradient
        in_order = len(state) == len(params) and all(map(is_, state, params))  # hashing tensors takes longer
        try:
            tensors = self._tensors(state.values() if in_order else map(state.get, params))  # type: ignore[arg-type]
        except (AttributeError, TypeError):  # a state was dropped
            return False
        held = params + tensors
        if self._dead or len(held) != len(self._ids) or _options(groups) != self._options:
            return False
        if self._is_sharded:
            params = list(map(sharding.local, params))
        # The check of `torch.compile` also says no where a gradient is missing.
        if self._check is None or not self._check(*params, *grads):
            layouts = zip(params + grads, self._layouts, strict=True)
            if not all(x is None or _layout(x) == layout for x, layout in layouts):
                return False
        # By its id, a state's own as long as none was freed, and its address: its own memory may have been swapped.
        if self._are_same is not None:
            return bool(self._are_same(held, len(held), self._ids.buffer_info()[0], self._addresses.buffer_info()[0]))
        addresses = map(Tensor.data_ptr, map(sharding.local, held))
        return array("q", map(id, held)) == self._ids and array("q", addresses) == self._addresses

    def _tensors(self, entries: Iterable[dict[str, Any]]) -> list[Tensor]:
        if self._mixed:
            return [entry[name] for entry in entries for name in NAMES if name in entry]
        return list(chain.from_iterable(map(dict.values, entries)))


def _options(groups: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Facts of each group that a plan depends on: its size, a coupled beta, and the options that shape a plan."""
    betas = [group["betas"] for group in groups]
    return [
        (len(group["params"]), b2 if b1 == b2 else None, *map(group.__getitem__, _SHAPING))
        for group, (b1, b2, _) in zip(groups, betas, strict=True)
    ]


def _layout(x: Tensor) -> tuple[Any, ...]:
    stride = x.layout is torch.strided and x.stride()
    return type(x), x.layout, x.dtype, x.shape, stride, x.device, x.is_neg(), x.is_conj()


@functools.cache
def _identity_check() -> Callable[[list[Tensor], int, int, int], int] | None:
    """A check in C that a list has the tensors with these ids at these addresses; None where C cannot tell."""
    try:
        from torch._C._dynamo import guards

        data_ptr = guards._torchinductor_pyobject_tensor_data_ptr  # type: ignore[attr-defined]
        are_same = ctypes.PyDLL(str(_LIBRARY)).adan_are_same  # which keeps Python's lock
    except (ImportError, OSError, AttributeError):
        return None
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    are_same.argtypes = [pointer, pointer, ctypes.py_object, count, pointer, pointer]
    return functools.partial(are_same, data_ptr, ctypes.cast(ctypes.pythonapi.PyList_GetItem, pointer))
