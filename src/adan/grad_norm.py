"""What must be known of all gradients together before any of them is used."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from adan import sharding
from adan.batch import Batch, compute_dtype
from adan.scalars import Signals


def measure(batches: list[Batch], signals: Signals) -> Signals:
    """Add the norm to clip by and the decision to skip, for engines that do not measure gradients themselves."""
    grads = [grad for batch in batches for grad in batch.grads]
    if signals.norm is None and any(batch.options.max_grad_norm > 0 for batch in batches):
        signals = signals._replace(norm=global_norm(grads))
    if signals.check_finite:
        # The largest magnitude, not the 2-norm: that one overflows where every gradient is finite.
        signals = _skip_if(torch.isfinite(global_norm(grads, math.inf)).logical_not(), signals)
    return signals


def measure_together(
    param_groups: list[dict[str, Any]],
    groups: list[tuple[dict[str, Any], Batch]],
    signals: Signals,
    norm_group: str | None,
    fresh: bool,
) -> Signals:
    """The same where parameters are spread over processes, all of which must come here, with gradients or without.

    Three numbers are summed over the meshes that hold parameters, then over `norm_group`.
    `fresh`: the step is skipped as well if all gradients are zero.
    """
    clips = any(group["max_grad_norm"] > 0 for group in param_groups)
    skips = signals.check_finite or fresh
    if not clips and not skips:
        return signals
    params = [p for group in param_groups for p in group["params"]]
    parts: dict[sharding.Share, list[Tensor]] = {(None, 1): []}
    grads_of = {id(group): iter(batch.grads) for group, batch in groups}
    for group in param_groups:
        for p in group["params"]:
            part = parts.setdefault(sharding.share(p), [])
            if p.grad is not None:
                part.append(next(grads_of[id(group)]))

    # What is not spread over a mesh is the same everywhere on it. So all can be summed with what is spread over the
    # largest mesh, by one message: a sum in n parts on N processes counts n / N times on each.
    largest = max((mesh for mesh, _ in parts if mesh is not None), key=lambda mesh: mesh.size(), default=None)
    # A process without a parameter must still bring its zeros to where the others have theirs.
    device = params[0].device if params else torch.device("cuda" if torch.cuda.is_available() else "cpu")
    by_mesh: dict[Any, Tensor] = {}
    for (mesh, n), grads in parts.items():
        over = largest if mesh is None or sharding.covers(largest, mesh) else mesh
        sums = _sums(grads, clips, skips, device) * (n / over.size() if over is not None else 1.0)
        by_mesh[over] = by_mesh[over] + sums if over in by_mesh else sums
    total = by_mesh.pop(None, torch.zeros((), device=device))
    for mesh, sums in sorted(by_mesh.items(), key=lambda item: item[0].size()):
        total = sharding.sum_over_mesh(sums + total.to(device) / mesh.size(), mesh)
    if norm_group is not None:
        total = sharding.sum_over_group(total, norm_group)

    squares, not_finite, not_zero = total.unbind()
    if clips:
        wide = any(compute_dtype(p.dtype) == torch.float64 for p in params)
        signals = signals._replace(norm=squares.sqrt().to(torch.float64 if wide else torch.float32))
    if skips:
        signals = _skip_if(((not_finite > 0) & signals.check_finite) | ((not_zero == 0) & fresh), signals)
    return signals


def _sums(grads: list[Tensor], clips: bool, skips: bool, device: torch.device) -> Tensor:
    """Σ x², whether an x is not finite, whether an x is not zero: what is not asked for, as 0."""
    # In fp64 the square of no fp32 norm overflows; Apple's GPUs have none.
    dtype = torch.float32 if device.type == "mps" else torch.float64
    squares = not_finite = not_zero = torch.zeros((), device=device)
    if clips and grads:
        squares = global_norm(grads).to(dtype).square()
    if skips and grads:
        largest = global_norm(grads, math.inf)
        not_finite, not_zero = torch.isfinite(largest).logical_not(), largest != 0
    return torch.stack([x.to(device, dtype) for x in (squares, not_finite, not_zero)])


def _skip_if(bad: Tensor, signals: Signals) -> Signals:
    skip = bad.to(torch.float32)
    if signals.skip is not None:
        skip = torch.maximum(skip, signals.skip.to(skip))
    return signals._replace(skip=skip, check_finite=False)


def global_norm(grads: Iterable[Tensor], order: float = 2.0) -> Tensor:
    """‖all gradients‖, in fp32 or, where there are fp64 gradients, fp64; a 0-dim tensor, read back by nobody."""
    alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for grad in grads:
        if grad.numel():  # the maximum of nothing does not exist
            alike[grad.device, grad.dtype].append(grad)
    if not alike:
        return torch.zeros((), device="cpu")
    norms = [
        norm
        for (_, dtype), tensors in alike.items()
        for norm in torch._foreach_norm(tensors, order, dtype=compute_dtype(dtype))
    ]
    first = norms[0]
    wait_free = first.device.type != "cpu"  # a copy to the host must be waited for
    wide = torch.float64 if any(norm.dtype == torch.float64 for norm in norms) else first.dtype
    total: Tensor = torch.linalg.vector_norm(
        torch.stack([x.to(first.device, wide, non_blocking=wait_free) for x in norms]), order
    )
    return total
