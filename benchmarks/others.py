"""How other implementations of Adan differ, by running them; into results/others.json.

    torchrun --standalone --nproc-per-node 2 benchmarks/others.py authors@2c65bea=adan.py timm@1.0.30=timm-adan.py

takes these files, whose versions are as given (the authors' is one file; timm may not import for want of torchvision),
and besides, where they are installed, optimi's and pytorch_optimizer's.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import runpy
import sys
from importlib import metadata
from typing import Any

import torch
import torch.distributed as dist
from common import environment, write
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import adan

INSTALLED = {"optimi": "torch-optimi", "pytorch_optimizer": "pytorch_optimizer"}


def implementations(files: list[str]) -> dict[str, tuple[str, Any]]:
    by_name: dict[str, tuple[str, Any]] = {"adan": (adan.__version__, adan.Adan)}
    for module, package in INSTALLED.items():
        if importlib.util.find_spec(module) is not None:
            by_name[module] = (metadata.version(package), importlib.import_module(module).Adan)
    for title, path in (word.split("=") for word in files):
        name, version = title.split("@")
        by_name[name] = (version, runpy.run_path(path)["Adan"])
    return by_name


def parameter(size: int, dtype: torch.dtype = torch.float32) -> torch.nn.Parameter:
    param = torch.nn.Parameter(torch.randn(size).to(dtype))
    param.grad = torch.randn(size).to(dtype)
    return param


def clips(make: Any) -> bool:
    return "max_grad_norm" in make([parameter(2)], lr=1e-3).defaults


def writes_gradients(make: Any) -> bool:
    """Whether `p.grad` is another after a step, clipped if it can clip."""
    p = parameter(8)
    assert p.grad is not None
    before = p.grad.clone()
    make([p], lr=1e-3, **({"max_grad_norm": 0.1} if clips(make) else {})).step()
    return not torch.equal(p.grad, before)


def late_first_step(make: Any) -> float:
    """The first step of a parameter that gets its first gradient after 50 steps of another, ÷ lr; it should be 1."""
    early, late = parameter(4), parameter(4)
    optimizer = make([early, late], lr=1e-3, weight_decay=0.0)
    late.grad, grad = None, late.grad
    for _ in range(50):
        optimizer.step()
    before, late.grad = late.detach().clone(), grad
    optimizer.step()
    return round((late.detach() - before).abs().mean().item() / 1e-3, 3)


def bf16_state(make: Any) -> str:
    p = parameter(8, torch.bfloat16)
    optimizer = make([p], lr=1e-3)
    optimizer.step()
    return str(optimizer.state[p]["exp_avg"].dtype).removeprefix("torch.")


def difference(make: Any) -> float:
    """Distance from this package's weights after 50 steps with proximal decay: the algorithm is the same."""
    ours, theirs = parameter(64), parameter(64)
    theirs.data.copy_(ours.data)
    optimizers = [f([p], lr=1e-2, weight_decay=0.5, eps=1e-8) for f, p in ((adan.Adan, ours), (make, theirs))]
    for _ in range(50):
        grad = torch.randn(64)
        for p, optimizer in zip((ours, theirs), optimizers, strict=True):
            p.grad = grad + p.detach()
            optimizer.step()
    return (ours - theirs).abs().max().item()


def sharded(make: Any, limit: float) -> str:
    """How far five steps under FSDP2 on two processes are from those of one."""
    ends = []
    for shard in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))
        if shard:
            fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        try:
            optimizer = make(model.parameters(), lr=1e-2, **({"max_grad_norm": limit} if limit else {}))
            for _ in range(5):
                optimizer.zero_grad()
                (10 * model(torch.randn(8, 5))).square().mean().backward()
                optimizer.step()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
        ends.append(torch.cat([p.detach().flatten() for p in whole]))
    return f"differs by {(ends[0] - ends[1]).abs().max().item():.1e}"


def main() -> None:
    dist.init_process_group("gloo")
    rows = {}
    for name, (version, make) in implementations(sys.argv[1:]).items():
        torch.manual_seed(0)
        rows[name] = {
            "version": version,
            "clips": clips(make),
            "writes_gradients": writes_gradients(make),
            "late_first_step": late_first_step(make),
            "bf16_parameters_have_states_in": bf16_state(make),
            "difference_from_adan": difference(make),
            "fsdp2": sharded(make, 0.0),
            "fsdp2_clipped": sharded(make, 0.5) if clips(make) else None,
        }
    if dist.get_rank() == 0:
        print(json.dumps(rows, indent=1))
        write("others.json", {"environment": environment(), "rows": rows})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
