"""The plan of a step: which engine serves which parameters, worked out once and used until something changes.

`Adan.step` collects the gradients, finds the plan for the parameters that have one, and asks `Plan.holds` whether it is
still true. That method is the one rule for when a plan is stale; whatever an engine remembers lives in the plan's parts
and goes with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from adan import lowbit, scalars, sharding
from adan.columns import NAMES, Columns, same_layouts
from adan.engines import Engine, Memo
from adan.engines.cpu import Cpu
from adan.engines.cuda import Cuda
from adan.engines.foreach import Foreach
from adan.engines.loop import Loop
from adan.grad_norm import measure
from adan.options import OPTIONS, counted
from adan.scalars import Options, Signals, is_plain, replaced

LOOP, FOREACH = Loop(), Foreach()

#: The engines. Those with a `device_type` are tried in this order where no option names another.
ENGINES: list[Engine] = [Cuda(), Cpu(), FOREACH, LOOP]

#: Plans to keep, for models whose parameters do not all get a gradient at every step.
MOST_PLANS = 64

_SHAPING = [name for name, option in OPTIONS.items() if option.shapes_plan]


# ---- engines --------------------------------------------------------------------------------------------------------


def wants_loop(group: Mapping[str, Any]) -> bool:
    """Whether the options of a group ask for the loop."""
    return bool(group["differentiable"] or (group["foreach"] is False and not group["fused"]))


def choose(group: Mapping[str, Any], param: Tensor) -> Engine:
    """The engine for a parameter of a group with these options: an explicit flag wins, None means choose."""
    if wants_loop(group):
        return LOOP
    # What torch.compile traces it fuses itself.
    if group["foreach"] or group["fused"] is False or torch.compiler.is_compiling():
        return FOREACH
    engine, reason = fused_engine(param)
    if engine is not None:
        return engine
    if group["fused"]:
        raise RuntimeError(
            f"fused=True cannot serve a {param.dtype} parameter of shape {tuple(param.shape)} on {param.device}: "
            f"{reason}. Leave fused at None to let another engine serve it"
        )
    return FOREACH


def fused_engine(param: Tensor) -> tuple[Engine | None, str]:
    """The engine that serves a parameter on its device, or None and the reason."""
    param = sharding.local(param)
    if not is_plain(param):
        return None, f"a {type(param).__name__} is not plain memory"
    reasons = []
    for engine in ENGINES:
        if engine.device_type == param.device.type:
            reason = engine.unsupported_reason(param)
            if reason is None:
                return engine, ""
            reasons.append(reason)
    return None, reasons[0] if reasons else "there are fused engines for CUDA and for the CPU"


def describe_engines(groups: Iterable[Mapping[str, Any]]) -> str:
    """Which engine serves how many parameters, and why it is not a fused one where none was ruled out."""
    counts: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    for group in groups:
        for param in group["params"]:
            try:
                name = "uninitialized" if is_lazy(param) else choose(group, param).name
            except RuntimeError:
                name = "none (see fused=True)"
            if name == FOREACH.name and group["foreach"] is None and group["fused"] is None:
                reasons.setdefault(name, f" (not fused: {fused_engine(param)[1]})")
            counts[name] += 1
    return ", ".join(f"{name} for {counted(n)}{reasons.get(name, '')}" for name, n in counts.items()) or "none"


# ---- plans ----------------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """Rows on one device that one engine updates in one call."""

    engine: Engine
    device: torch.device
    rows: list[int]
    columns: Columns  #: without gradients, which each step fills in
    memo: Memo


class Plan:
    """A partition of the parameters that have gradients by engine and device, with what each engine remembers."""

    def __init__(
        self,
        groups: list[dict[str, Any]],
        members: list[int],
        params: list[Tensor],
        columns: Columns,
        captured: list[Any],
        all_sharded: bool = False,
    ) -> None:
        """`members`: of each parameter the index of its group. `columns`: as `Adan._init_group` has filled them."""
        self.params = params
        self.sharded = sharding.any_dtensor(params)
        self.all_sharded = all_sharded  #: also where only a parameter without a gradient is sharded
        self.complex = any(map(Tensor.is_complex, params))
        self.fsdp1 = any(map(sharding.is_fsdp1, params))
        self.group_indices = sorted(set(members))  #: the groups whose options are columns.options, in this order
        index = {group: i for i, group in enumerate(self.group_indices)}
        self.group = [index[i] for i in members]
        # A plan outlives its step, and a gradient must not.
        columns = replaced(columns, group=self.group, grad=[])
        columns = replaced(columns, **{name: [self._local(x) for x in getattr(columns, name)] for name in _TENSORS})
        self.parts = self._partition(groups, members, columns, captured)

    def remember(
        self,
        groups: list[dict[str, Any]],
        members: list[int],
        grads: list[Tensor],
        state: Mapping[Tensor, dict[str, Tensor]],
    ) -> None:
        """Note down what `holds` compares."""
        params = self.params
        self.is_reusable = all(is_plain(sharding.local(p)) for p in params)
        self.entries = [state[p] for p in params]
        if not self.is_reusable:
            return
        self.group_sizes, self.shaping = _sizes(groups), [_shaping(groups[i]) for i in self.group_indices]
        #: of all parameters; of one that steps alone, inside backward, it is enough to look up its own
        self.states = list(state.values()) if len(self.params) > 1 else []
        by_names: dict[tuple[str, ...], list[dict[str, Tensor]]] = {}
        for entry in self.entries:
            by_names.setdefault(tuple(name for name in NAMES if name in entry), []).append(entry)
        self.states_by_name = list(by_names.items())
        self.addresses = self._addresses()
        self.have_same_layouts = same_layouts(self._local_params() + grads)

    def _addresses(self) -> list[int]:
        """Where parameters and states are. The plan keeps its tensors alive, so others have other addresses."""
        states = [entry[name] for names, entries in self.states_by_name for name in names for entry in entries]
        tensors = self.params + states
        return list(map(Tensor.data_ptr, map(sharding.local, tensors) if self.sharded else tensors))

    def _local_params(self) -> list[Tensor]:
        return list(map(sharding.local, self.params)) if self.sharded else self.params

    def holds(
        self,
        groups: list[dict[str, Any]],
        params: list[Tensor],
        grads: list[Tensor],
        state: Mapping[Tensor, dict[str, Tensor]],
    ) -> bool:
        """Whether all that the plan was built from is as it was: options, parameters, states, their memory, and the
        types and layouts of gradients. `grads` are local.
        """
        try:
            return (
                self.is_reusable
                and all(map(is_, params, self.params))
                and _sizes(groups) == self.group_sizes
                and [_shaping(groups[i]) for i in self.group_indices] == self.shaping
                and (len(state) == len(self.states) if self.states else state.get(params[0]) is self.entries[0])
                and all(map(is_, state.values(), self.states))
                and self._addresses() == self.addresses
                and self.have_same_layouts(self._local_params() + grads)
            )
        except KeyError:  # a state was cleared, or converted to a form with other names
            return False

    def _local(self, x: Any) -> Any:
        """As engines take it: the local shard of a DTensor, a complex tensor as reals."""
        if x is None:
            return None
        x = sharding.local(x) if self.sharded else x
        return torch.view_as_real(x.resolve_conj()) if self.complex and x.is_complex() else x

    def _partition(
        self, groups: list[dict[str, Any]], members: list[int], columns: Columns, captured: list[Any]
    ) -> list[Part]:
        places: dict[tuple[str, torch.device, torch.device], list[int]] = {}
        engines: dict[str, Engine] = {}
        for i, (member, p) in enumerate(zip(members, self.params, strict=True)):
            engine = choose(groups[member], p)
            engines[engine.name] = engine
            places.setdefault((engine.name, columns.param[i].device, columns.step[i].device), []).append(i)
        whole = len(places) == 1

        def memo(rows: list[int]) -> Memo:
            return Memo(captured, capturable=any(groups[members[i]]["capturable"] for i in rows))

        return [
            Part(engines[name], device, rows, columns if whole else _select_static(columns, rows), memo(rows))
            for (name, device, _), rows in places.items()
        ]

    # ---- one step

    def as_real(self, grads: list[Tensor]) -> list[Tensor]:
        """Local gradients as engines take them."""
        return [self._local(x) for x in grads] if self.complex else grads

    def update(
        self, options: list[Options], group: list[int], grads: list[Tensor], signals: Signals
    ) -> tuple[Tensor | None, Tensor | None]:
        """One step by all engines. Returns what `Engine.update` does, of all of them, and `Signals.skip`."""
        grads = self.as_real(grads)
        # Skipped steps must not be counted, so a restart condition needs to know of them.
        restart_needs_skip = signals.check_finite and signals.forget
        if len(self.parts) > 1 or not self.parts[0].engine.measures_norm or restart_needs_skip:
            signals = measure(grads, any(x.max_grad_norm > 0 for x in options), signals)
        squares: list[Tensor | None] = []
        for part in self.parts:
            columns = self._filled(part, options, group, grads)
            local = signals
            if signals.norm is not None or signals.grad_scale is not None or signals.skip is not None:
                local = signals.to(part.device)
            if local.skip is not None and scalars.host_readable(columns.step[0]):
                if local.skip.item():
                    continue
                local = replaced(local, skip=None)
            if signals.forget and not part.engine.forgets:
                columns.forget()
            if part.engine.reads_quantized:
                squares.append(part.engine.update(columns, part.memo, local))
            else:
                squares.append(lowbit.update(part.engine, columns, part.memo, local))
        measured = [x for x in squares if x is not None]
        if not measured:
            return None, signals.skip
        return torch.stack([x.to(measured[0].device) for x in measured]).sum(), signals.skip

    def _filled(self, part: Part, options: list[Options], group: list[int], grads: list[Tensor]) -> Columns:
        """The part's columns with this step's options and gradients."""
        if len(part.rows) != len(grads):
            grads, group = [grads[i] for i in part.rows], [group[i] for i in part.rows]
        if not part.engine.reads_quantized:  # PyTorch's operations do not take numbers on another device
            options = [x.to(part.device) for x in options]
        return replaced(part.columns, options=options, group=group, grad=grads)


class Plans(dict[Any, Plan]):
    """By which parameters have a gradient, or by a parameter that steps alone."""

    def __init__(self) -> None:
        self.known: set[Tensor] = set()  #: parameters that had a state when the last one was made

    def clear(self) -> None:
        super().clear()
        self.known.clear()

    def make_room(self, state: Mapping[Tensor, dict[str, Tensor]]) -> None:
        """Drop those whose states are gone, which would keep tensors alive, and the oldest where there are many."""
        if not self.known <= state.keys():  # looking at all plans takes as long as a step
            for key, plan in list(self.items()):
                if any(state.get(p) is not entry for p, entry in zip(plan.params, plan.entries, strict=True)):
                    del self[key]
        if len(self) >= MOST_PLANS:
            del self[next(iter(self))]


def _sizes(groups: list[dict[str, Any]]) -> list[int]:
    return [len(group["params"]) for group in groups]


def _shaping(group: Mapping[str, Any]) -> tuple[Any, ...]:
    """The options of a group by which a plan is made."""
    b1, b2, _ = group["betas"]
    return (b2 if b1 == b2 else None, *map(group.__getitem__, _SHAPING))


#: The columns that hold tensors of a state or a parameter.
_TENSORS = ("param", *NAMES)


def _select_static(columns: Columns, rows: list[int]) -> Columns:
    """Columns that have no gradients yet."""
    return replaced(replaced(columns, grad=columns.param).select(rows), grad=[])
