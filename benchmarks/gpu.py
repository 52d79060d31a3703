"""The time of a step on a GPU beside PyTorch's AdamW, the bytes it moves, and what share of a copy's speed that is.

`ms` is of steps that follow one another, where the GPU is never idle; `ms alone` is of one step on an idle GPU, with
the host's preparations. Run by `make bench-gpu`; writes results/bench-gpu.json. Where torchao or bitsandbytes is
installed, their 8-bit AdamW is timed too: results/bench-gpu-others.json is what remains of such a run.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from common import ROOT, Shapes, copy_bandwidth, environment, others_8bit, resnet50, stepper
from rich.console import Console
from rich.table import Table
from torch import Tensor

from adan import Adan, Restart, plan
from adan.engines import cuda

SEED = 0
BASE = "AdamW fused"

COUPLED = (0.92, 0.92, 0.99)


def adan(**options: Any) -> Callable[[list[Tensor]], torch.optim.Optimizer]:
    return lambda params: Adan(params, lr=1e-4, fused=True, **options)


#: name → (optimizer, bytes that must move for one fp32 parameter)
OPTIMIZERS: dict[str, tuple[Callable[[list[Tensor]], torch.optim.Optimizer], float]] = {
    BASE: (lambda params: torch.optim.AdamW(params, lr=1e-4, fused=True), 28),
    "Adan": (adan(), 44),
    "Adan, clipped": (adan(max_grad_norm=1.0), 48),
    "Adan, coupled": (adan(betas=COUPLED), 36),
    "Adan, restart": (adan(restart=Restart.probe()), 44),
    "Adan, bf16 states": (adan(state_format="bf16"), 28),
    "Adan, 8 bit": (adan(state_format="8bit"), 20.25),
    "Adan, 8 bit, clipped": (adan(state_format="8bit", max_grad_norm=1.0), 24.25),
    "Adan, 8 bit, coupled": (adan(state_format="8bit", betas=COUPLED), 18.25),
    "Adan, 8 bit, restart": (adan(state_format="8bit", restart=Restart.probe()), 20.25),
    "Adan, 4 bit": (adan(state_format="4bit"), 17.25),
    "Adan, 4 bit, clipped": (adan(state_format="4bit", max_grad_norm=1.0), 21.25),
    "Adan, 4 bit, coupled": (adan(state_format="4bit", betas=COUPLED), 16.25),
    "Adan, 4 bit, restart": (adan(state_format="4bit", restart=Restart.probe()), 17.25),
}


LARGE = 1e9  # parameters


def optimizers(size: int) -> dict[str, tuple[Callable[[list[Tensor]], torch.optim.Optimizer], float]]:
    """Those of a model; other libraries' for the largest alone, as torchao compiles for each shape (a minute)."""
    return OPTIMIZERS | ({name: (make, 16.06) for name, make in others_8bit().items()} if size > LARGE else {})


def gpt2(layers: int, width: int) -> Shapes:
    shapes: Shapes = [(50257, width), (1024, width)]
    for _ in range(layers):
        shapes += [(width,)] * 2 + [(width, 3 * width), (3 * width,), (width, width), (width,)]
        shapes += [(width,)] * 2 + [(width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    return [*shapes, (width,), (width,)]


def vit_b() -> Shapes:
    width = 768
    shapes: Shapes = [(1, 1, width), (1, 197, width), (width, 3, 16, 16), (width,)]
    for _ in range(12):
        shapes += [(width,)] * 2 + [(3 * width, width), (3 * width,), (width, width), (width,)]
        shapes += [(width,)] * 2 + [(4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    return [*shapes, (width,), (width,), (1000, width), (1000,)]


MODELS: dict[str, Shapes] = {
    "ResNet-50": resnet50(),
    "ViT-B": vit_b(),
    "GPT-2 345M": gpt2(24, 1024),
    "GPT-2 1.1B": gpt2(36, 1536),
}


def milliseconds(run: Callable[[], object], steps: int) -> float:
    """Of one step, by events around several: the host runs ahead, as it does in training."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(steps):
        run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / steps


def copy_speed(size: int) -> float:
    """Bytes per millisecond, by a copy of as many floats as the model has, and no fewer than 100 M."""
    return copy_bandwidth(lambda run: milliseconds(run, 5) / 1e3, "cuda", max(size, 100_000_000)) / 1e3


def measure(shapes: Shapes, rounds: int, steps: int) -> dict[str, Any]:
    torch.manual_seed(SEED)
    params = [torch.randn(shape, device="cuda").requires_grad_() for shape in shapes]
    grads = [torch.randn_like(p) for p in params]
    size = sum(p.numel() for p in params)
    copy = copy_speed(size)  # before the states of all optimizers fill the memory
    rows: dict[str, Any] = {}
    chosen = optimizers(size)
    # In two turns, each with the base: the states of all of them at once would not fit.
    quantized = [name for name in chosen if "bit" in name]
    for names in ([name for name in chosen if name not in quantized], [BASE, *quantized]):
        part = measure_together({name: chosen[name] for name in names}, params, grads, rounds, steps, copy)
        rows |= {name: row for name, row in part.items() if name not in rows}
        gc.collect()
        torch.cuda.empty_cache()
    return {"parameters": size, "tensors": len(shapes), "steps": rounds * steps, "copy_gb_s": copy / 1e6, "rows": rows}


def measure_together(
    chosen: dict[str, tuple[Callable[[list[Tensor]], torch.optim.Optimizer], float]],
    params: list[Tensor],
    grads: list[Tensor],
    rounds: int,
    steps: int,
    copy: float,
) -> dict[str, Any]:
    size = sum(p.numel() for p in params)
    runs = {name: stepper(make, params, grads) for name, (make, _) in chosen.items()}
    for run in runs.values():
        milliseconds(run, 3)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(milliseconds(run, steps))
    alone: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(51):
        for name, run in runs.items():
            torch.cuda.synchronize()
            alone[name].append(milliseconds(run, 1))
    rows = {}
    for name, (_, each) in chosen.items():
        ms = statistics.median(times[name])
        rows[name] = {
            "ms": ms,
            "bytes": each * size,
            "share_of_copy": each * size / ms / copy,
            "ratio": ms / statistics.median(times[BASE]),
            "alone_ms": statistics.median(alone[name]),
            "alone_ratio": statistics.median(alone[name]) / statistics.median(alone[BASE]),
            "raw_ms": times[name],
            "raw_alone_ms": alone[name],
        }
        if size > LARGE:
            rows[name]["kernels_ms"] = sum(event.time_range.elapsed_us() for event in kernels(runs[name])) / 1e3
    return rows


def kernels(run: Callable[[], object]) -> list[Any]:
    """What the GPU executes in one call, copies and fills too."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    return [event for event in profile.events() if event.device_type.name == "CUDA"]


def wall(shapes: Shapes, rounds: int, steps: int) -> dict[str, Any]:
    """What a training loop sees: `zero_grad(); fresh gradients; step()`, by the clock on the wall."""
    torch.manual_seed(SEED)
    params = [torch.randn(shape, device="cuda").requires_grad_() for shape in shapes]
    source = [torch.randn_like(p) for p in params]

    def loop(optimizer: torch.optim.Optimizer | None) -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            for p, grad in zip(params, torch._foreach_mul(source, 1.0), strict=True):
                p.grad = grad
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - begin) / steps

    optimizers = {"gradients alone": None, **{name: make(params) for name, (make, _) in OPTIMIZERS.items()}}
    for optimizer in optimizers.values():
        loop(optimizer)
    times: dict[str, list[float]] = {name: [] for name in optimizers}
    for _ in range(rounds):
        for name, optimizer in optimizers.items():
            times[name].append(loop(optimizer))
    rows = {}
    for name, raw in times.items():
        by_round = [own / base for own, base in zip(raw, times[BASE], strict=True)]
        rows[name] = {"ms": statistics.median(raw), "ratio": statistics.median(by_round), "raw_ms": raw}
    return {"steps": rounds * steps, "rows": rows}


def host(shapes: Shapes, rounds: int) -> dict[str, Any]:
    """The host's part of `step()`, with gradients at new addresses each time and the GPU idle before it."""
    torch.manual_seed(SEED)
    params = [torch.randn(shape, device="cuda").requires_grad_() for shape in shapes]
    source = [torch.randn_like(p) for p in params]
    optimizers = {name: make(params) for name, (make, _) in OPTIMIZERS.items()}
    times: dict[str, list[float]] = {name: [] for name in optimizers}
    for turn in range(rounds + 5):
        for name, optimizer in optimizers.items():
            for p, grad in zip(params, torch._foreach_mul(source, 1.0), strict=True):
                p.grad = grad
            torch.cuda.synchronize()
            begin = time.perf_counter()
            optimizer.step()
            if turn >= 5:
                times[name].append(1e3 * (time.perf_counter() - begin))
    torch.cuda.synchronize()
    base = statistics.median(times[BASE])
    rows = {
        name: {"ms": statistics.median(raw), "ratio": statistics.median(raw) / base, "raw_ms": raw}
        for name, raw in times.items()
    }
    return {"steps": rounds, "rows": rows}


def launches(shapes: Shapes) -> dict[str, int]:
    params = [torch.randn(shape, device="cuda").requires_grad_() for shape in shapes]
    counts = {}
    for name, (make, _) in OPTIMIZERS.items():
        optimizer = make(params)
        for _ in range(2):
            for p in params:
                p.grad = torch.ones_like(p)
            events = kernels(optimizer.step)
        counts[name] = sum("mem" not in event.name.lower() for event in events)
    return counts


class _Tiled(cuda.Cuda):
    """The engine with one tile for everything."""

    def __init__(self, tile: cuda.Tile) -> None:
        self.tile, self.tiles = tile, {}


def tune(shapes: Shapes) -> None:
    """Print the speed of the update kernel for sizes of its chunks and blocks, limits of its registers, and stages."""
    params = [torch.randn(shape, device="cuda").requires_grad_() for shape in shapes]
    grads = [torch.randn_like(p) for p in params]
    size = sum(p.numel() for p in params)
    copy = copy_speed(size)
    print(f"{size} parameters, copy {copy / 1e6:.0f} GB/s; chunk, block, warps, registers, stages: share of copy")
    sizes = itertools.product((1024, 2048, 4096, 8192), (512, 1024), (2, 4, 8), (None, 64, 72, 80, 96), (1, 2, 3))
    tiles = [cuda.Tile(*tile) for tile in sizes if tile[0] >= tile[1] * tile[4] and 2 <= tile[1] // 32 // tile[2] <= 8]
    for name, (make, moved) in OPTIMIZERS.items():
        if name == BASE or "clipped" in name:
            continue
        for tile in tiles:
            plan.ENGINES[:] = [_Tiled(tile), *(engine for engine in plan.ENGINES if engine.name != "cuda")]
            run = stepper(make, params, grads)
            milliseconds(run, 2)
            ms = statistics.median(milliseconds(run, 4) for _ in range(3))
            print(f"{name}: {tuple(tile)} {moved * size / ms / copy:.1%} {ms:.2f} ms", flush=True)


def table(model: str, result: dict[str, Any]) -> Table:
    out = Table(title=f"{model}: {result['parameters'] / 1e6:.1f} M, {result['tensors']} tensors, "
                f"n = {result['steps']} steps, copy {result['copy_gb_s']:.0f} GB/s")  # fmt: skip
    out.add_column("optimizer")
    for heading in ("ms", "GB moved", "of copy", f"÷ {BASE}", "ms alone", f"÷ {BASE}"):
        out.add_column(heading, justify="right")
    for name, row in result["rows"].items():
        share = f"{row['share_of_copy']:.0%}"
        cells = [f"{row['ms']:.3f}", f"{row['bytes'] / 1e9:.2f}", share, f"{row['ratio']:.2f}"]
        out.add_row(name, *cells, f"{row['alone_ms']:.3f}", f"{row['alone_ratio']:.2f}")
    return out


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

    console = Console(width=110)
    record: dict[str, Any] = {"environment": environment(), "seed": SEED, "models": {}}
    for model in arguments.models:
        record["models"][model] = result = measure(
            MODELS[model], rounds=12, steps=20 if sum(map(math.prod, MODELS[model])) < 2e8 else 5
        )
        console.print(table(model, result))
        gc.collect()
        torch.cuda.empty_cache()
    record["wall"] = {"model": "ResNet-50", **wall(MODELS["ResNet-50"], rounds=7, steps=60)}
    console.print("ResNet-50, wall time of zero_grad(); fresh gradients; step():")
    for name, row in record["wall"]["rows"].items():
        console.print(f"  {name:28} {row['ms']:.3f} ms   ÷ {BASE} {row['ratio']:.2f}")
    record["host"] = {"model": "ResNet-50", **host(MODELS["ResNet-50"], rounds=100)}
    console.print("ResNet-50, the host's part of step():")
    for name, row in record["host"]["rows"].items():
        console.print(f"  {name:28} {row['ms']:.3f} ms   ÷ {BASE} {row['ratio']:.2f}")
    record["launches"] = {"model": "ResNet-50", "kernels": launches(MODELS["ResNet-50"])}
    console.print("kernels per step, ResNet-50:", record["launches"]["kernels"])
    path = ROOT / "results" / arguments.output
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    console.print(f"written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
