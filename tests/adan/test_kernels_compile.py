"""The Triton kernels as a GPU would get them, compiled without one: they compile, and move 16 bytes at a time."""

import ast
import inspect
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton has no build for this platform")

from adan.engines import codes, kernels

COMPILE = """
import json, sys
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from adan.engines import kernels

def ptx(kernel, capability, warps, pointers, integers, constants):
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else pointers.get(name, "i32") for name in names}
    assert set(names) == {*pointers, *integers, *constants}, names
    if triton.__version__ < "3.3":
        runtime = {name: kind for name, kind in signature.items() if kind != "constexpr"}
        source = ASTSource(fn=kernel, signature=runtime, constants=constants)
    else:
        source = ASTSource(
            fn=kernel,
            signature=signature,
            constexprs={(names.index(name),): value for name, value in constants.items()},
            attrs={(names.index(name),): [["tt.divisibility", 16]] for name in pointers},
        )
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps}).asm["ptx"]

PLAIN = {"PACKED": False, "COUPLED": False, "WEIGHTS": 0, "RESTART": 0, "ALIGNED": True}
types = {**PLAIN, "CHUNK": 1024, "BLOCK": 512, "STAGES": 1, **dict.fromkeys("PGS", tl.float32), "COMPUTE": tl.float32}
half = {**types, **dict.fromkeys("PG", tl.bfloat16), "S": tl.float32}
codes = {"S": tl.uint8}
piped = {**codes, "BLOCK": 1024, "CHUNK": 4096, "STAGES": 3}
kinds = {
    "fp32": types,
    "fp32 restart": {**types, "RESTART": 2},
    "bf16": half,
    "8bit restart": {**types, **codes, "RESTART": 2},
    "forgetting": {**types, "RESTART": 1},
    "8bit": {**types, **codes},
    "8bit piped, coupled, bf16 stochastic": {**half, **piped, "COUPLED": True, "WEIGHTS": 1},
    "4bit": {**types, **codes, "PACKED": True},
    "4bit piped, restart": {**types, **piped, "PACKED": True, "RESTART": 2},
    "4bit unaligned": {**types, **codes, "PACKED": True, "ALIGNED": False},
    "4bit coupled, Kahan": {**half, **codes, "PACKED": True, "COUPLED": True, "WEIGHTS": 2},
    "bf16 states, Kahan": {**half, "S": tl.bfloat16, "WEIGHTS": 2},
}
rows = ["rows", "first_row", "end_row"]
tables = {"static": "*i64", "per_step": "*i64"}


def compiled(name, capability):
    if name == "squares":
        constants = {"G": tl.float32, "COMPUTE": tl.float32, "ALIGNED": True, "CHECK": True, "CHUNK": 4096}
        pointers, integers = {**tables, "partials": "*fp64"}, [*rows, "chunks", "first_partial", "n_partials"]
        return ptx(kernels.sum_of_squares, capability, 4, pointers, integers, constants)
    if name == "scalars":
        constants = {"NORM": 2, "GRAD_SCALE": True, "FOUND_INF": True, "CHECK": True, "RESTART": 2, "LANES": 128}
        pointers = {**tables, "coefs": "*fp64", "partials": "*fp64"}
        pointers.update(dict.fromkeys(("norm", "grad_scale", "found_inf"), "*fp32"))
        return ptx(kernels.step_scalars, capability, 4, pointers, ["rows", "n_partials"], constants)
    constants = kinds[name]
    pointers = {**tables, "coefs": "*fp64", "squares": "*fp64"}
    warps = constants["BLOCK"] // 256
    return ptx(kernels.update, capability, warps, pointers, ["rows", "first_chunk"], constants)


wanted = {90: [*kinds, "squares", "scalars"], 80: sys.argv[1:]}
found = {capability: {name: compiled(name, capability) for name in names} for capability, names in wanted.items()}
json.dump(found, sys.stdout)
"""

#: Those that are looked at for 8.0 too.
SEEN = ("fp32", "squares", "8bit")


def compiled():
    """PTX by capability and name. That for 8.0 differs from that for 9.0 in a line or two: it is of a few kernels."""
    command = [sys.executable, "-c", COMPILE, *SEEN]
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def moves_sixteen_bytes_at_a_time(ptx):
    """Six arrays are read and five written; 512 elements over 64 threads are two accesses of four floats each."""
    for name in ptx.keys() & {"fp32", "fp32 restart"}:
        assert ptx[name].count("ld.global.v4.b32") >= 12, name
        assert ptx[name].count("st.global.v4.b32") >= 10, name
    assert ptx["squares"].count("ld.global.v4.b32") >= 8


def keeps_codes_in_registers(ptx):
    """Nothing but the parameter, which is stored in runs of 16 bytes per thread, passes through shared memory."""
    for name in ptx.keys() & {"8bit", "4bit"}:
        stores = [line.split()[0] for line in ptx[name].splitlines() if "st.shared" in line]
        # 8 floats of a thread are two accesses, the exponents of a block one; for whole blocks, and for the last one.
        assert len(stores) <= 2 * 3, (name, stores)


def test_no_chain_of_three():
    """Triton before 3.4, which torch 2.6 and 2.7 install, compiles no `a or b or c`: there, no kernel worked."""
    for module in (kernels, codes):
        operators = [node for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.BoolOp)]
        assert [node.lineno for node in operators if len(node.values) > 2] == []


def test_compiled_kernels():
    found = compiled()
    assert found.keys() == {"90", "80"}
    assert {*SEEN, "fp32 restart", "4bit"} <= found["90"].keys()
    assert set(SEEN) == found["80"].keys()
    for capability, ptx in found.items():
        assert all(".visible .entry" in text and f".target sm_{capability}" in text for text in ptx.values())
        moves_sixteen_bytes_at_a_time(ptx)
        keeps_codes_in_registers(ptx)
