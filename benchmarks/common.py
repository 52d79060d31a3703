"""What every benchmark shares: a record of where it ran, the bandwidth of a copy, timing in turns, models' shapes."""

from __future__ import annotations

import importlib.util
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent


def environment() -> dict[str, Any]:
    """Versions, hardware and commit: what a number depends on besides the code."""
    record: dict[str, Any] = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join([Path(sys.executable).name, *sys.argv]),
        "commit": os.environ.get("ADAN_COMMIT") or _output("git", "rev-parse", "HEAD"),
        "uncommitted_changes": bool(_output("git", "status", "--porcelain", "--untracked-files=no")),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "os": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg(),
    }
    if torch.cuda.is_available():
        record["gpu"] = torch.cuda.get_device_name()
        record["cuda"] = torch.version.cuda
    return record


Clock: TypeAlias = Callable[[], float]


def copy_bandwidth(
    device: str = "cpu", size: int = 64_000_000, repeats: int = 9, clock: Clock = time.perf_counter
) -> float:
    """Bytes read and written in a second by `copy_` between two large fp32 tensors: the median."""
    source = torch.ones(size, device=device)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)
        if device != "cpu":
            torch.cuda.synchronize()

    return 2 * 4 * size / statistics.median(in_turns({"copy": copy}, repeats, clock)["copy"])


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


#: torchao's 8-bit AdamW is measured where torchao is installed.
TORCHAO = "AdamW 8 bit (torchao)"


def torchao_adamw(params: Iterable[Tensor]) -> torch.optim.Optimizer:
    from torchao.optim import AdamW8bit

    optimizer: torch.optim.Optimizer = AdamW8bit(params, lr=1e-4)
    return optimizer


def has_torchao() -> bool:
    return importlib.util.find_spec("torchao") is not None


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


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return str(__import__(package).__version__)
    except ImportError:
        return None


def _output(*command: str) -> str | None:
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
