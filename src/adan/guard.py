"""The check that a plan still holds: that all it was made from is as it was.

A guard keeps no tensor alive: states that a program replaces, moves or drops are freed at once.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from itertools import chain
from operator import is_, itemgetter
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

State = Mapping[Tensor, dict[str, Tensor]]

_SHAPING = [name for name, option in OPTIONS.items() if option.shapes_plan]
_dereferenced = weakref.ref.__call__


class Guard:
    """A memory of what rows of a plan were made from: options, states, memory, types and layouts of gradients.

    Args:
        groups: parameter groups.
        rows: places of the plan's rows among all parameters.
        params: parameters of the rows.
        grads: their local gradients, None where there is none yet: then one like its parameter is expected.
        state: the optimizer's.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        rows: list[int],
        params: list[Tensor],
        grads: list[Any],
        state: State,
    ) -> None:
        self._rows, self._options = rows, _options(groups)
        self._is_sharded = sharding.any_dtensor(params)
        entries = [state[p] for p in params]
        kinds: dict[tuple[str, ...], list[int]] = {}
        for i, entry in enumerate(entries):
            kinds.setdefault(tuple(name for name in NAMES if name in entry), []).append(i)
        self._kinds = [(itemgetter(*names), of_kind) for names, of_kind in kinds.items()]
        tensors = self._tensors(entries)
        self._tensor_refs = list(map(weakref.ref, tensors))
        self._addresses = list(map(Tensor.data_ptr, map(sharding.local, params + tensors)))
        params = list(map(sharding.local, params))
        tensors = params + [p.detach() if grad is None else grad for p, grad in zip(params, grads, strict=True)]
        self._layouts = list(map(_layout, tensors))
        self._check = None
        if TensorGuards is not None:
            # Of `torch.compile`: 18 µs for 161 tensors, a fifth of what it takes in Python.
            sizes, strides = ([list(f(x)) for x in tensors] for f in (Tensor.size, Tensor.stride))
            self._check = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check  # type: ignore[arg-type]

    def holds(self, groups: list[dict[str, Any]], params: list[Tensor], grads: list[Any], state: State) -> bool:
        """Whether a step of all these parameters with these local gradients, None for none, can go by the plan.

        A state is known by its identity and its address: its own memory may have been swapped.
        """
        missing = any(grad is None for grad in grads)
        if len(params) != len(self._rows):
            present = sum(grad is not None for grad in grads)
            rows = [i for i in self._rows if i < len(params)]
            params, grads = [params[i] for i in rows], [grads[i] for i in rows]
            if len(rows) < len(self._rows) or present > sum(grad is not None for grad in grads):
                return False  # parameters were taken away, or one has its first gradient
        try:
            tensors = self._tensors(list(map(state.get, params)))  # type: ignore[arg-type]
        except (KeyError, TypeError):  # a state was cleared, or converted to a form with other names
            return False
        held = params + tensors
        if self._is_sharded:
            params, held = list(map(sharding.local, params)), list(map(sharding.local, held))
        if not (
            _options(groups) == self._options
            and all(map(is_, tensors, map(_dereferenced, self._tensor_refs)))
            and list(map(Tensor.data_ptr, held)) == self._addresses
        ):
            return False
        if missing or self._check is None:
            pairs = zip(params + grads, self._layouts, strict=True)
            return all(x is None or _layout(x) == layout for x, layout in pairs)
        return bool(self._check(*params, *grads))

    def _tensors(self, entries: list[dict[str, Tensor]]) -> list[Tensor]:
        if len(self._kinds) == 1:
            return list(chain.from_iterable(map(self._kinds[0][0], entries)))
        return [x for names, rows in self._kinds for i in rows for x in names(entries[i])]


def _options(groups: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Facts of each group that a plan depends on: its size, a coupled beta, and the options that shape a plan."""
    betas = [group["betas"] for group in groups]
    return [
        (len(group["params"]), b2 if b1 == b2 else None, *map(group.__getitem__, _SHAPING))
        for group, (b1, b2, _) in zip(groups, betas, strict=True)
    ]


def _layout(x: Tensor) -> tuple[Any, ...]:
    return x.layout, x.dtype, x.shape, x.layout is torch.strided and x.stride(), x.device, x.is_neg(), x.is_conj()
