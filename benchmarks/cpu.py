"""The time of a step on the CPU beside PyTorch's AdamW, the bytes it moves, and their share of a copy's speed.

Run by `make bench-cpu`; writes results/bench-cpu.json.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial
from typing import Any

import common
import torch
from common import BASE, Shapes, clocked, in_turns, resnet50, stepper, tensors

ADANS = ("Adan fused", *(f"Adan fused, {part}" for part in ("clipped", "coupled", "8 bit", "4 bit")), "Adan foreach")

#: name → (shapes, rounds)
MODELS: dict[str, tuple[Shapes, int]] = {
    "25 M in 64 tensors": ([(25_000_000 // 64,)] * 64, 21),
    "ResNet-50, 25.6 M in 161 tensors": (resnet50(), 21),
    "MLP, 16.6 k in 8 tensors": (4 * [(64, 64), (64,)], 300),
}


def measure(shapes: Shapes, rounds: int) -> dict[str, Any]:
    size = sum(torch.Size(shape).numel() for shape in shapes)
    names = (BASE, "AdamW foreach", *ADANS)
    steps = {name: stepper(partial(common.optimizer, name), *tensors(shapes)) for name in names}
    times = {name: statistics.median(own) for name, own in in_turns(steps, rounds, clocked).items()}
    copy, rows = common.copy_bandwidth(clocked), {}
    for name, ms in times.items():
        moved = None if "foreach" in name else common.moved(name) * size  # foreach passes over memory several times
        rows[name] = {
            "median_ms": ms,
            "ratio_of_medians": ms / times[BASE],
            "bytes": moved,
            "gb_per_s": moved and moved / ms / 1e6,
            "share_of_copy": moved and moved / ms / copy,
        }
    return {"tensors": len(shapes), "parameters": size, "rounds": rounds, "copy_gb_per_s": copy / 1e6, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output", default="bench-cpu.json", help="file under results/")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results: dict[str, Any] = {}
    for model, (shapes, rounds) in MODELS.items():
        results[model] = result = measure(shapes, rounds)
        print(f"{model}: n = {rounds}, copy {result['copy_gb_per_s']:.1f} GB/s; ms, GB/s, ÷ {BASE}")
        for name, row in result["rows"].items():
            print(f"  {name:22} {row['median_ms']:9.3f} {row['gb_per_s'] or 0:6.1f} {row['ratio_of_medians']:6.2f}")
    common.write(arguments.output, {"environment": common.environment(), "seed": common.SEED, "models": results})


if __name__ == "__main__":
    main()
