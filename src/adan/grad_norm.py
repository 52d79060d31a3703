"""What must be known of all gradients together before any of them is used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

from adan.batch import Batch, compute_dtype
from adan.scalars import Signals


def measure(batches: list[Batch], signals: Signals) -> Signals:
    """Add the norm to clip by and the decision to skip, for engines that do not measure gradients themselves."""
    grads = [grad for batch in batches for grad in batch.grads]
    if any(batch.options.max_grad_norm > 0 for batch in batches):
        signals = signals._replace(norm=global_norm(grads))
    if signals.check_finite:
        # The largest magnitude, not the 2-norm: that one overflows where every gradient is finite.
        largest = global_norm(grads, float("inf"))
        skip = torch.isfinite(largest).logical_not().to(largest.dtype)
        if signals.skip is not None:
            skip = torch.maximum(skip, signals.skip.to(skip))
        signals = signals._replace(skip=skip, check_finite=False)
    return signals


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
