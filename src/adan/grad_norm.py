"""The norm of all gradients together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

from adan.batch import compute_dtype


def global_norm(grads: Iterable[Tensor], order: float = 2.0) -> Tensor:
    """‖all gradients‖, in fp32 or, where there are fp64 gradients, fp64; a 0-dim tensor, read back by nobody."""
    alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for grad in grads:
        if grad.numel():  # the maximum of nothing does not exist
            alike[grad.device, grad.dtype].append(grad)
    if not alike:
        return torch.zeros(())
    norms = [
        norm
        for (_, dtype), tensors in alike.items()
        for norm in torch._foreach_norm(tensors, order, dtype=compute_dtype(dtype))
    ]
    first = norms[0]
    wide = torch.float64 if any(norm.dtype == torch.float64 for norm in norms) else first.dtype
    total: Tensor = torch.linalg.vector_norm(
        torch.stack([x.to(first.device, wide, non_blocking=True) for x in norms]), order
    )
    return total
