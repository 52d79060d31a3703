"""What every benchmark shares: a record of where it ran, the bandwidth of a copy, timing in turns, models' shapes."""

from __future__ import annotations

import importlib
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from adan_bench.records.environment import describe

ROOT = Path(__file__).resolve().parent.parent


def environment() -> dict[str, Any]:
    """Where a record was made, as `adan-bench` describes it, and how busy the machine was."""
    facts = describe("cuda" if torch.cuda.is_available() else "cpu")
    # A record is published: of the folders of this machine it has the names alone.
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv]
    facts["command"] = " ".join([Path(sys.executable).name, *words])
    facts["commit"] = os.environ.get("ADAN_COMMIT") or facts["commit"]
    return {**facts, "threads": torch.get_num_threads(), "load_average": os.getloadavg()}


Clock: TypeAlias = Callable[[], float]


Shapes: TypeAlias = list[tuple[int, ...]]


def copy_bandwidth(
    seconds: Callable[[Callable[[], object]], float], device: str = "cpu", size: int = 64_000_000
) -> float:
    """Bytes per second, read and written, by `copy_` between two large fp32 tensors: the median of nine.

    seconds: of one call, as the device's clock measures it.
    """
    source = torch.ones(size, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * 4 * size / statistics.median(seconds(lambda: target.copy_(source)) for _ in range(9))


def stepper(
    make: Callable[[list[Tensor]], torch.optim.Optimizer], params: list[Tensor], grads: list[Tensor]
) -> Callable[[], object]:
    """A step of an optimizer on the same gradients again and again."""
    optimizer = make(params)

    def step() -> None:
        for p, grad in zip(params, grads, strict=True):
            p.grad = grad
        optimizer.step()

    return step


def in_turns(
    candidates: dict[str, Callable[[], object]], rounds: int, clock: Clock = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each call, every candidate once a round: what else the machine does then meets all of them alike."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for run in candidates.values():
        run()
    for _ in range(rounds):
        for name, run in candidates.items():
            start = clock()
            run()
            times[name].append(clock() - start)
    return times


#: AdamW with 8-bit states, of other libraries.
OTHERS_8BIT = {"AdamW 8 bit (torchao)": "torchao", "AdamW 8 bit (bitsandbytes)": "bitsandbytes"}


def others_8bit() -> dict[str, Callable[[Iterable[Tensor]], torch.optim.Optimizer]]:
    """Those of `OTHERS_8BIT` whose library is installed."""

    def maker(package: str) -> Callable[[Iterable[Tensor]], torch.optim.Optimizer]:
        module = importlib.import_module(f"{package}.optim")
        return lambda params: module.AdamW8bit(params, lr=1e-4)

    return {name: maker(package) for name, package in OTHERS_8BIT.items() if importlib.util.find_spec(package)}


def equal_tensors(total: int, count: int) -> list[tuple[int, ...]]:
    return [(total // count,)] * count


def mlp(width: int = 64, layers: int = 4) -> list[tuple[int, ...]]:
    return [shape for _ in range(layers) for shape in ((width, width), (width,))]


def resnet50() -> list[tuple[int, ...]]:
    """161 tensors, 25.6 M parameters."""

    def convolution(inputs: int, outputs: int, size: int) -> list[tuple[int, ...]]:
        return [(outputs, inputs, size, size), (outputs,), (outputs,)]  # with the scale and shift of its norm

    shapes, inputs = convolution(3, 64, 7), 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += convolution(inputs, width, 1) + convolution(width, width, 3) + convolution(width, 4 * width, 1)
            if block == 0:
                shapes += convolution(inputs, 4 * width, 1)
            inputs = 4 * width
    return [*shapes, (1000, 2048), (1000,)]
