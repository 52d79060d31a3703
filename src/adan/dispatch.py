"""Which engine serves which tensors: an explicit flag wins, None means choose."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from adan import scalars, sharding
from adan.batch import Batch, Engine
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


def _places(group: Mapping[str, Any], batch: Batch) -> dict[Place, list[int]]:
    """Which of a batch's parameters go where. Asking anew for each of 161 would cost more than the step's launches."""
    if "places" not in batch.cache or torch.compiler.is_compiling():
        places: dict[Place, list[int]] = defaultdict(list)
        for i, (p, step) in enumerate(zip(batch.params, batch.steps, strict=True)):
            places[choose(group, p), p.device, step.device].append(i)
        batch.cache["places"] = places
    return cast("dict[Place, list[int]]", batch.cache["places"])


def update(groups: list[tuple[dict[str, Any], Batch]], signals: Signals) -> None:
    """Hand every batch to its engines, all batches of one place in one call."""
    work: dict[Place, list[Batch]] = defaultdict(list)
    for group, batch in groups:
        places = _places(group, batch)
        for place, indices in places.items():
            work[place].append(batch.select(indices) if len(places) > 1 else batch)

    if len(work) > 1 or next(iter(work))[0] not in MEASURING:
        signals = measure([batch for _, batch in groups], signals)
    for (engine, device, _), batches in work.items():
        local = signals.to(device)
        if local.skip is not None and scalars.readable(batches[0].steps[0]):
            if local.skip.item():
                for batch in batches:
                    batch.keep_previous()
                continue
            local = local._replace(skip=None)
        ENGINES[engine](batches, local)
