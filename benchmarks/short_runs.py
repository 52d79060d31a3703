"""Which betas and learning rate for a short run? A character GPT on tiny Shakespeare, AdamW beside Adan.

    ADAN_DATA=folder python benchmarks/short_runs.py     # needs folder/tinyshakespeare/input.txt and a GPU

Prints the validation loss of every setting, mean over the seeds; writes results/short-runs.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
from pathlib import Path
from typing import Any

import torch
from common import ROOT, environment
from torch import Tensor, nn

from adan import Adan, parameter_groups

CONTEXT, BATCH, STEPS, WARMUP, DECAY = 256, 64, 500, 50, 0.1

SETTINGS: list[tuple[str, float, tuple[float, ...]]] = [
    *(("AdamW", lr, (0.9, 0.99)) for lr in (3e-4, 1e-3, 3e-3)),
    *(("Adan", lr, (0.98, 0.92, 0.99)) for lr in (1e-3, 3e-3, 1e-2)),
    *(("Adan", lr, (0.9, 0.92, 0.99)) for lr in (1e-3, 3e-3, 1e-2)),
    ("Adan", 3e-3, (0.94, 0.92, 0.95)),
]


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Six layers of width 384: 10.8 M parameters."""

    def __init__(self, vocabulary: int, width: int = 384, layers: int = 6, heads: int = 6) -> None:
        super().__init__()
        self.embed, self.pos_embed = nn.Embedding(vocabulary, width), nn.Parameter(0.02 * torch.randn(CONTEXT, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocabulary))
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(tokens) + self.pos_embed))


def batches(text: Tensor, count: int, seed: int) -> Any:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    for _ in range(count):
        start = torch.randint(len(text) - CONTEXT - 1, (BATCH, 1), generator=generator, device="cuda")
        window = text[start + torch.arange(CONTEXT + 1, device="cuda")]
        yield window[:, :-1], window[:, 1:]


def loss_of(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    with torch.autocast("cuda", torch.bfloat16):
        return nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def train(
    text: Tensor, held_out: Tensor, vocabulary: int, setting: tuple[str, float, Any], seed: int
) -> dict[str, float]:
    name, lr, betas = setting
    torch.manual_seed(seed)
    model = GPT(vocabulary).cuda()
    groups = parameter_groups(model, DECAY)
    optimizer = Adan(groups, lr=lr, betas=betas) if name == "Adan" else torch.optim.AdamW(groups, lr=lr, betas=betas)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda k: min((k + 1) / WARMUP, 0.05 + 0.95 * (0.5 + 0.5 * math.cos(math.pi * min(k, STEPS) / STEPS))),
    )
    losses = []
    for tokens, targets in batches(text, STEPS, seed):
        optimizer.zero_grad()
        loss = loss_of(model, tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
    with torch.no_grad():
        validation = [loss_of(model, *pair) for pair in batches(held_out, 40, 0)]
    return {"train": torch.stack(losses[-50:]).mean().item(), "validation": torch.stack(validation).mean().item()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=os.environ.get("ADAN_DATA", "."), help="folder that holds tinyshakespeare/")
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    path = Path(arguments.data) / "tinyshakespeare" / "input.txt"
    if not path.exists():
        raise SystemExit(f"there is no {path}: name the folder of tinyshakespeare/input.txt with --data or ADAN_DATA")
    characters = path.read_text(encoding="utf-8")
    vocabulary = sorted(set(characters))
    index = {character: i for i, character in enumerate(vocabulary)}
    data = torch.tensor([index[character] for character in characters], device="cuda")
    cut = int(0.9 * len(data))

    record: dict[str, Any] = {"environment": environment(), "steps": STEPS, "batch": BATCH, "decay": DECAY, "runs": []}
    print(
        f"{STEPS} steps of {BATCH} × {CONTEXT} characters; mean of n = {arguments.seeds} seeds: train, validation loss"
    )
    for setting in SETTINGS:
        runs = [train(data[:cut], data[cut:], len(vocabulary), setting, seed) for seed in range(arguments.seeds)]
        name, lr, betas = setting
        record["runs"].append({"optimizer": name, "lr": lr, "betas": betas, "seeds": runs})
        means = [statistics.mean(run[key] for run in runs) for key in ("train", "validation")]
        print(f"{name:6} lr {lr:<7g} betas {betas!s:20} {means[0]:.3f}  {means[1]:.3f}", flush=True)
        (ROOT / "results" / "short-runs.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
