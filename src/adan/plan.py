"""The plan of a step: which engine serves which parameters, worked out once and used until something changes.

One plan serves all parameters that have a state, whichever of them have a gradient. `adan.guard` is the one rule for
when it is stale; whatever an engine remembers lives in the plan's parts and goes with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from adan import sharding
from adan.columns import NAMES, Columns
from adan.engines import DeviceEngine, Engine, Memo, quantized
from adan.engines.cpu import Cpu
from adan.engines.cuda import Cuda
from adan.engines.foreach import Foreach
from adan.engines.loop import Loop
from adan.grad_norm import measure
from adan.guard import Guard, State
from adan.options import counted
from adan.scalars import Options, Signals, host_readable, is_plain, replaced

LOOP, FOREACH = Loop(), Foreach()

#: Tried in this order for tensors of their device, where no option rules them out.
ENGINES: list[DeviceEngine] = [Cuda(), Cpu()]


def wants_loop(group: Mapping[str, Any]) -> bool:
    return bool(group["differentiable"] or (group["foreach"] is False and group["fused"] is False))


def choose(group: Mapping[str, Any], param: Tensor) -> Engine:
    """The engine for a parameter of a group with these options, by the table in docs/migration.md."""
    if wants_loop(group):
        return LOOP
    # What torch.compile traces it fuses itself.
    if torch.compiler.is_compiling() or group["fused"] is False or (group["foreach"] and not group["fused"]):
        return FOREACH
    engine, reason = fused_engine(param)
    if engine is not None:
        return engine
    if group["fused"]:
        which = f"a {param.dtype} parameter of shape {tuple(param.shape)} on {param.device}"
        remedy = "Leave fused at None to let another engine serve it"
        raise RuntimeError(f"fused=True cannot serve {which}: {reason}. {remedy}")
    return FOREACH if group["foreach"] is None else LOOP


def fused_engine(param: Tensor) -> tuple[Engine | None, str]:
    """The engine that serves a parameter on its device, or None and the reason."""
    param = sharding.local(param)
    if not is_plain(param):
        return None, f"a {type(param).__name__} is not plain memory"
    reasons = []
    for engine in [x for x in ENGINES if x.device_type == param.device.type]:
        reason = engine.unsupported_reason(param)
        if reason is None:
            return engine, ""
        reasons.append(reason)
    return None, [*reasons, "there are fused engines for CUDA and for the CPU"][0]


def describe_engines(groups: Iterable[Mapping[str, Any]]) -> str:
    """Count the parameters that each engine serves, and say why it is not a fused one where none was ruled out."""
    counts: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    for group in groups:
        for param in group["params"]:
            try:
                name = "uninitialized" if is_lazy(param) else choose(group, param).name
            except RuntimeError:
                name = "none (see fused=True)"
            asked = group["fused"] is False or group["foreach"] or wants_loop(group)
            if name in (FOREACH.name, LOOP.name) and not asked:
                reasons.setdefault(name, f" (not fused: {fused_engine(param)[1]})")
            counts[name] += 1
    return ", ".join(f"{name} for {counted(n)}{reasons.get(name, '')}" for name, n in counts.items()) or "none"


class Part(NamedTuple):
    """Rows on one device that one engine updates in one call."""

    engine: Engine
    device: torch.device
    rows: list[int]
    memo: Memo


class Plan:
    """A partition of parameters by engine and device, with what each engine remembers. It holds no tensors."""

    def __init__(self, groups: list[dict[str, Any]], members: list[int], columns: Columns, captured: list[Any]) -> None:
        """`members`: of each row the index of its group. `columns`: the rows, without options."""
        params = columns.param
        self.group_indices = sorted(set(members))  #: the groups whose options are columns.options, in this order
        index = {group: i for i, group in enumerate(self.group_indices)}
        self.group = [index[i] for i in members]
        self.rng_offset = columns.rng_offset
        self.is_sharded, self.is_complex = sharding.any_dtensor(params), any(map(Tensor.is_complex, params))
        self.is_fsdp1 = any(map(sharding.is_fsdp1, params))
        self.rows = list(range(len(params)))  #: their places among all parameters
        self.guard: Guard | None = None  #: None: for this step alone
        places: dict[tuple[str, torch.device, torch.device], list[int]] = {}
        engines: dict[str, Engine] = {}
        for i, (member, p) in enumerate(zip(members, params, strict=True)):
            engine = choose(groups[member], p)
            engines[engine.name] = engine
            places.setdefault((engine.name, sharding.local(p).device, columns.step[i].device), []).append(i)
        self.parts: list[Part] = []
        for (name, device, _), rows in places.items():
            capturable = any(groups[members[i]]["capturable"] for i in rows)
            self.parts.append(Part(engines[name], device, rows, Memo(captured, capturable)))

    def of_rows(self, values: list[Any]) -> list[Any]:
        """The entries of the plan's rows, from a list for all parameters."""
        return values if len(values) == len(self.rows) else [values[i] for i in self.rows]

    def columns(
        self, options: list[Options], group: list[int], params: list[Tensor], grads: list[Any], state: State,
        forget: bool = False,
    ) -> Columns:  # fmt: skip
        """The rows of a step; without states where every engine has its own tables. `forget`: as in `Signals`."""
        known = (x.engine.fused and x.memo.tables is not None and (x.engine.forgets or not forget) for x in self.parts)
        entries = [] if all(known) else [state[p] for p in params]
        states: dict[str, list[Any]] = {name: [entry.get(name) for entry in entries] for name in NAMES}
        return Columns(options, group, self.rng_offset, params, grads, **states)

    def update(self, columns: Columns, signals: Signals) -> tuple[Tensor | None, Tensor | None]:
        """Run one step with all engines. Returns the sum of what `Engine.update` returns, and `Signals.skip`."""
        if self.is_sharded or self.is_complex:
            names = ("param", "grad", *NAMES)
            columns = replaced(columns, **{name: self.as_engines_take(getattr(columns, name)) for name in names})
        grads = columns.grad
        # Skipped steps must not be counted, so a restart condition needs to know of them.
        restart_needs_skip = signals.check_finite and signals.forget
        if len(self.parts) > 1 or restart_needs_skip or not all(part.engine.fused for part in self.parts):
            signals = measure([x for x in grads if x is not None], columns.clips(), signals)
        squares: list[Tensor | None] = []
        for part in self.parts:
            if all(grads[i] is None for i in part.rows):
                continue
            # A fused engine passes over rows without a gradient.
            rows = part.rows if part.engine.fused else [i for i in part.rows if grads[i] is not None]
            mine = columns if len(rows) == len(grads) else columns.select(rows)
            local = signals
            if signals.norm is not None or signals.grad_scale is not None or signals.skip is not None:
                local = signals.to(part.device)
            if signals.forget and not part.engine.forgets:
                mine.forget()
            if part.engine.fused:
                squares.append(part.engine.update(mine, part.memo, local))
                continue
            if local.skip is not None and host_readable(mine.step[0]):
                if local.skip.item():
                    continue
                local = replaced(local, skip=None)
            # PyTorch's operations do not take numbers on another device.
            mine = replaced(mine, options=[x.to(part.device) for x in mine.options])
            squares.append(quantized.update(part.engine, mine, part.memo, local))
        measured = [x for x in squares if x is not None]
        total = torch.stack([x.to(measured[0].device) for x in measured]).sum() if measured else None
        return total, signals.skip

    def as_engines_take(self, tensors: list[Any]) -> list[Any]:
        """Local shards of DTensors, complex tensors as reals."""
        tensors = [None if x is None else sharding.local(x) for x in tensors]
        if not self.is_complex:
            return tensors
        return [torch.view_as_real(x.resolve_conj()) if x is not None and x.is_complex() else x for x in tensors]
