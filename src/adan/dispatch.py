"""Which engine serves which tensors: an explicit flag wins, None means choose."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adan import scalars
from adan.batch import Batch, Engine
from adan.engines import foreach, loop
from adan.scalars import Signals

ENGINES: dict[str, Engine] = {"loop": loop.update, "foreach": foreach.update}


def choose(group: dict[str, Any], param: Tensor) -> str:
    """The name of the engine for a parameter of a group with these options."""
    if group["differentiable"] or group["foreach"] is False:
        return "loop"
    return "foreach"


def counts_on_device(group: dict[str, Any]) -> bool:
    """Whether the step counters must lie beside the parameters: where a step is captured, or skipped by the device."""
    return bool(group["capturable"] or group["skip_nonfinite"])


class Place(NamedTuple):
    engine: str
    device: torch.device
    counters: torch.device


def update(groups: list[tuple[dict[str, Any], Batch]], signals: Signals) -> None:
    """Hand every batch to its engines, all batches of one place in one call."""
    work: dict[Place, list[Batch]] = defaultdict(list)
    for group, batch in groups:
        places: dict[Place, list[int]] = defaultdict(list)
        for i, (p, step) in enumerate(zip(batch.params, batch.steps, strict=True)):
            places[Place(choose(group, p), p.device, step.device)].append(i)
        for place, indices in places.items():
            work[place].append(batch.select(indices) if len(places) > 1 else batch)

    for place, batches in work.items():
        local = signals.to(place.device)
        if local.skip is not None and scalars.readable(batches[0].steps[0]):
            if local.skip.item():
                continue
            local = local._replace(skip=None)
        ENGINES[place.engine](batches, local)
