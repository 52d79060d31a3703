"""Quantized states and rounded weights for engines that know neither: read, step, write back."""

from __future__ import annotations

import torch
from torch import Tensor

from adan.columns import NAMES, STATES, Columns, compute_dtype
from adan.engines import Engine, Memo
from adan.lowbit import RandomBits, read, store, to_bf16, write
from adan.scalars import Signals, next_count, replaced


def update(engine: Engine, columns: Columns, memo: Memo, signals: Signals) -> Tensor | None:
    """`Engine.update` with an engine that knows only plain states and plain rounding."""
    rows = [i for i in range(len(columns.param)) if _is_special(columns, i)]
    if not rows:
        return engine.update(columns, memo, signals)
    plain = replaced(columns, **{name: list(getattr(columns, name)) for name in ("param", *STATES)})
    counts: dict[int, int | Tensor] = {}
    for i in rows:
        count = next_count(columns.step[i], torch.int64)
        counts[i] = count if isinstance(count, Tensor) else int(count)
        for name, value in read(_stored(columns, i)).items():
            getattr(plain, name)[i] = value
        p, compensation = columns.param[i], columns.compensation[i]
        if compensation is not None:
            plain.param[i] = p.float() + compensation.float()
        elif columns.rounds_stochastically(i):
            plain.param[i] = p.float()
    displacement = engine.update(plain, memo, signals)

    keep = None if signals.skip is None else signals.skip > 0
    for i in rows:
        p, theta = columns.param[i], plain.param[i]
        cycle = columns.options[columns.group[i]].cycle
        cycle = cycle.to(p.device, torch.int64) if isinstance(cycle, Tensor) else int(cycle)
        bits = RandomBits.of(columns.rng_offset[i], counts[i], p, cycle)
        write(_stored(columns, i), {name: getattr(plain, name)[i] for name in STATES}, bits, keep)
        if columns.compensation[i] is not None:
            rounded = _round_trip(theta, p.dtype)
            store(columns.compensation[i], (theta - rounded).to(p.dtype), keep)
            store(p, rounded.to(p.dtype), keep)
        elif theta is not p:
            store(p, to_bf16(theta, bits.param.as_strided(theta.shape, theta.stride())), keep)
    return displacement


def _is_special(columns: Columns, i: int) -> bool:
    """Whether a row's states or weights need more than their types' own arithmetic."""
    plain = columns.exp_avg[i].dtype == compute_dtype(columns.param[i].dtype)
    return not plain or columns.compensation[i] is not None or columns.rounds_stochastically(i)


def _stored(columns: Columns, i: int) -> dict[str, Tensor]:
    return {name: x for name in NAMES if (x := getattr(columns, name)[i]) is not None}


def _round_trip(x: Tensor, dtype: torch.dtype) -> Tensor:
    """fp32 rounded to half precision and back, through its bits: a compiler may drop a cast that is cast back."""
    bits = x.to(dtype).view(torch.int16).to(torch.int32)
    return (bits & 0xFFFF).to(torch.int16).view(dtype).float()
