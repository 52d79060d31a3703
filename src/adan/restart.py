"""Automatic restarts: on the condition of the paper's Eqn 8, or at a fixed interval.

With y_{k+1} = θ_{k+1} + η_k∘(u_k − (1 − b1)·g_k), where η_k = η / (√n̂_k + ε) and u_k = m̂_k + b2·v̂_k, a cycle ends after
the step k, counted from 0, at which::

    (k + 1)·Σ_{t≤k} ‖y_{t+1} − y_t‖²_√n̂  >  R²

Engines measure the summand in their own pass (`adan.scalars.Displacement`), without a buffer: the states hold all that
is needed of the step before. To restart is to set the counts of gradients to 0; the host reads nothing back.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adan import sharding
from adan.columns import widest_dtype
from adan.hyperparameters import require_count, require_number
from adan.scalars import Number


@dataclass(frozen=True)
class Restart:
    """Rule for restarts: once a cycle has moved far enough, or at a fixed interval.

    Args:
        radius: R of the paper's Eqn 8: restart when (k + 1)·Σ ‖y_{t+1} − y_t‖²_√n > R², k the cycle's steps from 0.
        every: steps between restarts, instead of `radius`.
        after: with `every`, steps before the first restart; the default is `every`.
        min_interval: with `radius`, the minimum number of steps per cycle.

    R has no natural scale: it grows with the learning rate, the gradients and the number of parameters. Measure it with
    :meth:`probe`: the radius that is reached after N steps makes cycles of about N steps.

    Example:
        >>> import torch, adan
        >>> def train(restart, steps):
        ...     torch.manual_seed(0)
        ...     model = torch.nn.Linear(4, 1)
        ...     opt = adan.Adan(model.parameters(), lr=1e-2, restart=restart)
        ...     for _ in range(steps):
        ...         opt.zero_grad()
        ...         model(torch.randn(8, 4)).square().mean().backward()
        ...         opt.step()
        ...     return opt
        >>> radius = train(adan.Restart.probe(), 20).restart_progress.radius
        >>> train(adan.Restart(radius=0.99 * radius, min_interval=5), 20).restarts
        1
    """

    radius: float | None = None
    every: int | None = None
    after: int | None = None
    min_interval: int | None = None

    def __post_init__(self) -> None:
        if (self.radius is None) == (self.every is None):
            got = f"radius={self.radius!r} and every={self.every!r}"
            raise ValueError(f"Restart: give either radius or every, got {got}; Restart.probe() measures a radius")
        if self.radius is not None and self.radius != math.inf:
            remedy = "Restart.probe() measures what fits"
            require_number("Restart: radius", self.radius, positive=True, remedy=remedy)
            object.__setattr__(self, "radius", float(self.radius))
        for name, needed in (("every", "every"), ("after", "every"), ("min_interval", "radius")):
            value = getattr(self, name)
            if value is None:
                continue
            if getattr(self, needed) is None:
                raise ValueError(f"Restart: {name}={value!r} needs {needed}, which is not given")
            steps = require_count(f"Restart: {name}", value, least=1, remedy="give a number of steps")
            object.__setattr__(self, name, steps)

    @classmethod
    def probe(cls) -> Restart:
        """Measure without restarting: ``opt.restart_progress`` shows how the condition grows."""
        return cls(radius=math.inf)

    def is_due(self, total: Tensor, steps: Tensor, restarts: Tensor) -> Tensor:
        """Whether a restart is due after this step, the last of a cycle's `steps` so far."""
        if self.every is not None:
            wanted = torch.where(restarts > 0, self.every, self.every if self.after is None else self.after)
            return steps >= wanted
        assert self.radius is not None
        due = steps * total > self.radius * self.radius  # inf where `**` would raise OverflowError
        return due if self.min_interval is None else due & (steps >= self.min_interval)


class Progress(NamedTuple):
    """Progress of a cycle."""

    k: int  #: its last step, counted from 0; −1 before the first
    sum: float  #: Σ ‖y_{t+1} − y_t‖²_√n

    @property
    def radius(self) -> float:
        """√((k + 1)·Σ), the R at which the cycle would end now."""
        return math.sqrt((self.k + 1) * self.sum)


class Cycle:
    """The state of a rule: one small tensor beside the parameters."""

    def __init__(self, rule: Restart) -> None:
        self.rule = rule
        # Σ, the steps of this cycle, the restarts; then the learning rate of each group's last step.
        self.values = torch.zeros(3, dtype=torch.float64, device="cpu")

    def fit(self, groups: list[dict[str, Any]]) -> None:
        """Follow the parameters to their device, and have room for every group."""
        device = next((sharding.local(p).device for group in groups for p in group["params"]), self.values.device)
        if self.values.device != device:
            self.values = self.values.to(device, widest_dtype(device), non_blocking=device.type != "cpu")
        missing = 3 + len(groups) - len(self.values)
        if missing > 0:  # new groups come last
            self.values = torch.nn.functional.pad(self.values, (0, missing))
        elif missing < 0:  # a group was deleted, and nothing says which
            self._set([*self.values[:3], *(group["lr"] for group in groups)])

    @property
    def count(self) -> Tensor:
        """The restarts so far."""
        return self.values.select(0, 2)

    def last_lr(self, group: int) -> Tensor:
        return self.values.select(0, 3 + group)

    def start(self) -> None:
        self.values.narrow(0, 0, 2).zero_()

    def all_reduce(
        self, square: Tensor | None, skip: Tensor | None, stepped: bool, mesh: Any, norm_group: str | None
    ) -> tuple[Tensor, Tensor]:
        """The squared displacement over all processes, and whether none of them has made a step, in one all-reduce."""
        own = self.values.new_zeros(()) if square is None else square.to(self.values)
        sums = torch.stack([own, self.values.new_full((), float(stepped))])
        total, steppers = sharding.sum_over(sums, mesh, norm_group).to(self.values).unbind()
        idle = steppers == 0
        return total, idle if skip is None else idle | (skip.to(idle.device) > 0).reshape(())

    def advance(
        self, square: Tensor | None, skip: Tensor | None, rates: list[tuple[int, Number]], counters: Iterable[Tensor]
    ) -> None:
        """Count a step, and restart if it is due. `square`: the squared displacement, if measured; `rates`: of groups
        that made the step; `counters`: the counts of gradients of all parameters.
        """
        values = self.values
        total, steps, restarts, *last = values.unbind()
        if skip is None:
            steps += 1
        else:
            skip = skip.to(values.device, torch.bool).reshape(())
            steps += skip.logical_not()
        if square is not None:
            before = [last[group] for group, _ in rates]
            now = [lr.to(values) if isinstance(lr, Tensor) else values.new_full((), lr) for _, lr in rates]
            square = square.to(values)
            if skip is not None:
                square = square.masked_fill(skip, 0.0)
                now = [torch.where(skip, a, b) for a, b in zip(before, now, strict=True)]
            total += square
            if rates:  # a process without gradients has none
                torch._foreach_copy_(before, now)
        due = self.rule.is_due(total, steps, restarts)
        values.narrow(0, 0, 2).masked_fill_(due, 0.0)
        restarts += due
        by_device: dict[torch.device, list[Tensor]] = defaultdict(list)
        for counter in counters:
            by_device[counter.device].append(counter)
        for device, counts in by_device.items():
            torch._foreach_mul_(counts, [due.logical_not().to(device, counts[0].dtype)] * len(counts))

    @property
    def progress(self) -> Progress:
        total, steps, *_ = self.values.tolist()
        return Progress(int(steps) - 1, total)

    def saved(self, group: int) -> Tensor:
        """Tensor for a checkpoint, beside the options of each group."""
        return torch.cat([self.values.narrow(0, 0, 3), self.last_lr(group).reshape(1)])

    def load(self, saved: list[Tensor | None], rates: list[Number]) -> None:
        """Continue from a checkpoint; from one without `restart`, at the start of a cycle."""
        first = next((x for x in saved if x is not None), None)
        last = [lr if x is None else x[3] for x, lr in zip(saved, rates, strict=True)]
        self._set([*([0.0] * 3 if first is None else first[:3]), *last])

    def _set(self, numbers: list[Number]) -> None:
        old = self.values
        self.values = torch.stack([torch.as_tensor(x, dtype=old.dtype, device=old.device).reshape(()) for x in numbers])
