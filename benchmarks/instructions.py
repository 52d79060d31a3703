"""The instructions of the GPU's update kernel per element, by kind, as compiled for an H100 or H200; needs no GPU.

Counted on the path of whole chunks; instructions before a program's first block are shared out among its elements. Run
by `python benchmarks/instructions.py`; writes results/instructions.json.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from common import environment, write
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from adan.engines import cuda, kernels

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")


def disassembled(name: torch.dtype | str, coupled: bool, measures: bool, tile: cuda.Tile) -> tuple[str, int]:
    """The machine code for fp32 parameters, and the registers per thread."""
    state = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}.get(name, tl.uint8)  # type: ignore[arg-type]
    constants = {
        "P": tl.float32, "G": tl.float32, "S": state, "COMPUTE": tl.float32, "PACKED": name == "4bit",
        "COUPLED": coupled, "WEIGHTS": 0, "RESTART": 2 if measures else 0, "ALIGNED": True,
        "CHUNK": tile.chunk, "BLOCK": tile.block, "STAGES": tile.stages,
    }  # fmt: skip
    names = kernels.update.arg_names
    pointers = {"static": "*i64", "per_step": "*i64", "coefs": "*fp64", "squares": "*fp64"}
    source = ASTSource(
        fn=kernels.update,
        signature={name: "constexpr" if name in constants else pointers.get(name, "i32") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in pointers},
    )
    options = {"num_warps": tile.warps} | ({} if tile.registers is None else {"maxnreg": tile.registers})
    binary = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        text = subprocess.run([TOOLS / "nvdisasm", "-c", file.name], capture_output=True, text=True, check=True).stdout
        usage = subprocess.run(
            [TOOLS / "cuobjdump", "-res-usage", file.name], capture_output=True, text=True, check=True
        )
    return text, int(re.findall(r"REG:(\d+)", usage.stdout + usage.stderr)[-1])


def count(text: str, tile: cuda.Tile) -> dict[str, Any]:
    before: Counter[str] = Counter()
    for part in re.split(r"\n\.L_x_\d+:", text):
        opcodes = Counter(match[1] for match in map(INSTRUCTION.match, part.splitlines()) if match)
        if any(name.startswith("MUFU.SQRT") for name in opcodes):  # the first such part is the one for whole blocks
            break
        before += opcodes
    each = tile.block // (32 * tile.warps)
    by_kind = Counter[str]()
    for name, number in opcodes.items():
        by_kind[name.split(".")[0]] += number
    share = sum(before.values()) * tile.block / tile.chunk
    return {
        "per_element": (sum(opcodes.values()) + share) / each,
        "by_kind": {name: number / each for name, number in by_kind.most_common()},
        "memory_accesses_per_block": {
            name: n for name, n in opcodes.items() if name.startswith(("LD", "ST")) and name not in ("LDC", "LDGDEPBAR")
        },
        "spills_per_block": by_kind["LDL"] + by_kind["STL"],
    }


def main() -> None:
    rows = {}
    for (name, coupled, measures), tile in cuda.TILES.items():
        text, registers = disassembled(name, coupled, measures, tile)
        key = str(name).removeprefix("torch.") + ", coupled" * coupled + ", restart" * measures
        rows[key] = {**count(text, tile), "registers": registers, "tile": tile._asdict()}
        spills = rows[key]["spills_per_block"]
        print(
            f"{key:28} {rows[key]['per_element']:6.1f} per element, {registers} registers, {spills} spills", flush=True
        )
    write("instructions.json", {"environment": environment(), "target": "sm_90", "rows": rows})


if __name__ == "__main__":
    main()
