"""Which engine serves which tensors: an explicit flag wins, None means choose."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from adan import lowbit, scalars, sharding
from adan.batch import Batch, Engine, compute_dtype
from adan.engines import cpu, cuda, foreach, loop
from adan.grad_norm import measure
from adan.scalars import Signals

ENGINES: dict[str, Engine] = {
    "loop": loop.update,
    "foreach": foreach.update,
    "cpu": cpu.update,
    "cuda": cuda.update,
}

#: Engines that find the norm to clip by, and what is not finite, in a pass of their own.
MEASURING = ("cpu", "cuda")
#: Engines that read and write coded states themselves.
CODING = ("cpu", "cuda")
#: Engines that take states for zeros where a count is 0, whatever they hold.
FORGETTING = ("cuda",)


def choose(group: Mapping[str, Any], param: Tensor) -> str:
    """The name of the engine for a parameter of a group with these options."""
    if group["differentiable"] or (group["foreach"] is False and not group["fused"]):
        return "loop"
    # What torch.compile traces it fuses itself.
    if group["foreach"] or group["fused"] is False or torch.compiler.is_compiling():
        return "foreach"
    name, reason = _fused(param)
    if reason is None:
        return name
    if group["fused"]:
        raise RuntimeError(
            f"fused=True cannot serve a {param.dtype} parameter of shape {tuple(param.shape)} on {param.device}: "
            f"{reason}. Leave fused at None to let another engine serve it"
        )
    return "foreach"


def engines_of(groups: Iterable[Mapping[str, Any]]) -> str:
    """Which engine serves how many parameters, in words."""
    counts: Counter[str] = Counter()
    for group in groups:
        for param in group["params"]:
            try:
                counts[choose(group, param)] += 1
            except RuntimeError:
                counts["none (see fused=True)"] += 1
    return ", ".join(f"{name} for {count} parameters" for name, count in counts.items()) or "none"


def is_plain(param: Tensor) -> bool:
    """Whether a tensor is what it looks like: of a DTensor or a FakeTensor the memory is elsewhere, or nowhere."""
    return type(param).__torch_dispatch__ is Tensor.__torch_dispatch__


def _fused(param: Tensor) -> tuple[str, str | None]:
    """The fused engine for a parameter's device, and why it cannot serve the parameter, if it cannot."""
    param = sharding.local(param)
    if not is_plain(param):
        return "", f"a {type(param).__name__} is not plain memory"
    if param.device.type == "cuda":
        return "cuda", cuda.refuses(param)
    if param.device.type == "cpu":
        return "cpu", cpu.refuses(param)
    return "", "there are fused engines for CUDA and for the CPU"


def counts_on_device(group: Mapping[str, Any], param: Tensor) -> bool:
    """Whether a step counter must lie beside its parameter: where a step is captured, or skipped by the device."""
    return bool(group["capturable"] or group["skip_nonfinite"]) or choose(group, param) == "cuda"


Place: TypeAlias = tuple[str, torch.device, torch.device]  #: engine, parameters' device, counters' device
Part: TypeAlias = tuple[Place, list[int]]


def _cut(group: Mapping[str, Any], batch: Batch) -> list[Part]:
    """Which parameters of a batch go where: pieces of one place and one kind of state."""
    optional = [tensors for tensors in (batch.prev_scales, batch.exponents, batch.compensations) if tensors]
    alike: dict[tuple[Place, Any], list[int]] = {}
    for i, (p, step, state) in enumerate(zip(batch.params, batch.steps, batch.exp_avgs, strict=True)):
        kind = None
        if optional or batch.options.stochastic_rounding or state.dtype != compute_dtype(p.dtype):
            kind = (p.dtype, state.dtype, *(tensors[i] is None for tensors in optional))
        alike.setdefault(((choose(group, p), p.device, step.device), kind), []).append(i)
    return [(place, at) for (place, _), at in alike.items()]


def _parts(group: Mapping[str, Any], batch: Batch) -> list[tuple[Place, Batch]]:
    """A batch as its pieces; to cut 161 parameters takes longer than to launch a step, so the cut is kept."""
    if torch.compiler.is_compiling():
        return [(place, batch.select(at)) for place, at in _cut(group, batch)]
    if "parts" not in batch.cache:
        cut = _cut(group, batch)
        whole = len(cut) == 1 and not (batch.exponents or batch.compensations)
        batch.cache["parts"] = [(place, at, None if whole else batch.select(at).without_grads()) for place, at in cut]
    return [(place, batch if part is None else _renewed(part, batch, at)) for place, at, part in batch.cache["parts"]]


def _renewed(part: Batch, batch: Batch, at: list[int]) -> Batch:
    """A piece with what is another at every step."""
    grads, prev_grads = [batch.grads[i] for i in at], [batch.prev_grads[i] for i in at]
    return part._replace(options=batch.options, grads=grads, prev_grads=prev_grads)


class Done(NamedTuple):
    """What a step says of itself, on the device."""

    way: Tensor | None  #: ‖y_{k+1} − y_k‖²_√n of `adan.restart`, where it was measured
    skip: Tensor | None  #: as in Signals


def update(groups: list[tuple[dict[str, Any], Batch]], signals: Signals) -> Done:
    """Hand every batch to its engines, all batches of one place in one call."""
    work: dict[Place, list[Batch]] = defaultdict(list)
    for group, batch in groups:
        for place, part in _parts(group, batch):
            work[place].append(part)

    # Who counts steps must know of a skipped one.
    told = signals.check_finite and signals.forget
    if len(work) > 1 or next(iter(work))[0] not in MEASURING or told:
        signals = measure([batch for _, batch in groups], signals)
    ways: list[Tensor] = []
    for (engine, device, _), batches in work.items():
        local = signals.to(device)
        if local.skip is not None and scalars.readable(batches[0].steps[0]):
            if local.skip.item():
                for batch in batches:
                    batch.keep_previous()
                continue
            local = local._replace(skip=None)
        if signals.forget and engine not in FORGETTING:
            for batch in batches:
                batch.forget()
        made: list[Tensor | None]
        if engine in CODING:
            made = [ENGINES[engine](batches, local)]
        else:
            made = [
                lowbit.update(ENGINES[engine], batch, local)
                if lowbit.is_coded(batch)
                else ENGINES[engine]([batch], local)
                for batch in batches
            ]
        ways += [way for way in made if way is not None]
    first = ways[0].device if ways else None
    return Done(torch.stack([way.to(first) for way in ways]).sum() if ways else None, signals.skip)
