"""What the last step found out and the next one can use again: which parameters have gradients, and their states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain, compress
from operator import is_, itemgetter
from typing import Any, NamedTuple

from torch import Tensor

from adan import sharding
from adan.batch import Batch

#: Options on which it depends how a batch is made.
_FLAGS = (
    "foreach",
    "fused",
    "differentiable",
    "capturable",
    "consume_grad",
    "state_format",
    "stochastic_rounding",
    "kahan_sum",
    "rounding_seed",
)


def _without_prev_grad(entry: dict[str, Tensor]) -> list[Tensor]:
    return [value for name, value in entry.items() if name != "prev_grad"]


class Kept(NamedTuple):
    """A batch that serves again as long as the same parameters have gradients, and the same tensors are their states.

    Looking up 161 states anew takes longer than the two launches of a step on a GPU.
    """

    batch: Batch
    params: list[Tensor]  #: of which the batch holds the local parts
    flags: list[object]
    has_grad: list[bool]
    addresses: list[int]  #: `p.data = …` gives a parameter other memory, maybe of another type or layout
    turnable: list[bool]  #: `p.data = p.data.t()` keeps the memory, and reads it in another order
    strides: list[tuple[int, ...]]  #: of those
    states: list[dict[str, Tensor]]  #: of all groups
    entries: list[dict[str, Tensor]]  #: of the batch
    lasting: Callable[[dict[str, Tensor]], Iterable[Tensor]]  #: what stays the same tensor; consumed gradients do not
    values: list[Tensor]
    spread: bool

    @classmethod
    def of(
        cls, batch: Batch, params: list[Tensor], group: Mapping[str, Any], state: Mapping[Tensor, dict[str, Tensor]]
    ) -> Kept:
        entries = [state[p] for p in params]
        lasting: Callable[[dict[str, Tensor]], Iterable[Tensor]] = dict.values
        if batch.prev_scales:
            names = {tuple(entry) for entry in entries}
            alike = itemgetter(*(name for name in next(iter(names)) if name != "prev_grad"))
            lasting = alike if len(names) == 1 else _without_prev_grad
        return cls(
            batch.without_grads(),
            params,
            cls._flags(group),
            [p.grad is not None for p in group["params"]],
            list(map(Tensor.data_ptr, batch.params)),
            [p.dim() > 1 for p in batch.params],
            [p.stride() for p in batch.params if p.dim() > 1],
            list(state.values()),
            entries,
            lasting,
            list(chain.from_iterable(map(lasting, entries))),
            sharding.any_spread(params),
        )

    @staticmethod
    def _flags(group: Mapping[str, Any]) -> list[object]:
        return [*(group[name] for name in _FLAGS), group["betas"][0] == group["betas"][1]]

    def _local_params(self) -> Iterable[Tensor]:
        return map(sharding.local, self.params) if self.spread else self.params

    def holds(
        self, group: Mapping[str, Any], grads: list[Tensor | None], state: Mapping[Tensor, dict[str, Tensor]]
    ) -> bool:
        return (
            self._flags(group) == self.flags
            and [grad is not None for grad in grads] == self.has_grad
            and len(state) == len(self.states)
            and all(map(is_, state.values(), self.states))
            and all(map(is_, compress(group["params"], self.has_grad), self.params))
            and list(map(Tensor.data_ptr, self._local_params())) == self.addresses
            and list(map(Tensor.stride, compress(self._local_params(), self.turnable))) == self.strides
            and all(map(is_, chain.from_iterable(map(self.lasting, self.entries)), self.values))
        )
