"""States in 4, 8 or 16 bits, and 16-bit weights that do not stall: quantization, dequantization and rounding.

A code of 4, 6 or 8 bits is a short float of |x| + δ, in blocks of BLOCK elements that are scaled by powers of two::

    code = (bits(|x|·2^-e + δ) + random bits >> shift) − base        x = ±(float((code + base) << shift) − δ)·2^e

Above δ the spacing of the codes grows with the value, below it is uniform, so that small values do not all underflow.
Scaling by powers of two is exact: engines that compute the same number store the same code. The random bits make the
rounding unbiased, without which slow averages stall: a step of 1 − b3 = 1% is less than half a code. They depend on the
seed, the parameter, its step count and the element alone, so runs repeat and replicas agree. From step to step they
advance by a constant near the golden ratio, so that an element rounded down is soon rounded up: with independent bits
the error of the update is 1.2 to 1.5 times as large.

In the 4-bit format m and √n keep 6 bits, because what rounding does to them reaches the update whole. Not so for the
other two: the average v of differences is stored as a = g − 11.5·v, which for b2 = 0.92 is the moving average of the
gradients themselves, so that its rounding reaches v divided by 11.5, and that of the previous gradient cancels.

This file is the plain version, in PyTorch's own operations, with which `engines/codes.py` and `engines/cpu.c` must
agree. `benchmarks/codes.py`, in the history up to commit 583acd33, measured the codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from adan.columns import STATES, compute_dtype
from adan.scalars import host_readable, replaced

#: What `state_format` may be.
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "8bit": torch.uint8, "4bit": torch.uint8}

#: Elements that share exponents, one of each state, together 4 bytes: with 4 of codes, 4.125 bytes per parameter in
#: the 8-bit format, and with 2.5, 2.625 in the 4-bit format.
BLOCK = 32

#: Tensors of fewer elements keep fp32 states: they are a thousandth of a model, and often its most sensitive part.
SMALLEST = 4096

Word = TypeVar("Word", int, Tensor)
_MASK = 0xFFFFFFFF


class Code(NamedTuple):
    """The bits of mantissa that a code keeps, and the code of 1: the few above it are for what δ lifts above 1.

    The highest bit of a signed code is the sign. The rest follows from these; `torch.compile` of torch 2.10 and older
    cannot trace properties of a NamedTuple, hence fields.
    """

    bits: int
    one: int
    width: int
    signed: bool
    shift: int
    base: int
    delta: float  #: the float with the bits `base << shift`: the exponent, then `bits` of mantissa

    @classmethod
    def of(cls, bits: int, one: int, width: int = 8, signed: bool = True) -> Code:
        base = (127 << bits) - one
        exponent, mantissa = divmod(base, 2**bits)
        delta = float(2.0 ** (exponent - 127) * (1 + mantissa / 2**bits))
        return cls(bits, one, width, signed, 23 - bits, base, delta)


SIGNED, ROOT = Code.of(bits=5, one=124), Code.of(bits=6, one=250, signed=False)
SIGNED6, ROOT6 = Code.of(bits=3, one=30, width=6), Code.of(bits=4, one=61, width=6, signed=False)
SIGNED4 = Code.of(bits=2, one=5, width=4)

#: By format and state; of n the root is stored.
CODES = {
    "8bit": {"exp_avg": SIGNED, "exp_avg_diff": SIGNED, "exp_avg_sq": ROOT, "prev_grad": SIGNED},
    "4bit": {"exp_avg": SIGNED6, "exp_avg_diff": SIGNED4, "exp_avg_sq": ROOT6, "prev_grad": SIGNED4},
}

#: The states that have two codes per byte. A code of √n in 6 bits has its upper 4 there and the others above m's.
PACKED = {"8bit": (), "4bit": ("exp_avg_diff", "exp_avg_sq", "prev_grad")}


# ---- random bits ----------------------------------------------------------------------------------------------------
def mix(x: Word) -> Word:
    """A well-known 32-bit finalizer: every bit of `x` changes every bit of the result about half of the time."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D & _MASK
    x = x ^ (x >> 15)
    x = x * 0x846CA68B & _MASK
    return x ^ (x >> 16)


def rng_offset(seed: int, index: int) -> int:
    """RNG offset of the parameter at `index`."""
    return mix((int(seed) + 0x9E3779B9 * (index + 1)) & _MASK)


#: What makes the words of four neighbors of one hash. The low bytes were searched for words without correlation.
SPREAD = (1, 0x2265B147, 0x91B7584B, 0xD8F16AB1)

#: What is added to all words in each step. Its lowest 8, 16, 24 and 32 bits are all near the golden ratio's share of
#: their range, because each byte of a word leads the random bits of another state.
ADVANCE = 0x9F9F9F9F

#: What is added to them in each cycle between restarts, which begin to count steps anew: without it, every cycle would
#: round every element as the one before.
ADVANCE_CYCLE = 0xC2C2C2C2

#: What makes the word of a weight. In its low 16 bits, ADVANCE becomes near the golden ratio's share, too.
OF_WEIGHT = 0x9E37B02F


class RandomBits(NamedTuple):
    """32 random bits for each rounding of an element, of which codes take the low 24 and bf16 the low 16.

    Those of the states are one word, rotated by a byte each: the high bits, which decide most, are not shared. Only in
    the 4-bit format `exp_avg_diff` is rounded with those of `prev_grad`: v is the difference of the two, and the first
    steps divide it by a small 1 − b2ᵗ.
    """

    exp_avg: Tensor
    exp_avg_diff: Tensor
    exp_avg_sq: Tensor
    prev_grad: Tensor
    param: Tensor

    @classmethod
    def of(cls, offset: int, step: int | Tensor, like: Tensor, cycle: int | Tensor = 0) -> RandomBits:
        """The bits of a parameter of `rng_offset` at its step of this number, in the cycle of this number."""
        at = torch.arange(-(-like.numel() // len(SPREAD)), dtype=torch.int64, device=like.device)
        shared = mix(at + offset & _MASK)
        word = torch.stack([shared * factor for factor in SPREAD], 1).flatten()[: like.numel()]
        word = word + step * ADVANCE + cycle * ADVANCE_CYCLE & _MASK
        v, n, g = ((word << by | word >> (32 - by)) & _MASK for by in (8, 16, 24))
        return cls(word, v, n, g, word * OF_WEIGHT & _MASK)


# ---- codes ----------------------------------------------------------------------------------------------------------
def flat(x: Tensor) -> Tensor:
    """The elements in memory order."""
    return x.as_strided((x.numel(),), (1,))


def _float(bits: Tensor) -> Tensor:
    return bits.to(torch.int32).view(torch.float32)


def encode(x: Tensor, code: Code, random_bits: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A flat fp32 tensor as uint8 codes and the uint8 exponents of its blocks; to nearest without random bits.

    Numbers that were codes become the same codes to nearest: rounding may have taken the largest of a block, by which
    its exponent was chosen, to the other side of a power of two.
    """
    exponent = (_largest(x).view(torch.int32) >> 23) + 1
    if random_bits is None:
        for other in ((exponent + 1).clamp(max=253), (exponent - 1).clamp(min=1)):
            exponent = torch.where(_is_exact(x, code, other) & ~_is_exact(x, code, exponent), other, exponent)
    exponent = torch.where(exponent >= 254, 255, exponent)  # what is not finite stays so
    codes = _magnitudes(x, exponent, code, random_bits)
    if code.signed:
        codes = codes | (x.signbit().to(codes.dtype) << (code.width - 1))
    else:
        codes = torch.where(x > 0, codes.clamp(min=1), codes)  # a root that became 0 would be divided by
    return codes.to(torch.uint8), exponent.to(torch.uint8)


def _magnitudes(x: Tensor, exponent: Tensor, code: Code, random_bits: Tensor | None) -> Tensor:
    """Codes without signs."""
    inverse = _float((254 - exponent).clamp(min=0) << 23)
    bits = (_scaled(x.abs(), inverse) + code.delta).view(torch.int32)
    offset = 1 << (code.shift - 1) if random_bits is None else (random_bits & 0xFFFFFF) >> (24 - code.shift)
    return (bits + offset >> code.shift) - code.base


def _is_exact(x: Tensor, code: Code, exponent: Tensor) -> Tensor:
    """Whether the numbers of each block are codes with this exponent, up to the rounding of fp32."""
    highest = 2 ** (code.width - code.signed) - 1
    codes = _magnitudes(x, exponent, code, None).clamp(0, highest)
    return _largest(decode(codes, exponent, replaced(code, signed=False)) - x.abs()) <= 1e-5 * _largest(x)


def _largest(x: Tensor) -> Tensor:
    """The largest magnitude of each block of a flat tensor."""
    return torch.nn.functional.pad(x.abs(), (0, -x.numel() % BLOCK)).view(-1, BLOCK).amax(1)


def decode(codes: Tensor, exponents: Tensor, code: Code) -> Tensor:
    """The flat fp32 values of flat codes, exactly."""
    sign = 1 << (code.width - 1)
    magnitudes = codes.to(torch.int32) & sign - 1 if code.signed else codes.to(torch.int32)
    values = _float(magnitudes + code.base << code.shift) - code.delta
    values = _scaled(values, _float(exponents.to(torch.int32) << 23))
    return torch.where(codes >= sign, -values, values) if code.signed else values


def _scaled(x: Tensor, scales: Tensor) -> Tensor:
    """A flat tensor, each block times its scale."""
    # A last block that is not full apart: inductor's vector code (torch 2.13, CPU) takes a wrong scale for it.
    whole = x.numel() // BLOCK * BLOCK
    blocks = (x[:whole].view(-1, BLOCK) * scales[: whole // BLOCK, None]).flatten()
    return blocks if whole == x.numel() else torch.cat([blocks, x[whole:] * scales[-1]])


def pack(codes: Tensor) -> Tensor:
    """Flat 4-bit codes, two per byte, the first in the low bits; a row for each block, the last one filled with 0."""
    filled = torch.nn.functional.pad(codes, (0, -codes.numel() % BLOCK)).view(-1, BLOCK // 2, 2)
    return filled[..., 0] | filled[..., 1] << 4


def unpack(packed: Tensor, size: int) -> Tensor:
    """The first `size` codes, flat."""
    return torch.stack((packed & 15, packed >> 4), -1).flatten()[:size]


def stored(codes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The 4-bit format's flat codes by state, as its flat states hold them."""
    n = codes["exp_avg_sq"]
    parts = {**codes, "exp_avg": codes["exp_avg"] | n << 6, "exp_avg_sq": n >> 2}
    return {name: pack(x).flatten() if name in PACKED["4bit"] else x for name, x in parts.items()}


def codes_of(states: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Inverse of `stored`."""
    m = flat(states["exp_avg"])
    parts = {name: unpack(x, m.numel()) if name in PACKED["4bit"] else m for name, x in states.items()}
    return {**parts, "exp_avg": m & 63, "exp_avg_sq": parts["exp_avg_sq"] << 2 | m >> 6}


def to_bf16(x: Tensor, random_bits: Tensor | None) -> Tensor:
    """Round fp32 to bf16, to nearest or stochastically, without bias."""
    if random_bits is None:
        return x.bfloat16()
    bits = x.view(torch.int32) + (random_bits & 0xFFFF).to(torch.int32)
    return torch.where(x.isnan(), x, (bits >> 16 << 16).view(torch.float32)).bfloat16()


# ---- states ---------------------------------------------------------------------------------------------------------
def format_of(exp_avg: Tensor, exp_avg_sq: Tensor) -> str | None:
    """The format of the quantized states of a parameter; None if they are not quantized."""
    if exp_avg_sq.dtype != torch.uint8:
        return None
    return "8bit" if exp_avg.shape == exp_avg_sq.shape else "4bit"


def averaging(b2: float) -> float:
    """A, for which g − A·v, which 4 bits store for v, is the average of the gradients so far. With any other, g and A·v
    differ in size, and the smaller of the two is lost in the rounding of the larger.
    """
    return b2 / (1 - b2)


def _factors(state: Mapping[str, Tensor]) -> tuple[float | Tensor, float | Tensor]:
    """A and 1 / A. Where A = b2 = 0 nothing is lost by a v of 0, of which nothing remains."""
    factor = state["averaging"]
    if host_readable(factor):
        number = factor.item()
        return number, 1 / number if number else 0.0
    return factor, torch.where(factor > 0, 1 / factor, 0.0)


def read(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The averages and the previous gradient of a parameter, dequantized, in its layout."""
    states = {name: state[name] for name in STATES if name in state}
    name_of_format = format_of(states["exp_avg"], states["exp_avg_sq"])
    if name_of_format is None:
        return {name: x if x.is_complex() else x.to(compute_dtype(x.dtype)) for name, x in states.items()}
    exponents = state["exponents"]
    codes = codes_of(states) if name_of_format == "4bit" else {name: flat(x) for name, x in states.items()}
    like, values = states["exp_avg"], {}  # never packed
    for name, code in CODES[name_of_format].items():
        if name in codes:
            value = decode(codes[name], exponents[:, STATES.index(name)], code)
            values[name] = (value if code.signed else value * value).as_strided(like.shape, like.stride())
    if name_of_format == "4bit" and "exp_avg_diff" in values:
        values["exp_avg_diff"] = (values["prev_grad"] - values["exp_avg_diff"]) * _factors(state)[1]
    return values


def write(
    state: Mapping[str, Tensor],
    values: Mapping[str, Tensor],
    random_bits: RandomBits | None = None,
    keep: Tensor | None = None,
) -> None:
    """Store values, in the parameter's layout, unless the device decides to skip the step."""
    states = {name: state[name] for name in STATES if name in state}
    name_of_format = format_of(states["exp_avg"], states["exp_avg_sq"])
    if name_of_format is None:
        for name, x in states.items():
            if x.dtype == torch.bfloat16:
                bits = None if random_bits is None else getattr(random_bits, name)
                store(flat(x), to_bf16(flat(values[name]), bits), keep)
            elif x is not values[name]:
                x.copy_(values[name])
        return
    if name_of_format == "4bit" and "exp_avg_diff" in states:
        values = {**values, "exp_avg_diff": values["prev_grad"] - _factors(state)[0] * values["exp_avg_diff"]}
    codes = {}
    for name in states:
        code, value = CODES[name_of_format][name], flat(values[name])
        bits = None if random_bits is None else getattr(random_bits, "prev_grad" if code.width == 4 else name)
        codes[name], powers = encode(value if code.signed else value.sqrt(), code, bits)
        store(state["exponents"][:, STATES.index(name)], powers, keep)
    for name, x in (stored(codes) if name_of_format == "4bit" else codes).items():
        store(flat(states[name]), x, keep)


def store(x: Tensor, value: Tensor, keep: Tensor | None) -> None:
    x.copy_(value if keep is None else torch.where(keep, x, value))
