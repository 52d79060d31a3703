"""Adan, tensor by tensor, in plain PyTorch: the text that every other engine must agree with.

New values are computed out of place and copied in at the end, so autograd can differentiate through a step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adan.batch import Batch, compute_dtype
from adan.scalars import Options, Signals, next_count, step_scalars, way_scalars


def update(batches: list[Batch], signals: Signals) -> Tensor | None:
    ways = []
    for batch in batches:
        columns: Any = (tensors or [None] * len(batch.params) for tensors in batch.tensors()[:8])
        ways += [_update(batch.options, signals, *row) for row in zip(*columns, strict=True)]
    return total([way for way in ways if way is not None])


def _update(
    options: Options,
    signals: Signals,
    p: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_diff: Tensor | None,
    exp_avg_sq: Tensor,
    prev_grad: Tensor,
    step: Tensor,
    prev_scale: Tensor | None,
) -> Tensor | None:
    dtype = compute_dtype(p.dtype)
    t = next_count(step, dtype)
    s = step_scalars(options, signals, t)

    g = grad.to(dtype) * s.grad_scale
    g_prev = prev_grad if prev_scale is None else prev_grad.to(dtype) * prev_scale.to(dtype)
    if signals.skip is not None:
        # With this and the coefficients of a skipped step, everything below is the identity.
        g = torch.where(signals.skip > 0, g_prev, g)
    d = s.has_prev * (g - g_prev)

    m = exp_avg + s.w_m * (g - exp_avg)
    n = exp_avg_sq + s.w_n * ((g + s.lookahead * d) ** 2 - exp_avg_sq)
    if exp_avg_diff is None:  # the coupled form: m is the average of both
        m = m + s.lookahead * s.w_v * d
        u = s.step_m * m
    else:
        v = exp_avg_diff + s.w_v * (d - exp_avg_diff)
        u = s.step_m * m + s.step_v * v
    denom = s.root_n * n.sqrt() + s.eps
    theta = s.shrink * (s.keep * p.to(dtype) - u / denom)

    way = None
    if options.last_lr is not None:
        w = way_scalars(options, t)
        back = w.prev_m * exp_avg - w.prev_grad * g_prev
        if exp_avg_diff is not None:
            back = back + w.prev_v * exp_avg_diff
        back = back / (w.prev_root * exp_avg_sq.sqrt() + w.prev_eps)
        y = w.theta * p.to(dtype) + w.step * u / denom - w.grad * g / denom - back
        way = (denom * y**2).sum(dtype=torch.float64)

    p.copy_(theta)
    exp_avg.copy_(m)
    if exp_avg_diff is not None:
        exp_avg_diff.copy_(v)
    exp_avg_sq.copy_(n)
    step += 1 if signals.skip is None else 1 - signals.skip
    if prev_scale is None:
        prev_grad.copy_(g)
    else:
        consume(grad, prev_grad, prev_scale, s.grad_scale, signals.skip)
    return way


def total(ways: list[Tensor]) -> Tensor | None:
    return torch.stack(ways).sum() if ways else None


def consume(grad: Tensor, prev_grad: Tensor, prev_scale: Tensor, scale: float | Tensor, skip: Tensor | None) -> None:
    """Let a gradient's buffer be the next step's previous gradient; after a skipped step it holds the one before it."""
    if skip is None:
        prev_scale.fill_(scale)
    else:
        grad.copy_(torch.where(skip > 0, prev_grad.to(grad.dtype), grad))
        prev_scale.copy_(torch.where(skip > 0, prev_scale, scale))
