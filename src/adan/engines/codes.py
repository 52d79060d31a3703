"""Codes of quantized states in the Triton kernels: `adan.lowbit` in Triton, with each block a row of a tensor.

Every function has two forms. The plain one is Triton's own; it serves in the interpreter and where there is no PTX. The
other is PTX, because the step is bound by instructions rather than memory: 8 codes of 4 bits are one register, 4 of 6
or 8 bits are one, pairs of numbers are read in half precision, which is exact, and rounding, random bits and base are
one multiplication and addition.
"""

from __future__ import annotations

import struct

import torch
import triton
import triton.language as tl

from adan import lowbit
from adan.lowbit import ROOT, ROOT6, SIGNED, SIGNED4, SIGNED6, Code

SHARED = tl.constexpr(lowbit.BLOCK)
SPREAD_1, SPREAD_2, SPREAD_3 = map(tl.constexpr, lowbit.SPREAD[1:])
ADVANCE = tl.constexpr(lowbit.ADVANCE)
ADVANCE_CYCLE = tl.constexpr(lowbit.ADVANCE_CYCLE)
OF_WEIGHT = tl.constexpr(lowbit.OF_WEIGHT)


def _in_halves(code: Code) -> tuple[int, int]:
    """A pair of half-precision numbers δ, and the factor that takes a code to its place in their mantissa."""
    delta = int.from_bytes(struct.pack("<e", code.delta), "little")
    return delta * 0x10001, 1 << 10 - code.bits


def _read_bytes(code: Code, words: int = 1) -> str:
    """The four codes of each word (the last operands) as four numbers ($0 on), not scaled."""
    delta, place = _in_halves(code)
    lines = [".reg .b32 c, x, d;", ".reg .b16 low, high;", f"mov.b32 d, {delta};"]
    for first in range(0, 4 * words, 2):
        lines += [f"prmt.b32 c, ${4 * words + first // 4}, 0, {0x4342 if first % 4 else 0x4140};"]
        magnitudes = 0x10001 * ((1 << code.width - 1) - 1)
        lines += [f"and.b32 x, c, {magnitudes};"] if code.signed else ["mov.b32 x, c;"]
        lines += [f"mad.lo.u32 x, x, {place}, d;", "sub.f16x2 x, x, d;"]
        lines += [f"shl.b32 c, c, {16 - code.width};", "lop3.b32 x, c, x, 0x80008000, 0x6c;"] if code.signed else []
        lines += ["mov.b32 {low, high}, x;", f"cvt.f32.f16 ${first}, low;", f"cvt.f32.f16 ${first + 1}, high;"]
    return "{" + "\n".join(lines) + "}"


def _read_nibbles(code: Code) -> str:
    """Eight codes ($8) as eight numbers ($0 to $7), not scaled: those of the nibbles i and i + 4 are a pair."""
    delta, place = _in_halves(code)
    lines = [".reg .b32 c, x, d;", ".reg .b16 low, high;", f"mov.b32 d, {delta};"]
    for i in range(4):
        if place >> 4 * i:
            lines += [f"and.b32 x, $8, {0x70007 << 4 * i};", f"mad.lo.u32 x, x, {place >> 4 * i}, d;"]
        else:
            lines += [f"shr.u32 x, $8, {4 * i};", "and.b32 x, x, 0x70007;", f"mad.lo.u32 x, x, {place}, d;"]
        lines += ["sub.f16x2 x, x, d;", f"shl.b32 c, $8, {12 - 4 * i};", "lop3.b32 x, c, x, 0x80008000, 0x6c;"]
        lines += ["mov.b32 {low, high}, x;", f"cvt.f32.f16 ${i}, low;", f"cvt.f32.f16 ${i + 4}, high;"]
    return "{" + "\n".join(lines) + "}"


def _rounded(code: Code, rotation: int, to: str, x: str, scale: str, word: str) -> list[str]:
    """A code in the highest byte of a register. The random bits are the low 24 of a rotated word, under the base."""
    select = {0: 0x4210, 8: 0x4103, 16: 0x4032, 24: 0x4321}[rotation]
    return [
        f"abs.f32 a, {x};",
        f"fma.rn.f32 a, a, {scale}, 0f{struct.pack('>f', code.delta).hex()};",
        f"prmt.b32 r, {word}, {-code.base % 256}, {select};",
        f"mov.b32 {to}, a;",
        f"mad.lo.u32 {to}, {to}, {1 << 24 - code.shift}, r;",
        # A root that became 0 would be divided by.
        *([] if code.signed else [f"mov.b32 r, {x};", f"min.u32 r, r, {1 << 24};", f"max.u32 {to}, {to}, r;"]),
    ]


def _write_bytes(code: Code, rotation: int) -> str:
    """Four numbers ($1 to $4), their scales ($5 to $8) and random words ($9 to $12) as four codes ($0)."""
    lines = [".reg .f32 a;", ".reg .b32 r, t<4>;"]
    for i in range(4):
        lines += _rounded(code, rotation, f"t{i}", f"${1 + i}", f"${5 + i}", f"${9 + i}")
        lines += [f"lop3.b32 t{i}, ${1 + i}, t{i}, 0x80000000, 0xec;"] if code.signed else []
    return "{" + "\n".join([*lines, *_highest_bytes("$0", [f"t{i}" for i in range(4)])]) + "}"


def _write_eight(code: Code, rotation: int) -> str:
    """Eight numbers ($2 to $9), their scale ($10) and random words ($11 to $18) as codes: of 4 bits in one word ($0),
    of 6 bits in the bytes of two ($0, $1).
    """
    lines = [".reg .f32 a;", ".reg .b32 r, t<8>, c<2>, s<2>;"]
    for i in range(8):
        lines += _rounded(code, rotation, f"t{i}", f"${2 + i}", "$10", f"${11 + i}")
    # Of every other number, or of each half, the highest byte of its code, and of itself for the sign.
    for i in range(2):
        part = range(i, 8, 2) if code.width == 4 else range(4 * i, 4 * i + 4)
        lines += _highest_bytes(f"c{i}", [f"t{j}" for j in part])
        lines += _highest_bytes(f"s{i}", [f"${2 + j}" for j in part]) if code.signed else []
    if code.width == 4:
        lines += ["mad.lo.u32 c0, c1, 16, c0;", "shr.u32 s0, s0, 4;", "lop3.b32 c0, s0, c0, 0x08080808, 0xec;"]
        lines += ["lop3.b32 $0, s1, c0, 0x80808080, 0xec;", "mov.b32 $1, 0;"]
    for i in range(2 if code.width == 6 else 0):
        signs = [f"shr.u32 s{i}, s{i}, 2;", f"lop3.b32 ${i}, s{i}, c{i}, 0x20202020, 0xec;"]
        lines += signs if code.signed else [f"mov.b32 ${i}, c{i};"]
    return "{" + "\n".join(lines) + "}"


def _highest_bytes(to: str, of: list[str]) -> list[str]:
    """The highest bytes of four registers in one."""
    return [f"prmt.b32 {to}, {of[0]}, {of[1]}, 0x73;", f"prmt.b32 r, {of[2]}, {of[3]}, 0x73;",
            f"prmt.b32 {to}, {to}, r, 0x5410;"]  # fmt: skip


READ_SIGNED, READ_ROOT = tl.constexpr(_read_bytes(SIGNED)), tl.constexpr(_read_bytes(ROOT))
READ_SIGNED6, READ_ROOT6 = tl.constexpr(_read_bytes(SIGNED6, 2)), tl.constexpr(_read_bytes(ROOT6, 2))
READ_SIGNED4 = tl.constexpr(_read_nibbles(SIGNED4))
# Of m, v and g: the random bits of each state are rotated further.
WRITE_M, WRITE_V, WRITE_G = (tl.constexpr(_write_bytes(SIGNED, 8 * state)) for state in (0, 1, 3))
WRITE_SIGNED4 = tl.constexpr(_write_eight(SIGNED4, 24))  # a and g, of which v is read: the same random bits
WRITE_M6, WRITE_ROOT6 = tl.constexpr(_write_eight(SIGNED6, 0)), tl.constexpr(_write_eight(ROOT6, 16))
WRITE_ROOT = tl.constexpr(_write_bytes(ROOT, 16))

# Of the plain forms: shift, shifted base and δ; the factor and the highest byte that make a code, as in `_rounded`.
_CODES = {"SIGNED": SIGNED, "ROOT": ROOT, "SIGNED6": SIGNED6, "ROOT6": ROOT6, "SIGNED4": SIGNED4}
for _name, _code in _CODES.items():
    _constants = (_code.shift, _code.base << _code.shift, _code.delta, 1 << 24 - _code.shift, -_code.base % 256 << 24)
    for _suffix, _constant in zip(("SHIFT", "BASE", "DELTA", "LIFT", "TOP"), _constants, strict=True):
        globals()[f"{_name}_{_suffix}"] = tl.constexpr(_constant)


# ---- random bits ----------------------------------------------------------------------------------------------------
@triton.jit
def mix(x):
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    return x ^ (x >> 16)


#: Whether this is for an NVIDIA GPU, and not for Triton's interpreter.
PTX = tl.constexpr(torch.version.hip is None and isinstance(mix, triton.JITFunction))


@triton.jit
def random_words(key, moved, block):
    """32 random bits for each element of blocks: neighbors take multiples of one hash. moved: by the steps so far."""
    first = (block[:, None] * (SHARED // 4) + tl.arange(0, SHARED // 8)[None, :] * 2).to(tl.uint32) + key
    a, b = mix(first), mix(first + 1)
    return moved + together(a, a * SPREAD_1, a * SPREAD_2, a * SPREAD_3, b, b * SPREAD_1, b * SPREAD_2, b * SPREAD_3)


@triton.jit
def rotated(word, by: tl.constexpr):
    return (word << by) | (word >> (32 - by))


# ---- codes to numbers -----------------------------------------------------------------------------------------------
@triton.jit
def scaled(numbers, power, factor):
    """Numbers of blocks times a factor and the power of two of their exponents, in the low byte of `power`."""
    return numbers * (((power & 255) << 23).to(tl.float32, bitcast=True) * factor)[:, None]


@triton.jit
def signed_numbers(codes, PACKED: tl.constexpr):
    """Numbers of the codes of blocks, not scaled."""
    if PTX:
        if PACKED:
            return eight_numbers(codes, codes, READ_SIGNED4)
        else:
            return tl.inline_asm_elementwise(READ_SIGNED, "=f,=f,=f,=f,r", [codes], tl.float32, True, 4)
    elif PACKED:
        codes = bytes_of(spread_nibbles(codes), spread_nibbles(codes >> 16))
        return signed(codes << 28, number(codes & 7, SIGNED4_SHIFT, SIGNED4_BASE, SIGNED4_DELTA))
    else:
        codes = codes.to(tl.int32)
        return signed(codes << 24, number(codes & 127, SIGNED_SHIFT, SIGNED_BASE, SIGNED_DELTA))


@triton.jit
def root_numbers(codes):
    if PTX:
        return tl.inline_asm_elementwise(READ_ROOT, "=f,=f,=f,=f,r", [codes], tl.float32, True, 4)
    else:
        return number(codes.to(tl.int32), ROOT_SHIFT, ROOT_BASE, ROOT_DELTA)


@triton.jit
def six_bit_numbers(low, high, nibbles):
    """Numbers m and √n, not scaled. low, high: two words of four bytes with codes of m and two bits of n each."""
    n_low = (spread_nibbles(nibbles) << 2) | ((low >> 6) & 0x03030303)
    n_high = (spread_nibbles(nibbles >> 16) << 2) | ((high >> 6) & 0x03030303)
    if PTX:
        return eight_numbers(low, high, READ_SIGNED6), eight_numbers(n_low, n_high, READ_ROOT6)
    else:
        codes = bytes_of(low, high)
        m = signed(codes << 26, number(codes & 31, SIGNED6_SHIFT, SIGNED6_BASE, SIGNED6_DELTA))
        return m, number(bytes_of(n_low, n_high), ROOT6_SHIFT, ROOT6_BASE, ROOT6_DELTA)


@triton.jit
def spread_nibbles(word):
    """The low four nibbles of a word as its bytes."""
    word = (word & 0xFF) | ((word & 0xFF00) << 8)
    return (word | (word << 4)) & 0x0F0F0F0F


@triton.jit
def joined_nibbles(word):
    """Inverse of `spread_nibbles`, for bytes of which only the low nibble is set."""
    word = (word | (word >> 4)) & 0x00FF00FF
    return (word | (word >> 8)) & 0xFFFF


@triton.jit
def bytes_of(low, high):
    at = tl.arange(0, 8)[None, None, :]
    words = tl.where(at < 4, low[:, :, None], high[:, :, None])
    return tl.reshape((words >> (8 * (at & 3))) & 255, (low.shape[0], SHARED))


@triton.jit
def number(size, SHIFT: tl.constexpr, BASE: tl.constexpr, DELTA: tl.constexpr):
    return ((size << SHIFT) + BASE).to(tl.float32, bitcast=True) - DELTA


@triton.jit
def signed(sign, x):
    """A number that is not negative, with the sign in the highest bit of an integer."""
    return ((sign & -(2**31)) | x.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)


@triton.jit
def eight_numbers(low, high, ASM: tl.constexpr):
    """The eight codes of one word, passed twice, or of two, as numbers along the last dimension."""
    x0, x1, x2, x3, x4, x5, x6, x7 = tl.inline_asm_elementwise(
        ASM, "=f,=f,=f,=f,=f,=f,=f,=f,r,r", [low, high],
        (tl.float32, tl.float32, tl.float32, tl.float32, tl.float32, tl.float32, tl.float32, tl.float32), True, 1,
    )  # fmt: skip
    return together(x0, x1, x2, x3, x4, x5, x6, x7)


# ---- numbers to codes -----------------------------------------------------------------------------------------------
@triton.jit
def exponents(size):
    """For each block of numbers that are not negative, the exponent of a power of two above all, and the inverse of
    that power, in a column; 255 and 0 if one is not finite.
    """
    if PTX:
        largest = tl.reduce(size, 1, _larger).to(tl.int32, bitcast=True)
    else:
        largest = tl.max(size.to(tl.int32, bitcast=True), 1)
    largest &= 0x7F800000
    power = tl.where(largest >= 253 << 23, 255, (largest >> 23) + 1)
    return power, tl.maximum((253 << 23) - largest, 0).to(tl.float32, bitcast=True)[:, None]


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def signed_codes(x, words, STATE: tl.constexpr, PACKED: tl.constexpr):
    """Codes of blocks, and their exponents at the state's place in the word of a block."""
    power, scale = exponents(tl.abs(x))
    if PTX:
        if PACKED:
            codes, _ = eight_codes(x, scale, words, WRITE_SIGNED4)
        else:
            codes = four(x, scale, words, WRITE_M if STATE == 0 else WRITE_V if STATE == 1 else WRITE_G)
    elif PACKED:
        codes = rounded(tl.abs(x) * scale, rotated(words, 24), SIGNED4_LIFT, SIGNED4_TOP, SIGNED4_DELTA)
        low, high = bytes_joined((codes >> 24) | ((x.to(tl.uint32, bitcast=True) >> 28) & 8))
        codes = joined_nibbles(low) | (joined_nibbles(high) << 16)
    else:
        codes = rounded(tl.abs(x) * scale, rotated(words, 8 * STATE), SIGNED_LIFT, SIGNED_TOP, SIGNED_DELTA)
        codes = ((codes | (x.to(tl.uint32, bitcast=True) & 0x80000000)) >> 24).to(tl.uint8)
    return codes, power << (8 * STATE)


@triton.jit
def root_codes(x, words):
    power, scale = exponents(x)
    if PTX:
        codes = four(x, scale, words, WRITE_ROOT)
    else:
        codes = rounded(x * scale, rotated(words, 16), ROOT_LIFT, ROOT_TOP, ROOT_DELTA)
        # A root that became 0 would be divided by.
        codes = (tl.maximum(codes, tl.minimum(x.to(tl.uint32, bitcast=True), 1 << 24)) >> 24).to(tl.uint8)
    return codes, power << 16


@triton.jit
def six_bit_codes(m, root, words):
    """Codes of m and √n as they are stored: m's and two bits of n's in two words of bytes, nibbles; and exponents."""
    power_m, scale_m = exponents(tl.abs(m))
    power_n, scale_n = exponents(root)
    if PTX:
        low, high = eight_codes(m, scale_m, words, WRITE_M6)
        n_low, n_high = eight_codes(root, scale_n, words, WRITE_ROOT6)
    else:
        codes = rounded(tl.abs(m) * scale_m, words, SIGNED6_LIFT, SIGNED6_TOP, SIGNED6_DELTA) >> 24
        low, high = bytes_joined(codes | ((m.to(tl.uint32, bitcast=True) >> 26) & 32))
        codes = rounded(root * scale_n, rotated(words, 16), ROOT6_LIFT, ROOT6_TOP, ROOT6_DELTA)
        n_low, n_high = bytes_joined(tl.maximum(codes, tl.minimum(root.to(tl.uint32, bitcast=True), 1 << 24)) >> 24)
    low |= (n_low & 0x03030303) << 6
    high |= (n_high & 0x03030303) << 6
    nibbles = joined_nibbles((n_low >> 2) & 0x0F0F0F0F) | (joined_nibbles((n_high >> 2) & 0x0F0F0F0F) << 16)
    return low, high, nibbles, power_m | (power_n << 16)


@triton.jit
def bytes_joined(codes):
    """Codes of blocks, four to a word: those of the first and of the second word of each eight."""
    at = tl.arange(0, 8)[None, None, :]
    codes = tl.reshape(codes.to(tl.int32), (codes.shape[0], SHARED // 8, 8)) << (8 * (at & 3))
    return tl.sum(tl.where(at < 4, codes, 0), 2), tl.sum(tl.where(at < 4, 0, codes), 2)


@triton.jit
def rounded(size, word, LIFT: tl.constexpr, TOP: tl.constexpr, DELTA: tl.constexpr):
    """Codes without their signs, in the highest byte."""
    return (size + DELTA).to(tl.uint32, bitcast=True) * LIFT + ((word & 0xFFFFFF) | TOP)


@triton.jit
def four(x, scale, words, ASM: tl.constexpr):
    return tl.inline_asm_elementwise(ASM, "=r,f,f,f,f,f,f,f,f,r,r,r,r", [x, scale, words], tl.uint8, True, 4)


@triton.jit
def eight_codes(x, scale, words, ASM: tl.constexpr):
    """Codes of each eight numbers, as the two words that `_write_eight` makes of them."""
    x0, x1, x2, x3, x4, x5, x6, x7 = apart(x)
    # Split as the numbers are, so that all have one layout and nothing has to move.
    scale, _, _, _, _, _, _, _ = apart(tl.broadcast_to(scale, x.shape))
    w0, w1, w2, w3, w4, w5, w6, w7 = apart(words)
    return tl.inline_asm_elementwise(
        ASM, "=r,=r,f,f,f,f,f,f,f,f,f,r,r,r,r,r,r,r,r",
        [x0, x1, x2, x3, x4, x5, x6, x7, scale, w0, w1, w2, w3, w4, w5, w6, w7], (tl.int32, tl.int32), True, 1,
    )  # fmt: skip


@triton.jit
def apart(x):
    """Every eighth number from the first, from the second, and so on."""
    even, odd = tl.split(tl.reshape(x, (x.shape[0], SHARED // 8, 2, 2, 2)))
    x04, x26 = tl.split(even)
    x15, x37 = tl.split(odd)
    x0, x4 = tl.split(x04)
    x1, x5 = tl.split(x15)
    x2, x6 = tl.split(x26)
    x3, x7 = tl.split(x37)
    return x0, x1, x2, x3, x4, x5, x6, x7


@triton.jit
def together(x0, x1, x2, x3, x4, x5, x6, x7):
    """Inverse of `apart`: the columns of eight tensors, four each, in turns as the columns of one."""
    even = tl.join(tl.join(x0, x4), tl.join(x2, x6))
    odd = tl.join(tl.join(x1, x5), tl.join(x3, x7))
    return tl.reshape(tl.join(even, odd), (x0.shape[0], SHARED))


# ---- memory ---------------------------------------------------------------------------------------------------------
@triton.jit
def fetch(at, mask):
    """A load with zeros where the mask is off; None is no mask."""
    if mask is None:
        return tl.load(at)
    else:
        return tl.load(at, mask=mask, other=0)


@triton.jit
def fetch_codes(base, at, block, inside, some, PACKED: tl.constexpr, ALIGNED: tl.constexpr):
    """The codes of blocks: a byte for each element, or four words for each block."""
    if PACKED:
        at = words_at(block)
        some = None if some is None else some[:, None]
        if ALIGNED:
            return fetch(base.to(tl.pointer_type(tl.int32), bitcast=True) + at, some)
        else:
            byte = tl.arange(0, 4)[None, None, :]
            some = None if some is None else some[:, :, None]
            return tl.sum(fetch(base + at[:, :, None] * 4 + byte, some).to(tl.int32) << (8 * byte), 2)
    else:
        return fetch(base + at, inside)


@triton.jit
def store_codes(base, at, block, codes, inside, some, PACKED: tl.constexpr, ALIGNED: tl.constexpr):
    if PACKED:
        at = words_at(block)
        some = None if some is None else some[:, None]
        if ALIGNED:
            tl.store(base.to(tl.pointer_type(tl.int32), bitcast=True) + at, codes, mask=some)
        else:
            byte = tl.arange(0, 4)[None, None, :]
            some = None if some is None else some[:, :, None]
            tl.store(base + at[:, :, None] * 4 + byte, (codes[:, :, None] >> (8 * byte)).to(tl.uint8), mask=some)
    else:
        tl.store(base + at, codes, mask=inside)


@triton.jit
def fetch_bytes(base, at, block, inside, ALIGNED: tl.constexpr):
    """The bytes of blocks, one for each element, as two words for each eight."""
    if ALIGNED and inside is None:
        words = tl.load(base.to(tl.pointer_type(tl.int64), bitcast=True) + words_at(block))
        return words.to(tl.int32), (words >> 32).to(tl.int32)
    else:
        return bytes_joined(fetch(base + at, inside))


@triton.jit
def store_bytes(base, at, block, low, high, inside, ALIGNED: tl.constexpr):
    if ALIGNED and inside is None:
        words = (low.to(tl.int64) & 0xFFFFFFFF) | (high.to(tl.int64) << 32)
        tl.store(base.to(tl.pointer_type(tl.int64), bitcast=True) + words_at(block), words)
    else:
        tl.store(base + at, bytes_of(low, high).to(tl.uint8), mask=inside)


@triton.jit
def words_at(block):
    return block[:, None] * (SHARED // 8) + tl.arange(0, SHARED // 8)[None, :]
