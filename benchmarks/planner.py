"""The tables of `docs/memory-planner.md`: plans of `adan.plan_memory` for large models, and one beside measurements."""

from __future__ import annotations

from functools import cache, partial

import torch
from common import MODELS, read
from torch import nn

from adan import plan_memory
from adan_bench.studies.memory import LLAMAS

Table = tuple[list[str], list[list[str]]]  # head and rows

GPUS = (8, 64, 256, 1024)
FORMS = (
    "AdamW",
    "Adan",
    "Adan, coupled",
    "Adan, 8 bit",
    "Adan, 8 bit, coupled",
    "Adan, 8 bit, release",
    "Adan, 4 bit",
    "Adan, 4 bit, coupled",
    "Adan, 4 bit, release",
    "Adan, 8 bit, release, bf16 weights",
    "Adan, 4 bit, release, bf16 weights",
    "Adan, 4 bit, coupled, release, bf16 weights",
)


def _row(form: str) -> str:
    """The row of a plan that has a form's states."""
    if form.startswith("AdamW"):
        return "AdamW"
    bits = {"4 bit": "4bit", "8 bit": "8bit", "bf16 states": "bf16"}
    state_format = next((bits[part] for part in form.split(", ") if part in bits), "fp32")
    return f"Adan {state_format}" + " coupled" * ("coupled" in form)


def large_models() -> list[Table]:
    """GB per GPU of weights, gradients and states, for each model."""
    tables = []
    for name, llama in LLAMAS.items():
        params = llama.parameters()
        plan, rows = cache(partial(plan_memory, params)), []
        for form in FORMS:
            dtype = torch.bfloat16 if "bf16 weights" in form else torch.float32
            plans = [plan(shards=gpus, dtype=dtype, release_gradients="release" in form) for gpus in GPUS]
            sizes = [of_gpu.rows[_row(form)].total / 1e9 for of_gpu in plans]
            rows.append([form, *(f"{size:#.3g}".rstrip(".") if size < 1000 else f"{size:,.0f}" for size in sizes)])
        number = sum(p.numel() for p in params) / 1e9
        head = [f"{name}, {number:.2f} B parameters: GB per GPU", *(f"{gpus:,} GPUs" for gpus in GPUS)]
        tables.append((head, rows))
    return tables


def measured() -> Table:
    """The peaks of a training step beside the plan; the rest of a peak, its activations, is the same in all rows."""
    shapes = MODELS["GPT-2 345M"]  # which `benchmarks/memory.py` trains
    plan = plan_memory([nn.Parameter(torch.empty(shape, device="meta")) for shape in shapes]).rows
    rows = []
    for name, row in read("memory-gpu.json")["rows"].items():
        if (name != "AdamW fused" and not name.startswith("Adan")) or "release" in name:
            continue
        sizes = plan[_row(name)]
        states = row["state_bytes_per_parameter"] * row["parameters"]
        peaks = [row[peak] for peak in ("recompute_peak_bytes", "peak_bytes")]
        cells = [f"{size / 1e9:.3f}" for size in (sizes.states, states, sizes.total)]
        rows.append([name, *cells, *(f"{x / 1e9:.2f}, +{(x - sizes.total) / 1e9:.2f}" for x in peaks)])
    head = ["GPT-2 345M, GB", "states, planned", "states, measured", "weights, gradients and states, planned"]
    head += ["peak with activation checkpointing, above the plan", "peak, all activations kept, above the plan"]
    return head, rows
