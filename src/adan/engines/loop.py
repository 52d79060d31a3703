"""Adan, tensor by tensor, in plain PyTorch: the reference that every other engine must agree with.

New values are computed out of place and copied in at the end, so autograd can differentiate through a step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adan.columns import Columns, compute_dtype
from adan.engines import Memo, PlainEngine
from adan.scalars import Signals, displacement_scalars, next_count, step_scalars


class Loop(PlainEngine):
    name = "loop"

    def update(self, columns: Columns, memo: Memo, signals: Signals) -> Tensor | None:
        return total([_update(columns, i, signals) for i in range(len(columns.param))])


def _update(columns: Columns, i: int, signals: Signals) -> Tensor | None:
    options, p, grad, step = columns.options[columns.group[i]], columns.param[i], columns.grad[i], columns.step[i]
    exp_avg, exp_avg_diff, exp_avg_sq = columns.exp_avg[i], columns.exp_avg_diff[i], columns.exp_avg_sq[i]
    g_prev = columns.prev_grad[i]

    dtype = compute_dtype(p.dtype)
    t = next_count(step, dtype)
    s = step_scalars(options, signals, t)
    # A copy: autograd may need it for the gradient of a learning rate, and `p` is written to below.
    theta = p.to(dtype, copy=True)
    g = grad.to(dtype) * s.grad_scale
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

    square = None
    if options.last_lr is not None:
        w = displacement_scalars(options, t)
        prev_u = w.prev_m * exp_avg - w.prev_grad * g_prev
        if exp_avg_diff is not None:
            prev_u = prev_u + w.prev_v * exp_avg_diff
        prev_denom = w.prev_root * exp_avg_sq.sqrt() + w.prev_eps
        y = w.theta * theta + w.step * u / denom - w.grad * g / denom - prev_u / prev_denom
        square = (denom * y**2).sum(dtype=torch.float64)

    p.copy_(s.shrink * (s.keep * theta - u / denom))
    exp_avg.copy_(m)
    if exp_avg_diff is not None:
        exp_avg_diff.copy_(v)
    exp_avg_sq.copy_(n)
    step += 1 if signals.skip is None else 1 - signals.skip
    g_prev.copy_(g)
    return square


def total(squares: list[Tensor | None]) -> Tensor | None:
    """Sum of the measured values; None if there are none."""
    measured = [x for x in squares if x is not None]
    return torch.stack(measured).sum() if measured else None
