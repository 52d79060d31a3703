"""The tables of `docs/memory-planner.md`: plans of `adan.plan_memory` for large models, and one beside measurements."""

from __future__ import annotations

from functools import cache, partial

import torch
from common import BASE, MODELS, numbers, options, read, where
from torch import nn

from adan import plan_memory
from adan_bench.studies.memory import LLAMAS

GPUS = ((8, 64), (64, 256), (256, 1024))  # for each model
FORMS = (
    "AdamW; Adan; Adan, coupled; Adan, 8 bit; Adan, 8 bit, coupled; Adan, 8 bit, release; Adan, 4 bit; "
    "Adan, 4 bit, coupled; Adan, 4 bit, release; Adan, 8 bit, release, bf16 weights; "
    "Adan, 4 bit, release, bf16 weights; Adan, 4 bit, coupled, release, bf16 weights"
)


def _row(form: str) -> str:
    """The row of a plan that has a form's states."""
    adan = f"Adan {options(form).get('state_format', 'fp32')}" + " coupled" * ("coupled" in form)
    return "AdamW" if form.startswith("AdamW") else adan


def large_models() -> str:
    """GB per GPU of weights, gradients and states: a row for each form, a column for each model and number of GPUs."""
    head, rows = ["GB per GPU"], {form: [form] for form in FORMS.split("; ")}
    for (name, llama), numbers_of_gpus in zip(LLAMAS.items(), GPUS, strict=True):
        plan = cache(partial(plan_memory, llama.parameters()))
        head += [f"{name}, {gpus:,} GPUs" for gpus in numbers_of_gpus]
        for form, row in rows.items():
            dtype = torch.bfloat16 if "bf16 weights" in form else torch.float32
            plans = [plan(shards=gpus, dtype=dtype, release_gradients="release" in form) for gpus in numbers_of_gpus]
            row += [f"{of_gpu.rows[_row(form)].total / 1e9:#.3g}".rstrip(".") for of_gpu in plans]
    return numbers(head, [*rows.values()])


def measured() -> str:
    """The peaks of a training step beside the plan; the rest of a peak, its activations, is the same in all rows."""
    shapes = MODELS["GPT-2 345M"]  # which `benchmarks/memory.py` trains
    plan = plan_memory([nn.Parameter(torch.empty(shape, device="meta")) for shape in shapes]).rows
    data, rows = read("memory-gpu.json"), []
    for name, row in data["rows"].items():
        if (name != BASE and not name.startswith("Adan")) or "release" in name:
            continue
        sizes = plan[_row(name)]
        states = row["state_bytes_per_parameter"] * row["parameters"]
        peaks = [row[peak] for peak in ("recompute_peak_bytes", "peak_bytes")]
        cells = [f"{size / 1e9:.3f}" for size in (sizes.states, states, sizes.total)]
        rows.append([name, *cells, *(f"{x / 1e9:.2f}, +{(x - sizes.total) / 1e9:.2f}" for x in peaks)])
    head = ["GPT-2 345M, GB", "states, planned", "states, measured", "weights, gradients and states, planned"]
    head += ["peak with activation checkpointing, above the plan", "peak, all activations kept, above the plan"]
    return numbers(head, rows, f"{where(data)}.")
