"""States in 8 or 16 bits, and 16-bit weights that do not stall: how numbers are quantized, read and rounded.

An 8-bit code is a short float of |x| + δ, in blocks of BLOCK elements that are scaled by powers of two::

    code = (bits(|x|·2^-e + δ) + random bits >> shift) − base        x = ±(float((code + base) << shift) − δ)·2^e

Above δ the spacing of the codes grows with the value, below it is uniform, so that small values do not all underflow.
Scaling by powers of two is exact: engines that compute the same number store the same code. The random bits make the
rounding unbiased, without which slow averages stall: a step of 1 − b3 = 1% is less than half a code. They depend on the
seed, the parameter, its step count and the element alone, so runs repeat and replicas agree.

This file is the plain version, in PyTorch's own operations, with which `engines/kernels.py` and `engines/cpu.c` must
agree. `benchmarks/codes.py` measured the codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from adan.columns import STATES, Columns, compute_dtype
from adan.engines import Engine, Memo
from adan.scalars import Signals, next_count

#: What `state_format` may be.
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "8bit": torch.uint8}

#: Elements that share exponents, one of each state, together 4 bytes: with 4 of codes, 4.125 bytes per parameter.
BLOCK = 32

#: Tensors of fewer elements keep fp32 states: they are a thousandth of a model, and often its most sensitive part.
SMALLEST = 4096

Word = TypeVar("Word", int, Tensor)
_MASK = 0xFFFFFFFF


class Code(NamedTuple):
    """The bits of mantissa that a code keeps, and the code of 1: the few above it are for what δ lifts above 1."""

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
        """The float with the bits `base << shift`: the exponent, then `bits` of mantissa."""
        exponent, mantissa = divmod(self.base, 2**self.bits)
        return float(2.0 ** (exponent - 127) * (1 + mantissa / 2**self.bits))


SIGNED = Code(bits=5, one=124)  #: of m, v and the previous gradient; bit 7 is the sign
ROOT = Code(bits=6, one=250)  #: of √n
CODES = {"exp_avg": SIGNED, "exp_avg_diff": SIGNED, "exp_avg_sq": ROOT, "prev_grad": SIGNED}


# ---- random bits ----------------------------------------------------------------------------------------------------


def mix(x: Word) -> Word:
    """A well-known 32-bit finalizer: every bit of `x` changes every bit of the result about half of the time."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D & _MASK
    x = x ^ (x >> 15)
    x = x * 0x846CA68B & _MASK
    return x ^ (x >> 16)


def rng_offset(seed: int, index: int) -> int:
    """Of the parameter at an index: what, mixed with its step count, starts the random bits of a step."""
    return mix((seed + 0x9E3779B9 * (index + 1)) & _MASK)


class RandomBits(NamedTuple):
    """32 random bits for each rounding of an element, of which it takes the low ones.

    Those of the states are one word, rotated by a byte each: the high bits, which decide most, are not shared.
    """

    exp_avg: Tensor
    exp_avg_diff: Tensor
    exp_avg_sq: Tensor
    prev_grad: Tensor
    param: Tensor

    @classmethod
    def of(cls, key: int | Tensor, like: Tensor) -> RandomBits:
        at = torch.arange(like.numel(), dtype=torch.int64, device=like.device)
        word = mix(at + key & _MASK)
        v, n, g = ((word << by | word >> (32 - by)) & _MASK for by in (8, 16, 24))
        return cls(word, v, n, g, word * 0x9E3779B1 & _MASK)


# ---- codes ----------------------------------------------------------------------------------------------------------


def flat(x: Tensor) -> Tensor:
    """The elements in the order of memory."""
    return x.as_strided((x.numel(),), (1,))


def _float(bits: Tensor) -> Tensor:
    return bits.to(torch.int32).view(torch.float32)


def encode(x: Tensor, code: Code, random_bits: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A flat fp32 tensor as uint8 codes and the uint8 exponents of its blocks; to nearest without random bits."""
    whole = x.numel() // BLOCK * BLOCK
    largest = x[:whole].view(-1, BLOCK).abs().amax(1)
    if whole < x.numel():
        largest = torch.cat([largest, x[whole:].abs().amax(0, keepdim=True)])
    exponent = (largest.view(torch.int32) >> 23) + 1
    exponent = torch.where(exponent >= 254, 255, exponent)  # what is not finite stays so
    inverse = _float((254 - exponent).clamp(min=0) << 23)
    bits = (_scaled(x.abs(), inverse) + code.delta).view(torch.int32)
    offset = 1 << (code.shift - 1) if random_bits is None else random_bits & (1 << code.shift) - 1
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
    values = _scaled(values, _float(exponents.to(torch.int32) << 23))
    return values if code is ROOT else torch.where(codes >= 0x80, -values, values)


def _scaled(x: Tensor, scales: Tensor) -> Tensor:
    """A flat tensor, each block times its scale. A last block that is not full is multiplied apart: inductor's vector
    code (torch 2.13, CPU) takes a wrong scale for its elements.
    """
    whole = x.numel() // BLOCK * BLOCK
    blocks = (x[:whole].view(-1, BLOCK) * scales[: whole // BLOCK, None]).flatten()
    return blocks if whole == x.numel() else torch.cat([blocks, x[whole:] * scales[-1]])


def to_bf16(x: Tensor, random_bits: Tensor | None) -> Tensor:
    """fp32 to bf16, to nearest or up with the probability that makes the mean right."""
    if random_bits is None:
        return x.bfloat16()
    bits = x.view(torch.int32) + (random_bits & 0xFFFF).to(torch.int32)
    return torch.where(x.isnan(), x, (bits >> 16 << 16).view(torch.float32)).bfloat16()


# ---- states ---------------------------------------------------------------------------------------------------------


def read(x: Tensor, exponents: Tensor | None, code: Code) -> Tensor:
    """A state as the arithmetic takes it, in its own layout."""
    if exponents is None:
        return x if x.is_complex() else x.to(compute_dtype(x.dtype))
    values = decode(flat(x), exponents, code)
    if code is ROOT:
        values = values * values
    return values.as_strided(x.shape, x.stride())


def write(
    x: Tensor,
    exponents: Tensor | None,
    value: Tensor,
    code: Code,
    random_bits: Tensor | None = None,
    keep: Tensor | None = None,
) -> None:
    """Store a value of the same layout in a state, unless the device says to keep what is there."""
    if exponents is not None:
        codes, powers = encode(flat(value).sqrt() if code is ROOT else flat(value), code, random_bits)
        _store(flat(x), codes, keep)
        _store(exponents, powers, keep)
    elif x.dtype == torch.bfloat16:
        _store(flat(x), to_bf16(flat(value), random_bits), keep)
    elif x is not value:
        x.copy_(value)


def _store(x: Tensor, value: Tensor, keep: Tensor | None) -> None:
    x.copy_(value if keep is None else torch.where(keep, x, value))


# ---- steps ----------------------------------------------------------------------------------------------------------


def update(engine: Engine, columns: Columns, memo: Memo, signals: Signals) -> Tensor | None:
    """One step by an engine that knows only plain states and plain rounding: read, step, write back."""
    rows = [i for i in range(len(columns.param)) if _is_special(columns, i)]
    if not rows:
        return engine.update(columns, memo, signals)
    plain = columns._replace(**{name: list(getattr(columns, name)) for name in ("param", *STATES)})
    keys = {}
    for i in rows:
        keys[i] = _key(columns.rng_offset[i], columns.step[i])
        for name, exponents in _rounded_states(columns, i):
            getattr(plain, name)[i] = read(getattr(columns, name)[i], exponents, CODES[name])
        p, compensation = columns.param[i], columns.compensation[i]
        if compensation is not None:
            plain.param[i] = p.float() + compensation.float()
        elif columns.rounds_stochastically(i):
            plain.param[i] = p.float()
    displacement = engine.update(plain, memo, signals)

    keep = None if signals.skip is None else signals.skip > 0
    for i in rows:
        state, p, theta = columns.exp_avg[i], columns.param[i], plain.param[i]
        bits = RandomBits.of(keys[i], state)
        for name, exponents in _rounded_states(columns, i):
            x, value = getattr(columns, name)[i], getattr(plain, name)[i]
            write(x, exponents, value, CODES[name], getattr(bits, name), keep)
        if columns.compensation[i] is not None:
            rounded = _round_trip(theta, p.dtype)
            _store(columns.compensation[i], (theta - rounded).to(p.dtype), keep)
            _store(p, rounded.to(p.dtype), keep)
        elif theta is not p:
            _store(p, to_bf16(theta, bits.param.as_strided(state.shape, state.stride())), keep)
    return displacement


def _is_special(columns: Columns, i: int) -> bool:
    """Whether a row's states or weights need more than their types' own arithmetic."""
    plain = columns.exp_avg[i].dtype == compute_dtype(columns.param[i].dtype)
    return not plain or columns.compensation[i] is not None or columns.rounds_stochastically(i)


def _rounded_states(columns: Columns, i: int) -> list[tuple[str, Tensor | None]]:
    """The states of a row by name, with the exponents of their blocks; not a consumed gradient, as backward left it."""
    exponents: Sequence[Any] = [None] * len(STATES) if columns.exponents[i] is None else columns.exponents[i].unbind(1)
    absent = {"exp_avg_diff": columns.exp_avg_diff[i] is None, "prev_grad": columns.prev_scale[i] is not None}
    return [(name, powers) for name, powers in zip(STATES, exponents, strict=True) if not absent.get(name)]


def _round_trip(x: Tensor, dtype: torch.dtype) -> Tensor:
    """fp32 rounded to half precision and back, through its bits: a compiler may drop a cast that is cast back."""
    bits = x.to(dtype).view(torch.int16).to(torch.int32)
    return (bits & 0xFFFF).to(torch.int16).view(dtype).float()


def _key(offset: int, step: Tensor) -> int | Tensor:
    """Where the random bits of a parameter's next step start."""
    t = next_count(step, torch.int64)
    return mix(offset + t & _MASK) if isinstance(t, Tensor) else mix(offset + int(t) & _MASK)
