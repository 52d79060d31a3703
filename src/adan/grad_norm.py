"""The global norm of the gradients and the decision to skip a step, both before any gradient is used."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from adan import sharding
from adan.columns import compute_dtype, widest_dtype
from adan.scalars import Signals, replaced


def measure(grads: list[Tensor], clips: bool, signals: Signals) -> Signals:
    """Add the norm to clip by and the decision to skip, for engines that do not measure gradients themselves."""
    if signals.norm is None and clips:
        signals = replaced(signals, norm=global_norm(grads))
    if signals.check_finite:
        # The largest magnitude, not the 2-norm: that one overflows where every gradient is finite.
        signals = _skip_if(torch.isfinite(global_norm(grads, math.inf)).logical_not(), signals)
    return signals


def measure_together(
    params: list[Tensor], grads: dict[Tensor, Any], clips: bool, signals: Signals, norm_group: str | None, first: bool
) -> Signals:
    """`measure` for sharded parameters: a collective that all processes must call, with gradients or without.

    `params`: all there are. `grads`: local ones. `first`: the step is also skipped if all gradients are zero.
    """
    skips = signals.check_finite or first
    if not clips and not skips:
        return signals
    parts: dict[tuple[Any, int], list[Tensor]] = {(None, 1): []}
    for p in params:
        part = parts.setdefault(sharding.share(p), [])
        if grads.get(p) is not None:
            part.append(grads[p])

    # A tensor that is not sharded over a mesh is the same everywhere on it. So all can be summed over the largest mesh,
    # by one message: a sum over n shards on N processes is weighted by n / N on each.
    largest = sharding.largest(mesh for mesh, _ in parts)
    # A process without a parameter must still bring its zeros to where the others have theirs.
    device = params[0].device if params else torch.device("cuda" if torch.cuda.is_available() else "cpu")
    by_mesh: dict[Any, Tensor] = {}
    for (mesh, n), tensors in parts.items():
        over = largest if mesh is None or sharding.covers(largest, mesh) else mesh
        sums = _sums(tensors, clips, skips, device) * (n / over.size() if over is not None else 1.0)
        by_mesh[over] = by_mesh[over] + sums if over in by_mesh else sums
    total = by_mesh.pop(None, torch.zeros((), device=device))
    for mesh, sums in sorted(by_mesh.items(), key=lambda item: item[0].size()):
        total = sharding.sum_over(sums + total.to(device) / mesh.size(), mesh)
    squares, not_finite, not_zero = sharding.sum_over(total, None, norm_group).unbind()
    if clips:
        wide = any(compute_dtype(p.dtype) == torch.float64 for p in params)
        signals = replaced(signals, norm=squares.sqrt().to(torch.float64 if wide else torch.float32))
    if skips:
        signals = _skip_if(((not_finite > 0) & signals.check_finite) | ((not_zero == 0) & first), signals)
    return signals


def _sums(grads: list[Tensor], clips: bool, skips: bool, device: torch.device) -> Tensor:
    """Σ x², whether an x is not finite, whether an x is not zero; 0 for what is not asked for."""
    squares = not_finite = not_zero = torch.zeros((), device=device)
    if clips and grads:
        squares = global_norm(grads).to(widest_dtype(device)).square()
    if skips and grads:
        largest = global_norm(grads, math.inf)
        not_finite, not_zero = torch.isfinite(largest).logical_not(), largest != 0
    return torch.stack([x.to(device, widest_dtype(device)) for x in (squares, not_finite, not_zero)])


def _skip_if(bad: Tensor, signals: Signals) -> Signals:
    skip = bad.to(torch.float32)
    if signals.skip is not None:
        skip = torch.maximum(skip, signals.skip.to(skip))
    return replaced(signals, skip=skip, check_finite=False)


def global_norm(grads: Iterable[Tensor], order: float = 2.0) -> Tensor:
    """‖all gradients‖, in fp32 or, where there are fp64 gradients, fp64; a 0-dim tensor that nothing waits for."""
    by_type: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for grad in grads:
        if grad.numel():  # there is no maximum of nothing
            by_type[grad.device, grad.dtype].append(grad)
    if not by_type:
        return torch.zeros((), device="cpu")
    norms: list[Tensor] = []
    for (_, dtype), tensors in by_type.items():
        norms += torch._foreach_norm(tensors, order, dtype=compute_dtype(dtype))
    first = norms[0]
    non_blocking = first.device.type != "cpu"  # a copy to the host must be waited for
    wide = torch.float64 if any(norm.dtype == torch.float64 for norm in norms) else first.dtype
    together = torch.stack([x.to(first.device, wide, non_blocking=non_blocking) for x in norms])
    total: Tensor = torch.linalg.vector_norm(together, order)
    return total
