"""Every engine on any machine: without a GPU the CUDA engine's kernels run in Triton's interpreter.

The one place in the tests that knows how an engine is made to serve tensors that it would not choose by itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

import torch

from adan import plan
from adan.engines import cuda
from adan.engines.cpu import Cpu

GPU = torch.cuda.is_available()

#: The options that ask for an engine.
OPTIONS = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "cpu": {"fused": True}, "cuda": {"fused": True}}

#: Small, so that small tensors have several programs, several blocks and a tail; of quantized states, which start at
#: 4,096 elements, large, because the interpreter takes some 5 ms per program.
SMALL, LARGE = cuda.Tile(128, 64, 1), cuda.Tile(8192, 4096, 1)


class Interpreted(cuda.Cuda):
    device_type = "cpu"
    tile = SMALL
    tiles = {key: LARGE for key in cuda.TILES if key[0] is not torch.float32}  # noqa: RUF012
    norm_chunk, norm_programs = 64, 3


def missing(name: str) -> str | None:
    """Why an engine cannot be tested on this machine; None when it can."""
    return Cpu().unsupported_reason(torch.zeros(1)) if name == "cpu" else None


def device_of(name: str) -> str:
    return "cuda" if name == "cuda" and GPU else "cpu"


@contextlib.contextmanager
def serving(name: str) -> Iterator[None]:
    """Let an engine serve what asks for it. Only the CUDA engine without a GPU needs help."""
    if name != "cuda" or GPU:
        yield
        return
    with mock.patch.object(plan, "ENGINES", [Interpreted(), *plan.ENGINES]):
        yield
