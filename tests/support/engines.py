"""Every engine on any machine: without a GPU the CUDA engine's kernels run in Triton's interpreter.

The one place in the tests that knows how an engine is made to serve tensors that it would not choose by itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch

from adan import plan
from adan.engines import cuda
from adan.engines.cpu import Cpu

GPU = torch.cuda.is_available()

#: The options that ask for an engine.
OPTIONS = {
    "loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "cpu": {"fused": True},
    "cuda": {"fused": True},
}

#: Small, so that small tensors have several programs, several blocks and a tail. Large for tests of more than 4,096
#: elements and for quantized states, which start there: the interpreter takes some 5 ms per program.
SMALL, LARGE = cuda.Tile(128, 64, 1), cuda.Tile(8192, 4096, 1)

#: For tests whose interpreted kernels divide 0 by 0: beyond the end of a tensor, where nothing is stored.
divides_zero_by_zero = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")


class Interpreted(cuda.Cuda):
    """The CUDA engine for tensors of the CPU, whose kernels Triton's interpreter runs."""

    device_type = "cpu"
    tiles = {key: LARGE for key in cuda.TILES if key[0] is not torch.float32}  # noqa: RUF012

    def __init__(self, tile: cuda.Tile) -> None:
        self.tile, self.norm_chunk, self.norm_programs = tile, tile.block, 3


@functools.cache
def _speed_up_the_interpreter() -> None:
    """Leave out what Triton 3.7's interpreter does to no effect: more than half of the time of a step.

    At each function that a kernel calls it patches Triton's language, which the launch has patched; of every sum and
    product of integers it works out whether it overflows, and drops the answer unless `debug` is set; at every load
    and cast it makes its table of types anew; and every tensor gets its shape as new constants of a new type.
    """
    try:
        import triton.language as tl
        from triton.language.core import tuple as shape_of
        from triton.runtime import interpreter
        from triton.runtime.interpreter import _LangPatchScope, _patch_lang
    except ImportError:
        return  # no Triton, or another version

    @functools.cache
    def languages(function: Any) -> list[Any]:
        return [module for module in (tl, tl.core) if any(value is module for value in function.__globals__.values())]

    def patch(function: Any) -> Any:
        patched = not any(tl.core.is_builtin(module.load) for module in languages(function))
        return _LangPatchScope() if patched else _patch_lang(function)

    interpreter._patch_lang = patch
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=builder.options.debug)
    type_of, cached = interpreter._get_np_dtype, functools.cache(interpreter._get_np_dtype)
    interpreter._get_np_dtype = lambda kind: type_of(kind) if kind.scalar.is_ptr() else cached(kind.scalar)

    @functools.cache
    def sizes(shape: tuple[int, ...]) -> tuple[Any, Any]:
        return tl.constexpr(math.prod(shape)), shape_of([tl.constexpr(size) for size in shape])

    def init(tensor: Any, handle: Any, kind: Any) -> None:
        tensor.handle, tensor.type, tensor.dtype = handle, kind, kind.scalar
        tensor.numel, tensor.shape = sizes(tuple(kind.shape) if kind.is_block() else ())

    tl.tensor.__init__ = init


def device_of(name: str) -> str:
    return "cuda" if name == "cuda" and GPU else "cpu"


def unsupported_reason(name: str) -> str | None:
    """Why an engine cannot run on this machine, on whatever device; None if it can."""
    engine = {"cpu": Cpu, "cuda": cuda.Cuda}.get(name)
    return None if engine is None else engine().unsupported_reason(torch.zeros(1, device="cpu"))


@contextlib.contextmanager
def serving(name: str, tile: cuda.Tile = SMALL) -> Iterator[None]:
    """Let an engine serve what asks for it, and skip the test where it cannot run.

    Only the CUDA engine without a GPU needs help; `tile` is for that. Without Triton it would not serve, and the next
    engine that takes `fused=True` would be tested in its place.
    """
    reason = unsupported_reason(name)
    if reason is not None:
        pytest.skip(reason)
    if name != "cuda" or GPU:
        yield
        return
    _speed_up_the_interpreter()
    with mock.patch.object(plan, "ENGINES", [Interpreted(tile), *plan.ENGINES]):
        yield


@contextlib.contextmanager
def selected(name: str, tile: cuda.Tile = SMALL) -> Iterator[dict[str, bool]]:
    """The options that ask for an engine, while it serves and new tensors are on its device."""
    with serving(name, tile), torch.device(device_of(name)):
        yield OPTIONS[name]
