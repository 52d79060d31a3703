"""Adan with PyTorch's list operations: few launches on a GPU, traceable by `torch.compile`.

On the CPU the lists are cut into pieces that fit the cache: an operation then finds what the one before it left there.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from adan.batch import Batch, compute_dtype
from adan.scalars import Number, Scalars, Signals, next_count, step_scalars

#: Elements a piece on the CPU may hold: seven tensors of this many floats are about 1.8 MB, an L2 cache.
CPU_PIECE = 65_536


def update(batches: list[Batch], signals: Signals) -> None:
    for batch in batches:
        for piece, scalars in _pieces(batch, signals):
            _update(piece, scalars, signals.skip)


def _pieces(batch: Batch, signals: Signals) -> Iterator[tuple[Batch, Scalars]]:
    """Cut a batch into lists of one device, one type and one set of coefficients."""
    alike: dict[object, tuple[list[int], list[Number]]] = {}
    for i, (p, step) in enumerate(zip(batch.params, batch.steps, strict=True)):
        dtype = compute_dtype(p.dtype)
        t = next_count(step, dtype)
        key = (p.device, p.dtype, batch.grads[i].dtype, None if isinstance(t, Tensor) else t)
        indices, counts = alike.setdefault(key, ([], []))
        indices.append(i)
        counts.append(t)
    for indices, counts in alike.values():
        on_cpu = batch.params[indices[0]].device.type == "cpu" and not torch.compiler.is_compiling()
        for begin, end in _cuts([batch.params[i].numel() for i in indices], CPU_PIECE if on_cpu else None):
            piece = batch.select(indices[begin:end])
            if isinstance(counts[begin], Tensor):
                rows = [step_scalars(batch.options, signals, t) for t in counts[begin:end]]
                yield piece, Scalars(*(_column(values) for values in zip(*rows, strict=True)))
            else:
                yield piece, step_scalars(batch.options, signals, counts[begin])


def _cuts(sizes: list[int], limit: int | None) -> Iterator[tuple[int, int]]:
    """Bounds of consecutive runs whose sizes add up to `limit` at most, or that are one long tensor."""
    begin = total = 0
    for i, size in enumerate(sizes):
        if limit is not None and i > begin and total + size > limit:
            yield begin, i
            begin, total = i, 0
        total += size
    yield begin, len(sizes)


def _column(values: tuple[Number, ...]) -> Number:
    """One coefficient of many parameters: a list of tensors, or the one number that they share."""
    return list(values) if isinstance(values[0], Tensor) else values[0]  # type: ignore[return-value]


def _update(batch: Batch, s: Scalars, skip: Tensor | None) -> None:
    _, params, grads, exp_avgs, exp_avg_diffs, exp_avg_sqs, prev_grads, steps = batch
    dtype = compute_dtype(params[0].dtype)

    g = [grad.to(dtype) for grad in grads]
    if not _is_one(s.grad_scale):
        g = torch._foreach_mul(g, s.grad_scale)
    if skip is not None:
        # With this and the coefficients of a skipped step, everything below is the identity.
        g = [torch.where(skip > 0, prev, x) for prev, x in zip(prev_grads, g, strict=True)]
    d = torch._foreach_sub(g, prev_grads)
    if not _is_one(s.has_prev):
        torch._foreach_mul_(d, s.has_prev)

    torch._foreach_lerp_(exp_avgs, g, s.w_m)
    torch._foreach_lerp_(exp_avg_diffs, d, s.w_v)
    torch._foreach_mul_(d, s.lookahead)
    torch._foreach_add_(d, g)
    torch._foreach_mul_(d, d)
    torch._foreach_lerp_(exp_avg_sqs, d, s.w_n)

    denom = torch._foreach_sqrt(exp_avg_sqs)
    torch._foreach_mul_(denom, s.root_n)
    torch._foreach_add_(denom, s.eps)
    u = torch._foreach_mul(exp_avgs, s.step_m)
    torch._foreach_add_(u, torch._foreach_mul(exp_avg_diffs, s.step_v))

    theta = [p.to(dtype) for p in params]
    if not _is_one(s.keep):
        torch._foreach_mul_(theta, s.keep)
    torch._foreach_addcdiv_(theta, u, denom, value=-1)
    if not _is_one(s.shrink):
        torch._foreach_mul_(theta, s.shrink)

    if theta[0] is not params[0]:
        torch._foreach_copy_(params, theta)
    torch._foreach_copy_(prev_grads, g)
    torch._foreach_add_(steps, 1 if skip is None else 1 - skip)


def _is_one(x: Number) -> bool:
    return isinstance(x, float) and x == 1.0
