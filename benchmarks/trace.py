"""How far it is from `opt.step()` to a kernel: the functions and files of `adan` that one warm step runs through.

    python benchmarks/trace.py [--calls]

Counted by `sys.setprofile`: distinct functions of the package, distinct files, calls, and how often a call or a return
passes from one file of the package to another. Comprehensions belong to the function that holds them. Without a GPU the
CUDA engine's kernels run in Triton's interpreter; what runs inside a kernel there is the device's part and not counted.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

import adan

PACKAGE = Path(adan.__file__).resolve().parent
ROOT = PACKAGE.parents[1]
ENGINES: dict[str, dict[str, Any]] = {
    "loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "cpu": {"fused": True},
    "cuda": {"fused": True},
}
STEPS: dict[str, dict[str, Any]] = {"plain": {}, "clipped": {"max_grad_norm": 1.0}, "8 bit": {"state_format": "8bit"}}
WARM = 3


class Trace(NamedTuple):
    """The calls of functions of the package in their order, and how often these pass from one file to another."""

    calls: list[CodeType]
    changes: int

    @property
    def functions(self) -> list[CodeType]:
        """Distinct, in the order of their first call."""
        return list(dict.fromkeys(self.calls))

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(code.co_filename for code in self.functions))


@contextmanager
def served_by_triton(name: str) -> Iterator[str]:
    """Let the CUDA engine serve on this machine; the device of its tensors."""
    if name != "cuda" or torch.cuda.is_available():
        yield "cuda" if name == "cuda" else "cpu"
        return
    sys.path.insert(0, str(ROOT / "tests"))
    from support import engines

    with engines.serving("cuda", engines.LARGE):
        yield "cpu"


def trace(name: str, options: dict[str, Any]) -> Trace:
    """A warm step of a model of three tensors: two of one kind, of which one can be in 8 bits, and a bias."""
    with served_by_triton(name) as device:
        torch.manual_seed(0)
        params = [torch.randn(shape, device=device).requires_grad_() for shape in ((70, 70), (70, 70), (70,))]
        opt = adan.Adan(params, **ENGINES[name], **options)
        for p in params:
            p.grad = torch.randn_like(p)
        for _ in range(WARM):
            opt.step()
        events: list[tuple[str, CodeType]] = []
        sys.setprofile(lambda frame, event, _: events.append((event, frame.f_code)))
        opt.step()
        sys.setprofile(None)
    calls: list[CodeType] = []
    running: list[str] = []  # files of the functions of the package
    tops: list[str] = []  # the last of them after each call and return
    kernel = 0  # how many frames of Triton are running
    for event, code in events:
        one = {"call": 1, "return": -1}.get(event, 0)
        kernel += one * (f"{os.sep}triton{os.sep}" in code.co_filename)
        if not one or kernel or not code.co_filename.startswith(str(PACKAGE)) or code.co_name.startswith("<"):
            continue
        if event == "call":
            calls.append(code)
            running.append(code.co_filename)
        else:
            running.pop()
        tops += running[-1:]
    return Trace(calls, sum(a != b for a, b in itertools.pairwise(tops)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", action="store_true", help="list the functions in the order of their first call")
    arguments = parser.parse_args()
    print(f"{'step':<8} {'engine':<8} {'functions':>9} {'files':>6} {'calls':>6} {'changes of file':>16}")
    for step, options in STEPS.items():
        for name in ENGINES:
            result = trace(name, options)
            numbers = f"{len(result.functions):>9} {len(result.files):>6} {len(result.calls):>6} {result.changes:>16}"
            print(f"{step:<8} {name:<8} {numbers}")
            for code in result.functions if arguments.calls else ():
                name_of = getattr(code, "co_qualname", code.co_name)  # since Python 3.11
                print(f"    {Path(code.co_filename).relative_to(PACKAGE)}:{code.co_firstlineno} {name_of}")


if __name__ == "__main__":
    main()
