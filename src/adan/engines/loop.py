"""Adan, tensor by tensor, in plain PyTorch: the text that every other engine must agree with.

New values are computed out of place and copied in at the end, so autograd can differentiate through a step.
"""

from __future__ import annotations

import torch

from adan.batch import Batch, compute_dtype
from adan.scalars import Signals, next_count, step_scalars


def update(batches: list[Batch], signals: Signals) -> None:
    for batch in batches:
        for p, grad, exp_avg, exp_avg_diff, exp_avg_sq, prev_grad, step in zip(*batch.tensors(), strict=True):
            dtype = compute_dtype(p.dtype)
            s = step_scalars(batch.options, signals, next_count(step, dtype))

            g = grad.to(dtype) * s.grad_scale
            if signals.skip is not None:
                # With this and the coefficients of a skipped step, everything below is the identity.
                g = torch.where(signals.skip > 0, prev_grad, g)
            d = s.has_prev * (g - prev_grad)

            m = exp_avg + s.w_m * (g - exp_avg)
            v = exp_avg_diff + s.w_v * (d - exp_avg_diff)
            n = exp_avg_sq + s.w_n * ((g + s.lookahead * d) ** 2 - exp_avg_sq)

            u = s.step_m * m + s.step_v * v
            theta = s.shrink * (s.keep * p.to(dtype) - u / (s.root_n * n.sqrt() + s.eps))

            p.copy_(theta)
            exp_avg.copy_(m)
            exp_avg_diff.copy_(v)
            exp_avg_sq.copy_(n)
            prev_grad.copy_(g)
            step += 1 if signals.skip is None else 1 - signals.skip
