"""The memory of a whole training step on a GPU: GPT-2 345M, one sequence of 1,024 tokens, bf16 autocast.

Peak of allocated memory in the third step, when all states are there; once with all activations kept, once with those
inside each layer computed again in backward, as who is short of memory would do. Run by `make bench-memory`; writes
results/memory-gpu.json and docs/figures/memory.png. `--plot` only draws the figure from the record.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from common import ROOT, environment, others_8bit
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from adan import Adan, release_gradients

RECORD = ROOT / "results" / "memory-gpu.json"
BASE = "AdamW fused"
COUPLED = (0.92, 0.92, 0.99)


def adan(**options: Any) -> Callable[[nn.Module], Optimizer]:
    return of_model(partial(Adan, lr=1e-4, **options))


def of_model(make: Callable[..., Optimizer]) -> Callable[[nn.Module], Optimizer]:
    return lambda model: make(model.parameters())


#: name → optimizer of a model, whether gradients are released, whether weights are bf16
VARIANTS: dict[str, tuple[Callable[[nn.Module], Optimizer], bool, bool]] = {
    BASE: (of_model(partial(AdamW, lr=1e-4, fused=True)), False, False),
    "Adan": (adan(), False, False),
    "Adan, coupled": (adan(betas=COUPLED), False, False),
    "Adan, bf16 states": (adan(state_format="bf16"), False, False),
    "Adan, 8 bit": (adan(state_format="8bit"), False, False),
    "Adan, 8 bit, release": (adan(state_format="8bit"), True, False),
    "Adan, 8 bit, coupled, release": (adan(state_format="8bit", betas=COUPLED), True, False),
    "Adan, 4 bit": (adan(state_format="4bit"), False, False),
    "Adan, 4 bit, release": (adan(state_format="4bit"), True, False),
    "Adan, 4 bit, coupled, release": (adan(state_format="4bit", betas=COUPLED), True, False),
    "Adan, 8 bit, release, bf16 weights": (adan(state_format="8bit", stochastic_rounding=True), True, True),
}
for other, make_other in others_8bit().items():
    VARIANTS[other] = (of_model(make_other), False, False)


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=1024, n_layer=24, n_head=16, use_cache=False)
    return GPT2LMHeadModel(config)


def measure(name: str, recompute: bool) -> dict[str, float]:
    make, release, half = VARIANTS[name]
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = gpt2()
    if half:
        model = model.bfloat16()
    if recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    opt = make(model)
    handle = release_gradients(model, opt) if release and isinstance(opt, Adan) else None
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
    params = sum(p.numel() for p in model.parameters())
    # bitsandbytes keeps one table of codes for all of them
    tensors = {id(x): x for state in opt.state.values() for x in state.values() if torch.is_tensor(x)}
    return {
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "state_bytes_per_parameter": sum(map(stored_bytes, tensors.values())) / params,
        "parameters": params,
        "first_loss": losses[0],
        "last_loss": losses[-1],
    }


def stored_bytes(x: Any) -> int:
    """The bytes of a tensor; of torchao's coded ones, which look like fp32, those of what they consist of."""
    parts: list[Tensor] = [x]
    if hasattr(x, "__tensor_flatten__"):
        parts = [getattr(x, name) for name in x.__tensor_flatten__()[0]]
    return sum(part.nbytes for part in parts)


def plot(rows: dict[str, Any]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    sizes = {name: row["state_bytes_per_parameter"] for name, row in reversed(rows.items())}
    shown = {(name[:5], f"{size:.3g}"): name for name, size in sizes.items()}  # the first of each size
    names = [name for name in sizes if name in shown.values()]
    figure, axes = plt.subplots(figsize=(7, 0.4 * len(names) + 0.8), layout="constrained")
    bars = axes.barh(
        names,
        [sizes[name] for name in names],
        color=["#999999" if name.startswith("AdamW") else "#0072B2" for name in names],
    )
    axes.bar_label(bars, [f"{sizes[name]:.3g}" for name in names], padding=3)
    axes.set_xlabel("optimizer state, bytes per parameter")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(ROOT / "docs" / "figures" / "memory.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plot", action="store_true")
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
        RECORD.write_text(json.dumps({"environment": environment(), "rows": rows}, indent=1) + "\n", encoding="utf-8")
    plot(json.loads(RECORD.read_text(encoding="utf-8"))["rows"])


if __name__ == "__main__":
    main()
