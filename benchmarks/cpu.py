"""The time of a step on the CPU beside PyTorch's AdamW, the bytes it moves, and their share of a copy's speed.

Run by `make bench-cpu`; writes results/bench-cpu.json.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from typing import Any

import torch
from common import Maker, Run, Shapes, Timer, copy_bandwidth, environment, in_turns, resnet50, stepper, write

from adan import Adan

BASE, FP32 = "AdamW fused", "Adan fused"
SEED = 0

#: name → (optimizer, bytes that a pass over one fp32 parameter and its states must move; None: it makes several)
OPTIMIZERS: dict[str, tuple[Maker, float | None]] = {
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
MODELS: dict[str, tuple[Shapes, int]] = {
    "25 M in 64 tensors": ([(25_000_000 // 64,)] * 64, 21),
    "ResNet-50, 25.6 M in 161 tensors": (resnet50(), 21),
    "MLP, 16.6 k in 8 tensors": (4 * [(64, 64), (64,)], 300),
}


def measure(shapes: Shapes, rounds: int, timer: Timer) -> dict[str, Any]:
    torch.manual_seed(SEED)
    size = sum(torch.Size(shape).numel() for shape in shapes)

    def prepared(make: Maker) -> Run:
        params = [torch.randn(shape).requires_grad_() for shape in shapes]
        return stepper(make, params, [torch.randn(shape) for shape in shapes])

    times = in_turns({name: prepared(make) for name, (make, _) in OPTIMIZERS.items()}, rounds, timer)
    gc.collect()
    copy = copy_bandwidth(timer)
    rows = {}
    for name, (_, bytes_each) in OPTIMIZERS.items():
        seconds = statistics.median(times[name])
        moved = bytes_each and bytes_each * size
        by_round = [own / base for own, base in zip(times[name], times[BASE], strict=True)]
        rows[name] = {
            "median_ms": 1e3 * seconds,
            "fastest_ms": 1e3 * min(times[name]),
            "bytes": moved,
            "gb_per_s": moved and moved / seconds / 1e9,
            "share_of_copy": moved and moved / seconds / copy,
            "ratio_of_medians": seconds / statistics.median(times[BASE]),
            "ratio_of_fastest": min(times[name]) / min(times[BASE]),
            "ratio_median_of_rounds": statistics.median(by_round),
            "ratio_to_adan_fp32": {
                "of_medians": seconds / statistics.median(times[FP32]),
                "of_fastest": min(times[name]) / min(times[FP32]),
            },
        }
    return {"tensors": len(shapes), "parameters": size, "rounds": rounds, "copy_gb_per_s": copy / 1e9, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    what = "with --threads 1: count the processor's time, which other processes disturb less than the clock's"
    parser.add_argument("--cpu-time", action="store_true", help=what)
    parser.add_argument("--output", default="bench-cpu.json", help="file under results/")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    clock = time.process_time if arguments.cpu_time else time.perf_counter

    def timer(run: Run) -> float:
        start = clock()
        run()
        return clock() - start

    results: dict[str, Any] = {}
    record = {"environment": environment(), "seed": SEED, "clock": clock.__name__, "models": results}
    for model, (shapes, rounds) in MODELS.items():
        results[model] = result = measure(shapes, rounds, timer)
        print(f"{model}: n = {rounds}, copy {result['copy_gb_per_s']:.1f} GB/s; ms, GB/s, ÷ {BASE}")
        for name, row in result["rows"].items():
            print(f"  {name:22} {row['median_ms']:9.3f} {row['gb_per_s'] or 0:6.1f} {row['ratio_of_medians']:6.2f}")
    write(arguments.output, record)


if __name__ == "__main__":
    main()
