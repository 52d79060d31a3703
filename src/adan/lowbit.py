"""States in 8 or 16 bits, and 16-bit weights that do not stall: how numbers are coded, read and rounded.

An 8-bit code is a short float of |x| + δ, in blocks of BLOCK elements that are scaled by powers of two::

    code = (bits(|x|·2^-e + δ) + draw >> shift) − base        x = ±(float((code + base) << shift) − δ)·2^e

Above δ the steps grow with the value, below it they are even, so that nothing underflows all at once. Scaling by powers
of two is exact: engines that compute the same number store the same code. The draws make the rounding unbiased, without
which slow averages stall: a step of 1 − b3 = 1% is less than half a code. They depend on the seed, the parameter, its
step count and the element alone, so runs repeat and replicas agree.

This file is the plain version, in PyTorch's own operations, with which `engines/kernels.py` and `engines/cpu.c` must
agree. `benchmarks/codes.py` measured the codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from adan.batch import Batch, Engine, compute_dtype
from adan.scalars import Signals, next_count

#: What `state_format` may be.
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "8bit": torch.uint8}

#: Elements that share exponents, one of each state, together 4 bytes: with 4 of codes, 4.125 bytes a parameter.
BLOCK = 32

#: Tensors of fewer elements keep fp32 states: they are a thousandth of a model, and often its most sensitive part.
SMALLEST = 4096

Word = TypeVar("Word", int, Tensor)
_MASK = 0xFFFFFFFF


class Code(NamedTuple):
    """How many bits of mantissa a code keeps, and the code of 1: the few after it are for what δ lifts above 1."""

    bits: int
    one: int

    @property
    def shift(self) -> int:
        return 23 - self.bits

    @property
    def base(self) -> int:
        return (127 << self.bits) - self.one

    @property
    def delta(self) -> float:
        return torch.tensor(self.base << self.shift, dtype=torch.int32, device="cpu").view(torch.float32).item()


SIGNED = Code(bits=5, one=124)  #: of m, v and the previous gradient; bit 7 is the sign
ROOT = Code(bits=6, one=250)  #: of √n


# ---- draws ----------------------------------------------------------------------------------------------------------


def mix(x: Word) -> Word:
    """A well-known 32-bit finalizer: every bit of `x` changes every bit of the result about half of the time."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D & _MASK
    x = x ^ (x >> 15)
    x = x * 0x846CA68B & _MASK
    return x ^ (x >> 16)


def stream(seed: int, index: int) -> int:
    """Of one parameter: what, mixed with its step count, starts the draws of a step."""
    return mix((seed + 0x9E3779B9 * (index + 1)) & _MASK)


class Draws(NamedTuple):
    """32 random bits for each rounding of an element, of which it takes the low ones.

    Those of the states are one word, rotated by a byte each: what decides most, the high bits, they do not share.
    """

    m: Tensor
    v: Tensor
    n: Tensor
    g: Tensor
    weight: Tensor

    @classmethod
    def of(cls, key: int | Tensor, like: Tensor) -> Draws:
        at = torch.arange(like.numel(), dtype=torch.int64, device=like.device)
        word = mix(at + key & _MASK)
        v, n, g = ((word << by | word >> (32 - by)) & _MASK for by in (8, 16, 24))
        return cls(word, v, n, g, word * 0x9E3779B1 & _MASK)


# ---- codes ----------------------------------------------------------------------------------------------------------


def flat(x: Tensor) -> Tensor:
    """The elements in the order of memory."""
    return x.as_strided((x.numel(),), (1,))


def _blocks(x: Tensor) -> Tensor:
    return torch.nn.functional.pad(x, (0, -x.numel() % BLOCK)).view(-1, BLOCK)


def _float(bits: Tensor) -> Tensor:
    return bits.to(torch.int32).view(torch.float32)


def encode(x: Tensor, code: Code, draw: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A flat fp32 tensor as uint8 codes and the uint8 exponents of its blocks."""
    blocks = _blocks(x)
    exponent = (blocks.abs().amax(1).view(torch.int32) >> 23) + 1
    exponent = torch.where(exponent >= 254, 255, exponent)  # what is not finite stays so
    inverse = _float((254 - exponent).clamp(min=0) << 23)
    bits = (blocks.abs() * inverse[:, None] + code.delta).flatten()[: x.numel()].view(torch.int32)
    offset = 1 << (code.shift - 1) if draw is None else draw & (1 << code.shift) - 1
    codes = (bits + offset >> code.shift) - code.base
    if code is ROOT:
        codes = torch.where(x > 0, codes.clamp(min=1), codes)  # a root that became 0 would be divided by
    else:
        codes = codes | (x.signbit().to(codes.dtype) << 7)
    return codes.to(torch.uint8), exponent.to(torch.uint8)


def decode(codes: Tensor, exponents: Tensor, code: Code) -> Tensor:
    """The flat fp32 values of flat codes, exactly."""
    magnitudes = codes.to(torch.int32) if code is ROOT else codes.to(torch.int32) & 0x7F
    values = _float(magnitudes + code.base << code.shift) - code.delta
    values = (_blocks(values) * _float(exponents.to(torch.int32) << 23)[:, None]).flatten()[: codes.numel()]
    return values if code is ROOT else torch.where(codes >= 0x80, -values, values)


def to_bf16(x: Tensor, draw: Tensor | None) -> Tensor:
    """fp32 to bf16, to nearest or up with the probability that makes the mean right."""
    if draw is None:
        return x.bfloat16()
    bits = x.view(torch.int32) + (draw & 0xFFFF).to(torch.int32)
    return torch.where(x.isnan(), x, (bits >> 16 << 16).view(torch.float32)).bfloat16()


# ---- states ---------------------------------------------------------------------------------------------------------


def read(x: Tensor, exponents: Tensor | None, code: Code) -> Tensor:
    """A state as the arithmetic takes it, in its own layout."""
    if exponents is None:
        return x.to(compute_dtype(x.dtype))
    values = decode(flat(x), exponents, code)
    if code is ROOT:
        values = values * values
    return values.as_strided(x.shape, x.stride())


def write(
    x: Tensor,
    exponents: Tensor | None,
    value: Tensor,
    code: Code,
    draw: Tensor | None = None,
    keep: Tensor | None = None,
) -> None:
    """Store a value of the same layout in a state, unless the device says to keep what is there."""
    if exponents is not None:
        codes, powers = encode(flat(value).sqrt() if code is ROOT else flat(value), code, draw)
        _store(flat(x), codes, keep)
        _store(exponents, powers, keep)
    elif x.dtype == torch.bfloat16:
        _store(flat(x), to_bf16(flat(value), draw), keep)
    elif x is not value:
        x.copy_(value)


def _store(x: Tensor, value: Tensor, keep: Tensor | None) -> None:
    x.copy_(value if keep is None else torch.where(keep, x, value))


# ---- steps ----------------------------------------------------------------------------------------------------------

#: The lists of a batch that may be coded, in the order of their exponents; their codes, and the draws that round them.
_CODED = (
    ("exp_avgs", SIGNED, "m"),
    ("exp_avg_diffs", SIGNED, "v"),
    ("exp_avg_sqs", ROOT, "n"),
    ("prev_grads", SIGNED, "g"),
)


def is_coded(batch: Batch) -> bool:
    """Whether states or weights of a batch, all of one kind, need more than their types' own arithmetic."""
    rounds = bool(batch.compensations) or batch.draws_weights
    return rounds or batch.exp_avgs[0].dtype != compute_dtype(batch.params[0].dtype)


def update(engine: Engine, batch: Batch, signals: Signals) -> Tensor | None:
    """One step of a coded batch by an engine that knows only plain ones."""
    coded = [(k, *entry) for k, entry in enumerate(_CODED) if getattr(batch, entry[0])]
    if batch.prev_scales:  # a consumed gradient is as backward left it
        coded.pop()
    exponents: list[Sequence[Tensor | None]] = [powers.unbind(1) for powers in batch.exponents]
    exponents = exponents or [(None,) * len(_CODED)] * len(batch.params)
    plain = {
        name: [read(x, rows[k], code) for x, rows in zip(getattr(batch, name), exponents, strict=True)]
        for k, name, code, _ in coded
    }
    params = batch.params
    if batch.compensations:
        params = [p.float() + kept.float() for p, kept in zip(params, batch.compensations, strict=True)]
    elif batch.draws_weights:
        params = [p.float() for p in params]
    keys = [_key(stream, step) for stream, step in zip(batch.streams, batch.steps, strict=True)]
    changed: Any = {"params": params, "cache": {}, **plain}
    way = engine([batch._replace(**changed)], signals)

    keep = None if signals.skip is None else signals.skip > 0
    for i, (p, theta, state) in enumerate(zip(batch.params, params, batch.exp_avgs, strict=True)):
        draws = Draws.of(keys[i], state)
        for k, name, code, draw in coded:
            write(getattr(batch, name)[i], exponents[i][k], plain[name][i], code, getattr(draws, draw), keep)
        if batch.compensations:
            rounded = theta.to(p.dtype)
            _store(batch.compensations[i], (theta - rounded.float()).to(p.dtype), keep)
            _store(p, rounded, keep)
        elif theta is not p:
            _store(p, to_bf16(theta, draws.weight.as_strided(state.shape, state.stride())), keep)
    return way


def _key(stream: int, step: Tensor) -> int | Tensor:
    """Where the draws of a parameter's next step start."""
    t = next_count(step, torch.int64)
    return mix(stream + t & _MASK) if isinstance(t, Tensor) else mix(stream + int(t) & _MASK)
