"""The time of a step on a GPU beside PyTorch's AdamW, the bytes it moves, and their share of a copy's speed.

`ms` is of steps that follow one another, where the GPU is never idle. Run by `make bench-gpu`; writes
results/bench-gpu.json. Where torchao or bitsandbytes is installed, their 8-bit AdamW is timed too:
results/bench-gpu-others.json is what remains of such a run.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import math
import statistics
from functools import partial
from typing import Any

import common
import torch
from common import BASE, MODELS, Maker, Run, Shapes, clocked, in_turns, stepper, tensors

from adan.engines import cuda

NAMES = [
    f"Adan{form}{how}" for form in ("", ", 8 bit", ", 4 bit") for how in ("", ", clipped", ", coupled", ", restart")
]
#: name → (optimizer, bytes that must move for one fp32 parameter)
OPTIMIZERS: dict[str, tuple[Maker, float]] = {
    name: (partial(common.optimizer, name), common.moved(name)) for name in (BASE, *NAMES, "Adan, bf16 states")
}
LARGE = 1e9  # parameters


def milliseconds(run: Run, steps: int) -> float:
    """Time of one step, by events around several: the host runs ahead, as it does in training."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(steps):
        run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / steps


def copy_speed(size: int) -> float:
    """Bytes per millisecond, by a copy of as many floats as the model has, and no fewer than 100 M."""
    return common.copy_bandwidth(lambda run: milliseconds(run, 5), "cuda", max(size, 100_000_000))


def measure(shapes: Shapes, rounds: int, steps: int) -> dict[str, Any]:
    params, grads = tensors(shapes, "cuda")
    size = sum(p.numel() for p in params)
    copy = copy_speed(size)  # before the states of all optimizers fill the memory
    rows: dict[str, Any] = {}
    # Other libraries' for the largest model alone, as torchao compiles for each shape (a minute).
    chosen = OPTIMIZERS | ({name: (make, 16.06) for name, make in common.others_8bit().items()} if size > LARGE else {})
    # In two turns, each with the base: the states of all of them at once would not fit.
    quantized = [name for name in chosen if "bit" in name]
    for names in ([name for name in chosen if name not in quantized], [BASE, *quantized]):
        runs = {name: stepper(chosen[name][0], params, grads) for name in names}
        times = in_turns(runs, rounds, lambda run: milliseconds(run, steps))
        for name in names:
            moved, (ms, base) = chosen[name][1] * size, (statistics.median(times[of]) for of in (name, BASE))
            row = {"bytes": moved, "ms": ms, "ratio": ms / base, "raw_ms": times[name]}
            rows.setdefault(name, {**row, "share_of_copy": moved / ms / copy})
            if size > LARGE:
                rows[name]["kernels_ms"] = sum(event.time_range.elapsed_us() for event in kernels(runs[name])) / 1e3
        del runs
        gc.collect()
        torch.cuda.empty_cache()
    return {"parameters": size, "tensors": len(shapes), "steps": rounds * steps, "copy_gb_s": copy / 1e6, "rows": rows}


def kernels(run: Run) -> list[Any]:
    """Everything that the GPU executes in one call, copies and fills too."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    return [event for event in profile.events() if event.device_type.name == "CUDA"]


def wall(shapes: Shapes, rounds: int, steps: int) -> dict[str, Any]:
    """The time of `zero_grad(); fresh gradients; step()` in a training loop, by the clock on the wall."""
    params, grads = tensors(shapes, "cuda")

    def loop(optimizer: torch.optim.Optimizer | None) -> None:
        torch.cuda.synchronize()
        for _ in range(steps):
            for p, grad in zip(params, torch._foreach_mul(grads, 1.0), strict=True):  # gradients in new memory
                p.grad = grad
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()
        torch.cuda.synchronize()

    runs = {"gradients alone": partial(loop, None)}
    runs |= {name: partial(loop, make(params)) for name, (make, _) in OPTIMIZERS.items()}
    times, rows = in_turns(runs, rounds, lambda run: clocked(run) / steps), {}
    for name, raw in times.items():
        # Ratios within each round, as the host's speed varies.
        ratios = [own / base for own, base in zip(raw, times[BASE], strict=True)]
        rows[name] = {"ms": statistics.median(raw), "ratio": statistics.median(ratios), "raw_ms": raw}
    return {"steps": rounds * steps, "rows": rows}


def launches(shapes: Shapes) -> dict[str, int]:
    params, grads = tensors(shapes, "cuda")
    counts = {}
    for name, (make, _) in OPTIMIZERS.items():
        run = stepper(make, params, grads)
        run()
        counts[name] = sum("mem" not in event.name.lower() for event in kernels(run))
    return counts


def tune(shapes: Shapes) -> None:
    """Print the speed of the update kernel for sizes of its chunks and blocks, limits of its registers, and stages."""
    params, grads = tensors(shapes, "cuda")
    size = sum(p.numel() for p in params)
    copy = copy_speed(size)
    print(f"{size} parameters, copy {copy / 1e6:.0f} GB/s; chunk, block, warps, registers, stages: share of copy")
    sizes = itertools.product((1024, 2048, 4096, 8192), (512, 1024), (2, 4, 8), (None, 64, 72, 80, 96), (1, 2, 3))
    tiles = [cuda.Tile(*tile) for tile in sizes if tile[0] >= tile[1] * tile[4] and 2 <= tile[1] // 32 // tile[2] <= 8]
    for name, (make, moved) in OPTIMIZERS.items():
        if name == BASE or "clipped" in name:
            continue
        for tile in tiles:
            cuda.Cuda.tile, cuda.Cuda.tiles = tile, {}  # one for everything; a new optimizer makes its tables with it
            run = stepper(make, params, grads)
            milliseconds(run, 2)
            ms = statistics.median(milliseconds(run, 4) for _ in range(3))
            print(f"{name}: {tuple(tile)} {moved * size / ms / copy:.1%} {ms:.2f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tune", action="store_true", help="only try the kernel's block sizes")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--output", default="bench-gpu.json", help="file under results/")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/gpu.py needs a CUDA GPU; `make bench-cpu` measures the CPU")
    if arguments.tune:
        for model in arguments.models:
            tune(MODELS[model])
        return

    record: dict[str, Any] = {"environment": common.environment(), "seed": common.SEED, "models": {}}
    for model in arguments.models:
        steps = 20 if sum(map(math.prod, MODELS[model])) < 2e8 else 5
        record["models"][model] = result = measure(MODELS[model], 12, steps)
        speed = f"copy {result['copy_gb_s']:.0f} GB/s"
        print(f"{model}: n = {result['steps']} steps, {speed}; ms, of copy, ÷ {BASE}")
        for name, row in result["rows"].items():
            numbers = f"{row['ms']:9.3f} {row['share_of_copy']:6.0%} {row['ratio']:6.2f}"
            print(f"  {name:28} {numbers}", flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    resnet = MODELS["ResNet-50"]
    record["wall"] = {"model": "ResNet-50", **wall(resnet, rounds=7, steps=60)}
    print("ResNet-50, zero_grad(); fresh gradients; step():")
    for name, row in record["wall"]["rows"].items():
        print(f"  {name:28} {row['ms']:.3f} ms   ÷ {BASE} {row['ratio']:.2f}")
    record["launches"] = {"model": "ResNet-50", "kernels": launches(resnet)}
    print("kernels per step, ResNet-50:", record["launches"]["kernels"])
    common.write(arguments.output, record)


if __name__ == "__main__":
    main()
