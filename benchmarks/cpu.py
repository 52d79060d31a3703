"""The time of a step on the CPU beside PyTorch's AdamW, the bytes it moves, and what share of a copy's speed that is.

Run by `make bench-cpu`; writes results/bench-cpu.json.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from common import ROOT, Clock, copy_bandwidth, environment, equal_tensors, in_turns, mlp, resnet50, stepper
from rich.console import Console
from rich.table import Table
from torch import Tensor

from adan import Adan

BASE, FP32 = "AdamW fused", "Adan fused"
SEED = 0

#: name → (optimizer, bytes that a pass over one fp32 parameter and its states must move; None: it makes several)
OPTIMIZERS: dict[str, tuple[Callable[[list[Tensor]], torch.optim.Optimizer], float | None]] = {
    BASE: (lambda params: torch.optim.AdamW(params, fused=True), 28),
    "AdamW foreach": (lambda params: torch.optim.AdamW(params, foreach=True), None),
    FP32: (lambda params: Adan(params, fused=True), 44),
    "Adan fused, clipped": (lambda params: Adan(params, fused=True, max_grad_norm=1.0), 48),
    "Adan fused, coupled": (lambda params: Adan(params, fused=True, betas=(0.9, 0.9, 0.99)), 36),
    "Adan fused, 8 bit": (lambda params: Adan(params, fused=True, state_format="8bit"), 20.25),
    "Adan fused, 4 bit": (lambda params: Adan(params, fused=True, state_format="4bit"), 17.25),
    "Adan foreach": (lambda params: Adan(params, foreach=True), None),
}

#: name → (shapes, rounds)
MODELS = {
    "25 M in 64 tensors": (equal_tensors(25_000_000, 64), 21),
    "ResNet-50, 25.6 M in 161 tensors": (resnet50(), 21),
    "MLP, 16.6 k in 8 tensors": (mlp(), 300),
}


def measure(shapes: list[tuple[int, ...]], rounds: int, clock: Clock) -> dict[str, Any]:
    torch.manual_seed(SEED)
    size = sum(torch.Size(shape).numel() for shape in shapes)

    def prepared(make: Callable[[list[Tensor]], torch.optim.Optimizer]) -> Callable[[], object]:
        params = [torch.randn(shape).requires_grad_() for shape in shapes]
        return stepper(make, params, [torch.randn(shape) for shape in shapes])

    times = in_turns({name: prepared(make) for name, (make, _) in OPTIMIZERS.items()}, rounds, clock)
    gc.collect()
    copy = copy_bandwidth(lambda run: in_turns({"copy": run}, 1, clock)["copy"][0])
    rows = {}
    for name, (_, bytes_each) in OPTIMIZERS.items():
        seconds = statistics.median(times[name])
        moved = None if bytes_each is None else bytes_each * size
        rows[name] = {
            "median_ms": 1e3 * seconds,
            "fastest_ms": 1e3 * min(times[name]),
            "bytes": moved,
            "gb_per_s": None if moved is None else moved / seconds / 1e9,
            "share_of_copy": None if moved is None else moved / seconds / copy,
            "ratio_of_medians": seconds / statistics.median(times[BASE]),
            "ratio_of_fastest": min(times[name]) / min(times[BASE]),
            "ratio_median_of_rounds": statistics.median(
                own / base for own, base in zip(times[name], times[BASE], strict=True)
            ),
            "ratio_to_adan_fp32": {
                "of_medians": seconds / statistics.median(times[FP32]),
                "of_fastest": min(times[name]) / min(times[FP32]),
            },
        }
    return {"tensors": len(shapes), "parameters": size, "rounds": rounds, "copy_gb_per_s": copy / 1e9, "rows": rows}


def table(model: str, result: dict[str, Any]) -> Table:
    out = Table(title=f"{model} · n = {result['rounds']} · copy {result['copy_gb_per_s']:.1f} GB/s")
    out.add_column("optimizer")
    headings = ("ms", "fastest", "MB moved", "GB/s", "of copy", f"÷ {BASE}", "fastest ÷ fastest", f"÷ {FP32}, fastest")
    for heading in headings:
        out.add_column(heading, justify="right")
    for name, row in result["rows"].items():
        cells = [f"{row['median_ms']:.3f}", f"{row['fastest_ms']:.3f}"]
        if row["bytes"] is None:
            cells += ["", "", ""]
        else:
            cells += [f"{row['bytes'] / 1e6:.1f}", f"{row['gb_per_s']:.1f}", f"{row['share_of_copy']:.0%}"]
        ratios = (row["ratio_of_medians"], row["ratio_of_fastest"], row["ratio_to_adan_fp32"]["of_fastest"])
        out.add_row(name, *cells, *(f"{ratio:.2f}" for ratio in ratios))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="with --threads 1: count the processor's time, which what else runs there disturbs less than the clock's",
    )
    parser.add_argument("--output", default="bench-cpu.json", help="file under results/")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    clock = time.process_time if arguments.cpu_time else time.perf_counter
    results: dict[str, Any] = {}
    record = {"environment": environment(), "seed": SEED, "clock": clock.__name__, "models": results}
    console = Console(width=130)
    for model, (shapes, rounds) in MODELS.items():
        results[model] = result = measure(shapes, rounds, clock)
        console.print(table(model, result))
    path = ROOT / "results" / arguments.output
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    console.print(f"written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
