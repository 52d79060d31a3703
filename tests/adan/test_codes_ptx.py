"""The PTX with which the Triton kernels read and write codes, instruction by instruction, against `adan.lowbit`.

Triton's interpreter runs the plain form of `engines/codes.py`; this runs the other one where there is no GPU.
"""

import re

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this platform")

from support.codes import every_code

from adan import lowbit
from adan.engines import codes
from adan.lowbit import BLOCK, ROOT6

WORDS = 4096
WRITTEN = {8: codes._write_bytes, 6: codes._write_eight, 4: codes._write_eight}
ROTATIONS = dict(zip(range(4), ("exp_avg", "exp_avg_diff", "exp_avg_sq", "prev_grad"), strict=True))


def run(asm, outputs, inputs):
    """Execute PTX on arrays of 32-bit registers; `inputs` follow the outputs in the numbering of operands."""
    registers = {f"${outputs + i}": x.view(np.uint32) for i, x in enumerate(inputs)}
    floats = {f"${outputs + i}" for i, x in enumerate(inputs) if x.dtype == np.float32}

    def value(operand):
        if operand.startswith("0f"):
            return np.uint32(int(operand[2:], 16))
        return np.uint32(int(operand, 0)) if operand[0].isdigit() else registers[operand]

    for line in asm.strip("{}").split("\n"):
        if line.startswith(".reg"):
            floats |= {*re.findall(r"\w+", line)[2:]} if line.startswith(".reg .f32") else set()
            continue
        name, rest = line.rstrip(";").split(" ", 1)
        if name == "mov.b32" and rest.startswith("{"):
            low, high, source = re.findall(r"[\w$]+", rest)
            registers[low], registers[high] = value(source) & 0xFFFF, value(source) >> 16
            continue
        to, *operands = rest.split(", ")
        # Up to Triton 3.3, floats are in registers of that type, which ptxas lets no instruction on integers read.
        assert not name.endswith(".u32") or floats.isdisjoint(operands), line
        x = [value(operand) for operand in operands]
        registers[to] = np.asarray(INSTRUCTIONS[name](*x)).astype(np.uint32)
    return [registers[f"${i}"] for i in range(outputs)]


def prmt(a, b, select):
    both = [(x >> np.uint32(8 * i)) & 0xFF for x in np.broadcast_arrays(a, b) for i in range(4)]
    return sum(both[int(select) >> 4 * i & 7] << np.uint32(8 * i) for i in range(4))


def lop3(a, b, c, table):
    result = np.uint32(0)
    for i in range(8):
        if int(table) >> i & 1:
            result = result | (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
    return result


def sub_halves(a, b):
    halves = [((x >> shift) & 0xFFFF).astype(np.uint16).view(np.float16) for shift in (0, 16) for x in (a, b)]
    low, high = (halves[i] - halves[i + 1] for i in (0, 2))
    return low.view(np.uint16) | high.view(np.uint16).astype(np.uint32) << 16


def fma(a, b, c):
    exact = a.view(np.float32).astype(np.float64) * b.view(np.float32) + c.view(np.float32)
    return exact.astype(np.float32).view(np.uint32)


INSTRUCTIONS = {
    "mov.b32": lambda a: a,
    "prmt.b32": prmt,
    "lop3.b32": lop3,
    "and.b32": lambda a, b: a & b,
    "shl.b32": lambda a, b: a << b,
    "shr.u32": lambda a, b: a >> b,
    "mad.lo.u32": lambda a, b, c: a * b + c,
    "min.u32": np.minimum,
    "max.u32": np.maximum,
    "abs.f32": lambda a: a & 0x7FFFFFFF,
    "fma.rn.f32": fma,
    "sub.f16x2": sub_halves,
    "cvt.f32.f16": lambda a: a.astype(np.uint16).view(np.float16).astype(np.float32).view(np.uint32),
}


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@every_code
def test_every_code_is_read_as_the_plain_version_reads_it(code):
    room, count = 4 if code.width == 4 else 8, 4 if code.width == 8 else 8
    asm = codes._read_nibbles(code) if code.width == 4 else codes._read_bytes(code, count // 4)
    words = np.random.default_rng(0).integers(0, 2**32, (count * room // 32, WORDS), dtype=np.uint32)
    words &= np.uint32(0x3F3F3F3F if code is ROOT6 else 0xFFFFFFFF)  # above m's codes there are two bits of n's
    numbers = np.stack(run(asm, count, words), 1).view(np.float32)
    places = [np.uint32(room * i) for i in range(32 // room)]
    read = torch.from_numpy(np.stack([word >> place for word in words for place in places], 1).astype(np.int64))
    read = (read & (1 << code.width) - 1).to(torch.uint8).flatten()
    assert len(read.unique()) == 2**code.width
    expected = lowbit.decode(read, torch.full((-(-len(read) // BLOCK),), 127, dtype=torch.uint8), code)
    assert np.array_equal(numbers.flatten(), expected.numpy())
    assert np.array_equal(np.signbit(numbers.flatten()), np.signbit(expected.numpy()))


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("state", ROTATIONS)
@every_code
def test_numbers_are_rounded_as_the_plain_version_rounds_them(code, state):
    room, count = 4 if code.width == 4 else 8, 4 if code.width == 8 else 8
    x = torch.randn(WORDS * count, generator=torch.Generator().manual_seed(0)) * 1e-3
    x = x if code.signed else x.abs()
    x[::7] = 0
    bits = lowbit.RandomBits.of(lowbit.rng_offset(0, 3), 5, x)
    expected, exponents = lowbit.encode(x, code, getattr(bits, ROTATIONS[state]))
    powers = (254 - exponents.to(torch.int32) << 23).numpy().view(np.float32).repeat(BLOCK)
    asm = WRITTEN[code.width](code, 8 * state)
    numbers, scales, words = (
        a.reshape(-1, count).T.copy() for a in (x.numpy(), powers, bits.exp_avg.numpy().astype(np.uint32))
    )
    inputs = [*numbers, *(scales if code.width == 8 else scales[:1]), *words]
    outputs = run(asm, 1 if code.width == 8 else 2, inputs)[: count * room // 32]
    places = [np.uint32(room * i) for i in range(32 // room)]
    written = np.stack([word >> place & np.uint32(2**room - 1) for word in outputs for place in places], 1)
    assert np.array_equal(written.flatten(), expected.numpy())
