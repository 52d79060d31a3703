"""Adan with PyTorch's list operations: few launches on a GPU, traceable by `torch.compile`.

On the CPU the lists are cut into pieces that fit the cache: an operation then finds what the one before it left there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from adan.batch import Batch, compute_dtype
from adan.engines.loop import consume, total
from adan.scalars import Scalars, Signals, Way, grad_scale, next_count, step_scalars, way_scalars

#: Elements a piece on the CPU may hold. Of 16k … 256k this was the fastest: 1.0 × AdamW(foreach=True), uncut 5 ×.
CPU_PIECE = 131_072


def update(batches: list[Batch], signals: Signals) -> Tensor | None:
    ways: list[Tensor] = []
    for batch in batches:
        for piece, scalars, way in _pieces(batch, signals):
            ways += _update(piece, scalars, way, signals.skip)
        for grad, prev, prev_scale in zip(batch.grads, batch.prev_grads, batch.prev_scales, strict=False):
            consume(grad, prev, prev_scale, grad_scale(batch.options, signals), signals.skip)
        # A bare 0-dim tensor would be taken for a number, and read back.
        torch._foreach_add_(batch.steps, 1 if signals.skip is None else [1 - signals.skip] * len(batch.steps))
    return total(ways)


def _pieces(batch: Batch, signals: Signals) -> Iterator[tuple[Batch, Any, Any]]:
    """Cut a batch into lists of one type and one set of coefficients; those of the way are None unless measured."""
    options = batch.options
    measures = options.last_lr is not None
    counts = [next_count(step, compute_dtype(p.dtype)) for p, step in zip(batch.params, batch.steps, strict=True)]
    alike: dict[object, list[int]] = {}
    for i, (p, grad, t) in enumerate(zip(batch.params, batch.grads, counts, strict=True)):
        alike.setdefault((p.dtype, grad.dtype, None if isinstance(t, Tensor) else t), []).append(i)
    for indices in alike.values():
        chosen = batch.select(indices)
        if isinstance(counts[indices[0]], Tensor):
            rows = [step_scalars(options, signals, counts[i]) for i in indices]
            ways = [way_scalars(options, counts[i]) for i in indices] if measures else []
            columns = [list(map(_column, zip(*sets, strict=True))) for sets in (rows, ways)]
            yield chosen, Scalars(*columns[0]), Way(*columns[1]) if measures else None
        else:
            scalars = step_scalars(options, signals, counts[indices[0]])
            way = way_scalars(options, counts[indices[0]]) if measures else None
            whole = chosen.params[0].device.type != "cpu" or chosen.prev_scales
            for piece in [chosen] if whole else _cache_sized(chosen):
                yield piece, scalars, way


def _cache_sized(batch: Batch) -> Iterator[Batch]:
    """Pieces of up to CPU_PIECE elements: runs of short tensors, stretches of long ones."""
    piece, size = Batch.empty(batch.options), 0
    columns = [tensors for tensors in batch.tensors()[:6] if tensors]
    for row in zip(*columns, strict=True):
        flat = all(x.is_contiguous() for x in row)
        stretches = zip(*(x.view(-1).split(CPU_PIECE) for x in row), strict=True) if flat else [row]
        for stretch in stretches:
            if size + stretch[0].numel() > CPU_PIECE and piece.params:
                yield piece
                piece, size = Batch.empty(batch.options), 0
            lists = (tensors for tensors, given in zip(piece.tensors(), batch.tensors()[:6], strict=False) if given)
            for tensors, x in zip(lists, stretch, strict=True):
                tensors.append(x)
            size += stretch[0].numel()
    yield piece


def _column(values: tuple[Any, ...]) -> Any:
    """One coefficient of many parameters: a list of tensors, or the one number that they share."""
    return list(values) if isinstance(values[0], Tensor) else values[0]


def _update(batch: Batch, s: Any, w: Any, skip: Tensor | None) -> list[Tensor]:
    """One step; `s` are Scalars and `w` a Way or None, each a number for all tensors or a list with one for each."""
    params, grads, exp_avgs, exp_avg_diffs, exp_avg_sqs, prev_grads, _, prev_scales, _, _ = batch.tensors()
    dtype = compute_dtype(params[0].dtype)
    # The previous gradient is the scratch space: a new buffer each step costs more in page faults than in arithmetic.
    g_prev = prev_grads
    if prev_scales:
        g_prev = [prev.to(dtype) * scale.to(dtype) for prev, scale in zip(prev_grads, prev_scales, strict=True)]

    g = [grad.to(dtype) for grad in grads]
    if not _is_one(s.grad_scale):
        g = list(torch._foreach_mul(g, s.grad_scale))
    if skip is not None:
        # With this and the coefficients of a skipped step, everything below is the identity.
        g = [torch.where(skip > 0, prev, x) for prev, x in zip(g_prev, g, strict=True)]

    moved = [] if w is None else _before(batch, g_prev, w)
    d = scratch = g_prev
    torch._foreach_sub_(d, g)
    torch._foreach_neg_(d)
    if not _is_one(s.has_prev):
        torch._foreach_mul_(d, s.has_prev)

    torch._foreach_lerp_(exp_avgs, g, s.w_m)
    if exp_avg_diffs:
        torch._foreach_lerp_(exp_avg_diffs, d, s.w_v)
    torch._foreach_mul_(d, s.lookahead)
    if not exp_avg_diffs:  # the coupled form: the first average is that of both
        torch._foreach_add_(exp_avgs, torch._foreach_mul(d, s.w_v))
    torch._foreach_add_(d, g)
    torch._foreach_mul_(d, d)
    torch._foreach_lerp_(exp_avg_sqs, d, s.w_n)

    denom = scratch
    torch._foreach_copy_(denom, exp_avg_sqs)
    torch._foreach_sqrt_(denom)
    torch._foreach_mul_(denom, s.root_n)
    torch._foreach_add_(denom, s.eps)

    theta = [p.to(dtype) for p in params]
    if not _is_one(s.keep):
        torch._foreach_mul_(theta, s.keep)
    if isinstance(s.step_m, float):
        torch._foreach_addcdiv_(theta, exp_avgs, denom, value=-s.step_m)
        if exp_avg_diffs:
            torch._foreach_addcdiv_(theta, exp_avg_diffs, denom, value=-s.step_v)
    else:
        torch._foreach_addcdiv_(theta, torch._foreach_mul(exp_avgs, s.step_m), denom, value=-1)
        if exp_avg_diffs:
            torch._foreach_addcdiv_(theta, torch._foreach_mul(exp_avg_diffs, s.step_v), denom, value=-1)
    if not _is_one(s.shrink):
        torch._foreach_mul_(theta, s.shrink)

    ways = []
    if w is not None:
        x = torch._foreach_mul(exp_avgs, s.step_m)
        if exp_avg_diffs:
            torch._foreach_add_(x, torch._foreach_mul(exp_avg_diffs, s.step_v))
        torch._foreach_mul_(x, w.step)
        torch._foreach_sub_(x, torch._foreach_mul(g, w.grad))
        torch._foreach_addcdiv_(moved, x, denom)
        torch._foreach_mul_(moved, moved)
        ways = [x.sum(dtype=torch.float64) for x in torch._foreach_mul(moved, denom)]

    if theta[0] is not params[0]:
        torch._foreach_copy_(params, theta)
    if not prev_scales:
        torch._foreach_copy_(prev_grads, g)
    return ways


def _before(batch: Batch, g_prev: list[Tensor], w: Any) -> list[Tensor]:
    """What a way takes from before the step."""
    back = list(torch._foreach_mul(batch.exp_avgs, w.prev_m))
    if batch.exp_avg_diffs:
        torch._foreach_add_(back, torch._foreach_mul(batch.exp_avg_diffs, w.prev_v))
    torch._foreach_sub_(back, torch._foreach_mul(g_prev, w.prev_grad))
    denom = torch._foreach_sqrt(batch.exp_avg_sqs)
    torch._foreach_mul_(denom, w.prev_root)
    torch._foreach_add_(denom, w.prev_eps)
    moved = list(torch._foreach_mul([p.to(back[0].dtype) for p in batch.params], w.theta))
    torch._foreach_addcdiv_(moved, back, denom, value=-1)
    return moved


def _is_one(x: object) -> bool:
    return isinstance(x, float) and x == 1.0
