"""Adan with PyTorch's list operations: few launches on a GPU, traceable by `torch.compile`.

On the CPU the lists are cut into pieces that fit the cache: an operation then finds what the one before it left there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adan.columns import Columns, compute_dtype
from adan.engines import Memo, PlainEngine
from adan.engines.loop import total
from adan.scalars import Displacement, Scalars, Signals, displacement_scalars, next_count, step_scalars

#: Elements a piece on the CPU may hold. Of 16k … 256k this was the fastest; uncut, a step took five times as long.
CPU_PIECE = 131_072


class Foreach(PlainEngine):
    name = "foreach"

    def update(self, columns: Columns, memo: Memo, signals: Signals) -> Tensor | None:
        squares: list[Tensor | None] = []
        for piece, scalars, displacement in _pieces(columns, signals):
            squares += _update(piece, scalars, displacement, signals.skip)
        # A bare 0-dim tensor would be taken for a number, and read back.
        torch._foreach_add_(columns.step, 1 if signals.skip is None else [1 - signals.skip] * len(columns.step))
        return total(squares)


class Piece(NamedTuple):
    """Lists of tensors of one type that share a set of coefficients; empty for what these rows do not have."""

    param: list[Tensor]
    grad: list[Tensor]
    exp_avg: list[Tensor]
    exp_avg_sq: list[Tensor]
    prev_grad: list[Tensor]
    exp_avg_diff: list[Tensor]


def _pieces(columns: Columns, signals: Signals) -> Iterator[tuple[Piece, Any, Any]]:
    """Rows of one type and one set of coefficients; those of the displacement are None unless it is measured."""
    counts = [next_count(step, compute_dtype(p.dtype)) for p, step in zip(columns.param, columns.step, strict=True)]
    by_kind: dict[Any, list[int]] = {}
    for i, t in enumerate(counts):
        count = None if isinstance(t, Tensor) else t
        kind = (columns.group[i], columns.param[i].dtype, columns.grad[i].dtype, columns.exp_avg_diff[i] is None, count)
        by_kind.setdefault(kind, []).append(i)
    for (group, *_, count), rows in by_kind.items():
        options = columns.options[group]
        lists = ([getattr(columns, name)[i] for i in rows] for name in Piece._fields)
        piece = Piece(*([] if column[0] is None else column for column in lists))
        dtype = compute_dtype(piece.param[0].dtype)
        # A set of coefficients for each row where counts are on the device, else one for all.
        ts = [counts[i] for i in rows] if count is None else count
        scalars = _coefficients(Scalars, partial(step_scalars, options, signals), ts, dtype)
        displacement = None
        if options.last_lr is not None:
            displacement = _coefficients(Displacement, partial(displacement_scalars, options), ts, dtype)
        cut = count is not None and piece.param[0].device.type == "cpu"
        for part in _cache_sized(piece) if cut else [piece]:
            yield part, scalars, displacement


def _cache_sized(piece: Piece) -> Iterator[Piece]:
    """Pieces of up to CPU_PIECE elements: runs of short tensors, stretches of long ones."""
    rows: list[tuple[Tensor, ...]] = []
    size = 0
    for row in zip(*filter(None, piece), strict=True):
        flat = all(x.is_contiguous() for x in row)
        for stretch in zip(*(x.view(-1).split(CPU_PIECE) for x in row), strict=True) if flat else [row]:
            if size + stretch[0].numel() > CPU_PIECE and rows:
                yield _transposed(piece, rows)
                rows, size = [], 0
            rows.append(stretch)
            size += stretch[0].numel()
    yield _transposed(piece, rows)


def _transposed(like: Piece, rows: list[tuple[Tensor, ...]]) -> Piece:
    columns = map(list, zip(*rows, strict=True))
    return Piece(*(next(columns) if column else [] for column in like))


def _coefficients(cls: Any, compute: Callable[[Any], Any], counts: Any, dtype: torch.dtype) -> Any:
    """Coefficients of one count or of a list of them: each a number, a tensor, or a list with a tensor for each row."""
    if not isinstance(counts, list):  # in the type of the arithmetic: a wider 0-dim tensor would widen 0-dim parameters
        return cls(*(x.to(dtype) if isinstance(x, Tensor) else x for x in compute(counts)))
    fields = zip(*map(compute, counts), strict=True)
    return cls(*([x.to(dtype) for x in xs] if isinstance(xs[0], Tensor) else xs[0] for xs in fields))


def _update(piece: Piece, s: Any, w: Any, skip: Tensor | None) -> list[Tensor]:
    """One step; `s` are Scalars, `w` a Displacement or None, each field a number for all tensors or a list of them."""
    params, grads, exp_avgs, exp_avg_sqs, prev_grads, exp_avg_diffs = piece
    dtype = compute_dtype(params[0].dtype)
    g = [grad.to(dtype) for grad in grads]
    if not _is_one(s.grad_scale):
        g = list(torch._foreach_mul(g, s.grad_scale))
    elif not torch.compiler.is_compiling():  # parameters are written before gradients are read for the last time
        g = [x.clone() if _share_memory(x, p) else x for x, p in zip(g, params, strict=True)]
    if skip is not None:
        # With this and the coefficients of a skipped step, everything below is the identity.
        g = [torch.where(skip > 0, prev, x) for prev, x in zip(prev_grads, g, strict=True)]

    y = [] if w is None else _before(piece, w)
    # The previous gradient is the scratch space: a new buffer each step costs more in page faults than in arithmetic.
    d = scratch = prev_grads
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
    for averages, step in ((exp_avgs, s.step_m), (exp_avg_diffs, s.step_v)):
        if averages and isinstance(step, float):
            torch._foreach_addcdiv_(theta, averages, denom, value=-step)
        elif averages:
            torch._foreach_addcdiv_(theta, torch._foreach_mul(averages, step), denom, value=-1)
    if not _is_one(s.shrink):
        torch._foreach_mul_(theta, s.shrink)

    squares = []
    if w is not None:
        x = torch._foreach_mul(exp_avgs, s.step_m)
        if exp_avg_diffs:
            torch._foreach_add_(x, torch._foreach_mul(exp_avg_diffs, s.step_v))
        torch._foreach_mul_(x, w.step)
        torch._foreach_sub_(x, torch._foreach_mul(g, w.grad))
        torch._foreach_addcdiv_(y, x, denom)
        torch._foreach_mul_(y, y)
        squares = [x.sum(dtype=torch.float64) for x in torch._foreach_mul(y, denom)]

    if theta[0] is not params[0]:
        torch._foreach_copy_(params, theta)
    torch._foreach_copy_(prev_grads, g)
    return squares


def _before(piece: Piece, w: Any) -> list[Tensor]:
    """The terms of the displacement that take values from before the step."""
    prev_u = list(torch._foreach_mul(piece.exp_avg, w.prev_m))
    if piece.exp_avg_diff:
        torch._foreach_add_(prev_u, torch._foreach_mul(piece.exp_avg_diff, w.prev_v))
    torch._foreach_sub_(prev_u, torch._foreach_mul(piece.prev_grad, w.prev_grad))
    prev_denom = torch._foreach_sqrt(piece.exp_avg_sq)
    torch._foreach_mul_(prev_denom, w.prev_root)
    torch._foreach_add_(prev_denom, w.prev_eps)
    y = list(torch._foreach_mul([p.to(prev_u[0].dtype) for p in piece.param], w.theta))
    torch._foreach_addcdiv_(y, prev_u, prev_denom, value=-1)
    return y


def _share_memory(a: Tensor, b: Tensor) -> bool:
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


def _is_one(x: object) -> bool:
    return isinstance(x, float) and x == 1.0
