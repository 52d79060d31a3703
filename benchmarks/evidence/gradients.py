"""How far compiling and bf16 take a problem's gradients from those of fp32, after a few steps of training.

Dropout is off and every variant sees the same batch, so that rounding alone tells them apart. A kernel that computes
something else shows as a variant that is far from fp32 where the others are near.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evidence.jobs import Job, Record
from evidence.search import Study
from evidence.studies import BERT, CONVNEXT, GPT_30M, MAE, RESNET, TRANSFORMER_XL, VIT_25
from evidence.training import Trainer

#: Study, optimizer, settings, and the steps to train before the gradients are compared.
CASES: tuple[tuple[Study, str, dict[str, Any], int], ...] = (
    (TRANSFORMER_XL, "adam", {"lr": 5e-4}, 700),
    (GPT_30M, "adamw", {"lr": 5e-4}, 60),
    (VIT_25, "adamw", {"lr": 5e-4}, 60),
    (BERT, "adam", {"lr": 1e-3}, 60),
    (MAE, "adamw", {"lr": 1e-3}, 60),
    (CONVNEXT, "adamw", {"lr": 1e-3}, 60),
    (RESNET, "adamw", {"lr": 1e-3}, 60),
)
WORST = 5  # parameters named per variant


def compare(job: Job, steps: int, device: str, cache: Path) -> Record:
    """Train in bf16, not compiled, then take the same gradient in four ways."""
    from torch._inductor import config

    trainer = Trainer(job, device, cache)
    problem, model = trainer.problem, trainer.problem.model
    problem.bf16 = True
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model.train()
    problem.begin_epoch(0)
    for _ in range(steps):
        trainer.update()
    carried = [tensor.clone() for tensor in problem.carried]

    def gradients(loss: Callable[[Tensor], Tensor], bf16: bool) -> list[Tensor]:
        for tensor, before in zip(problem.carried, carried, strict=True):
            tensor.copy_(before)
        torch.manual_seed(0)
        model.zero_grad()
        with torch.autocast(trainer.device.type, torch.bfloat16, enabled=bf16):
            value = loss(trainer.count)
        value.backward()
        return [p.grad.clone() for p in trainer.params if p.grad is not None]

    torch.compiler.reset()
    compiled = torch.compile(problem.loss, dynamic=False)
    exact = gradients(problem.loss, False)
    names = [name for name, p in model.named_parameters() if p.grad is not None]
    variants = {"bf16": gradients(problem.loss, True)}
    with config.patch(fallback_random=True):  # the same batch as without compiling
        variants["compiled"] = gradients(compiled, False)
        variants["compiled, bf16"] = gradients(compiled, True)
    away = {
        variant: [_distance([x], [y]) for x, y in zip(ours, exact, strict=True)] for variant, ours in variants.items()
    }
    return {
        "job": asdict(job),
        "steps": steps,
        "train_loss": trainer.total.item() / steps,
        "distance": {variant: _distance(ours, exact) for variant, ours in variants.items()},
        "worst": {variant: sorted(zip(each, names, strict=True))[: -WORST - 1 : -1] for variant, each in away.items()},
    }


def _distance(ours: list[Tensor], exact: list[Tensor]) -> float:
    """The norm of the difference beside the norm of what is exact."""
    apart = sum((x - y).square().sum().item() for x, y in zip(ours, exact, strict=True))
    return float(f"{(apart / max(sum(y.square().sum().item() for y in exact), 1e-30)) ** 0.5:.3g}")


def run(args: argparse.Namespace) -> None:
    from common import environment

    torch.set_float32_matmul_precision("highest")
    facts = environment() | {"command": "python -m evidence gradients"}
    lines = []
    for study, optimizer, settings, steps in CASES:
        record = compare(study.job(optimizer, settings, 0), steps, args.device, args.cache)
        print(f"{study.name:15}", *(f"{k} {v:.2%}" for k, v in record["distance"].items()), flush=True)
        for variant, worst in record["worst"].items():
            print(f"    {variant:15}", *(f"{name} {value:.1%}" for value, name in worst), flush=True)
        lines.append(json.dumps(record | {"environment": facts}) + "\n")
    args.out.write_text("".join(lines), encoding="utf-8")
