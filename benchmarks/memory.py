"""The memory of a whole training step on a GPU: GPT-2 345M, one sequence of 1,024 tokens, bf16 autocast.

Peak of allocated memory in the third step, when all states are there; once with all activations kept, once with
activation checkpointing in every layer. Run by `make bench-memory`; writes
results/memory-gpu.json and docs/figures/memory.png. `--plot` only draws the figure from the record.
"""

from __future__ import annotations

import argparse
import gc
from functools import partial
from typing import Any

import torch
from common import BASE, ROOT, Maker, environment, optimizer, others_8bit, read, write

from adan import Adan, release_gradients
from adan_bench.training.optimizers import state_bytes

RECORD = "memory-gpu.json"


#: Gradients are released and weights are bf16 where the name says so.
ADANS = (
    "Adan; Adan, coupled; Adan, bf16 states; Adan, 8 bit; Adan, 8 bit, release; Adan, 8 bit, coupled, release; "
    "Adan, 4 bit; Adan, 4 bit, release; Adan, 4 bit, coupled, release; Adan, 8 bit, release, bf16 weights"
)
VARIANTS: dict[str, Maker] = {name: partial(optimizer, name) for name in (BASE, *ADANS.split("; "))} | others_8bit()


def measure(name: str, recompute: bool) -> dict[str, float]:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    with torch.device("cuda"):
        model: Any = GPT2LMHeadModel(GPT2Config(n_embd=1024, n_layer=24, n_head=16, use_cache=False))
    if "bf16 weights" in name:
        model = model.bfloat16()
    if recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    opt = VARIANTS[name](list(model.parameters()))
    handle = release_gradients(model, opt) if "release" in name and isinstance(opt, Adan) else None
    tokens = torch.randint(0, 50257, (1, 1024), device="cuda")
    losses = []
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
    if handle is not None:
        handle.remove()  # a hook and its parameter hold each other
    return {
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "state_bytes_per_parameter": state_bytes(opt),
        "parameters": sum(p.numel() for p in model.parameters()),
        "first_loss": losses[0],
        "last_loss": losses[-1],
    }


def plot(rows: dict[str, Any]) -> None:
    from matplotlib.figure import Figure

    sizes = {name: row["state_bytes_per_parameter"] for name, row in reversed(rows.items())}
    shown = {(name[:5], f"{size:.3g}"): name for name, size in sizes.items()}  # the first of each size
    names = [name for name in sizes if name in shown.values()]
    figure = Figure(figsize=(7, 0.4 * len(names) + 0.8), layout="constrained")
    axes = figure.subplots()
    colors = ["#999999" if name.startswith("AdamW") else "#0072B2" for name in names]
    bars = axes.barh(names, [sizes[name] for name in names], color=colors)
    axes.bar_label(bars, [f"{sizes[name]:.3g}" for name in names], padding=3)
    axes.set_xlabel("optimizer state, bytes per parameter")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(ROOT / "docs" / "figures" / "memory.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", action="store_true", help="only draw the figure from the record")
    if not parser.parse_args().plot:
        rows = {}
        for name in VARIANTS:
            rows[name] = measure(name, recompute=False)
            gc.collect()
            rows[name]["recompute_peak_bytes"] = measure(name, recompute=True)["peak_bytes"]
            gc.collect()
            torch.cuda.empty_cache()
            peaks = ""
            for peak in ("peak_bytes", "recompute_peak_bytes"):
                peaks += f"{rows[name][peak] / 1e9:6.2f} GB  × {rows[name][peak] / rows[BASE][peak]:.2f}  "
            print(f"{name:40s} {peaks} {rows[name]['state_bytes_per_parameter']:.3f} B/parameter", flush=True)
        write(RECORD, {"environment": environment(), "rows": rows})
    plot(read(RECORD)["rows"])


if __name__ == "__main__":
    main()
