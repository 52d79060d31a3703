"""How far it is from `opt.step()` to a kernel: the functions and files of `adan` that one warm step runs through.

    python benchmarks/trace.py [--clipped] [--8bit] [--calls]

Counted by `sys.setprofile`: distinct functions of the package, distinct files, calls, and how often a call or a return
passes from one file of the package to another. Comprehensions belong to the function that holds them. Without a GPU the
CUDA engine's kernels run in Triton's interpreter; what runs inside a kernel there is the device's part and not counted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

import adan

PACKAGE = Path(adan.__file__).resolve().parent
ROOT = PACKAGE.parents[1]
ENGINES: dict[str, dict[str, Any]] = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "cpu": {"fused": True},
    "cuda": {"fused": True},
}
WARM = 3


class Trace:
    """The calls of functions of the package, in order, between `__enter__` and `__exit__`."""

    def __init__(self) -> None:
        self.calls: list[CodeType] = []
        self.changes = 0
        self._files: list[str] = []  #: of the functions of the package that are running
        self._kernel = 0  #: how many frames of Triton are running

    def __enter__(self) -> Trace:
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return"):
            return
        file = frame.f_code.co_filename
        if f"{os.sep}triton{os.sep}" in file:
            self._kernel += 1 if event == "call" else -1
        if self._kernel or not file.startswith(str(PACKAGE)) or frame.f_code.co_name.startswith("<"):
            return
        if event == "call":
            self.calls.append(frame.f_code)
            self.changes += bool(self._files) and self._files[-1] != file
            self._files.append(file)
        elif self._files:
            left = self._files.pop()
            self.changes += bool(self._files) and self._files[-1] != left

    @property
    def functions(self) -> list[CodeType]:
        """Distinct, in the order of their first call."""
        return list(dict.fromkeys(self.calls))

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(str(Path(code.co_filename).relative_to(PACKAGE)) for code in self.functions))


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
        step: Callable[[], object] = opt.step
        with Trace() as result:
            step()
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clipped", action="store_true", help="with max_grad_norm=1.0")
    parser.add_argument("--8bit", dest="eight_bit", action="store_true", help='with state_format="8bit"')
    parser.add_argument("--all", action="store_true", help="the plain step, then each of these alone")
    parser.add_argument("--engine", choices=ENGINES, action="append", help="only this one; may be repeated")
    parser.add_argument("--calls", action="store_true", help="list the functions in the order of their first call")
    arguments = parser.parse_args()

    flags: dict[str, tuple[bool, dict[str, Any]]] = {
        "clipped": (arguments.clipped, {"max_grad_norm": 1.0}),
        "8 bit": (arguments.eight_bit, {"state_format": "8bit"}),
    }
    if arguments.all:
        rows = {"plain": {}, **{name: options for name, (_, options) in flags.items()}}
    else:
        chosen = {name: options for name, (wanted, options) in flags.items() if wanted}
        merged = {key: value for options in chosen.values() for key, value in options.items()}
        rows = {", ".join(chosen) or "plain": merged}

    print(f"{'step':<24} {'engine':<8} {'functions':>9} {'files':>6} {'calls':>6} {'changes of file':>16}")
    for row, options in rows.items():
        for name in arguments.engine or ENGINES:
            result = trace(name, options)
            numbers = f"{len(result.functions):>9} {len(result.files):>6} {len(result.calls):>6} {result.changes:>16}"
            print(f"{row:<24} {name:<8} {numbers}")
            if arguments.calls:
                for code in result.functions:
                    name_of = getattr(code, "co_qualname", code.co_name)  # since Python 3.11
                    print(f"    {Path(code.co_filename).relative_to(PACKAGE)}:{code.co_firstlineno} {name_of}")


if __name__ == "__main__":
    main()
