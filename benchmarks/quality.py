"""What states and weights of few bits cost in quality: whole training runs over several seeds, side by side.

Every variant trains the same models on the same batches, with the settings that were tuned for fp32. Weights in bf16
are stored so and copied to fp32 ones before each step: nothing differs but their rounding. On CUDA every variant
computes under bf16 autocast. Writes results/quality-NAME.json:

    python benchmarks/quality.py pycode-gpt2 --steps 400
    python benchmarks/quality.py ptb-lstm --steps 300 --data DIR
    python benchmarks/quality.py cifar-resnet34 --scale small --steps 390 --data DIR --device cuda --jobs 6
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from common import ROOT, environment

from adan import Adan
from adan_bench.data.batching import prepared
from adan_bench.training import optimizers
from adan_bench.training.configure import starting_settings
from adan_bench.training.schedules import schedule
from adan_bench.workloads.registry import get_workload

BASE = "fp32"
#: name → options of Adan, whether weights are stored in bf16
VARIANTS: dict[str, tuple[dict[str, Any], bool]] = {
    BASE: ({}, False),
    "8 bit states": ({"state_format": "8bit"}, False),
    "4 bit states": ({"state_format": "4bit"}, False),
    "bf16 states": ({"state_format": "bf16"}, False),
    "bf16 weights, stochastic": ({"stochastic_rounding": True}, True),
    "bf16 weights, Kahan": ({"kahan_sum": True}, True),
    "bf16 weights, to nearest": ({}, True),
    "8 bit states, bf16 weights, stochastic": ({"state_format": "8bit", "stochastic_rounding": True}, True),
}


def train(
    name: str, scale: str, variant: str, seed: int, steps: int, data: Path | None, device: str
) -> dict[str, float]:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    options, half = VARIANTS[variant]
    workload = get_workload(name, scale)
    task = workload.task(seed, data=data, device=device)
    model = task.model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    settings, _ = starting_settings(workload, optimizers.get_optimizer("adan"))
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    params = list(model.parameters())
    stored = [p.detach().bfloat16().requires_grad_() if half and p.ndim > 1 else p for p in params]
    opt = Adan(stored, **{**settings, **options})
    factor = schedule("cosine", steps, 0.05)
    for step in range(steps):
        for group in opt.param_groups:
            group["lr"] = settings["lr"] * factor(step)
        with torch.no_grad():
            for p, weight in zip(params, stored, strict=True):
                p.copy_(weight)
        model.train()
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = task.loss(model, prepared(task, step, device))
        loss.backward()
        for p, weight in zip(params, stored, strict=True):
            if weight is not p:
                weight.grad, p.grad = p.grad.to(weight.dtype), None
        opt.step()
        opt.zero_grad()
    with torch.no_grad():
        for p, weight in zip(params, stored, strict=True):
            p.copy_(weight)
        model.eval()
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            result = dict(task.evaluate(model))
    return result if "loss" in result else {**result, "loss": math.log(result["perplexity"])}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload")
    parser.add_argument("--scale", default="smoke")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), help="names; all unless given")
    args = parser.parse_args()
    work = [(variant, seed) for seed in range(args.seeds) for variant in args.variants]
    rows: dict[str, list[dict[str, float]]] = {variant: [] for variant in args.variants}
    with ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool:
        runs = [
            pool.submit(train, args.workload, args.scale, variant, seed, args.steps, args.data, args.device)
            for variant, seed in work
        ]
        for (variant, seed), run in zip(work, runs, strict=True):
            rows[variant].append(run.result())
            print(f"{variant}, seed {seed}: {run.result()}", flush=True)
    losses = {variant: [row["loss"] for row in results] for variant, results in rows.items()}
    spread = statistics.stdev(losses[BASE])
    for variant, values in losses.items():
        gap = statistics.mean(values) - statistics.mean(losses[BASE])
        print(f"{variant:40s} {statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}  {gap / spread:+.2f} sd")
    record = {
        "environment": environment(),
        "workload": args.workload,
        "scale": args.scale,
        "steps": args.steps,
        "seeds": args.seeds,
        "device": args.device,
        "rows": rows,
    }
    (ROOT / "results" / f"quality-{args.workload}.json").write_text(
        json.dumps(record, indent=1) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
