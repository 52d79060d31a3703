"""Muon for hidden matrices and kernels, AdamW or Adan for all other parameters, as one optimizer."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from adan import Adan
from adan_bench.errors import UsageError
from adan_bench.training.rivals import Cohort, Parameters, Rival
from adan_bench.training.roles import HIDDEN, Role

MATCHED = "match_rms_adamw"
SCALES: dict[str, Callable[[int, int], float]] = {  # of a step, by the rows and columns of its matrix
    MATCHED: lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
    "original": lambda rows, columns: math.sqrt(max(1.0, rows / columns)),
}
NEWTON_SCHULZ = 3.4445, -4.7750, 2.0315


class Muon(Rival, lr=1e-3, weight_decay=0.1, momentum=0.95, nesterov=True, ns_steps=5):
    """Muon (Jordan et al. 2024) on matrices, in `torch.optim.Muon`'s arithmetic, all matrices of one shape at once.

    A CUDA graph can hold its step; torch's makes one matrix after the other, with a rate from the host.
    """

    STATE = ("momentum_buffer",)

    def __init__(self, params: Parameters, adjust_lr_fn: str, **settings: Any) -> None:
        if adjust_lr_fn not in SCALES:
            raise ValueError(f"adjust_lr_fn must be one of {', '.join(SCALES)}, got {adjust_lr_fn!r}")
        super().__init__(params, **settings)
        if not isinstance(steps := self.defaults["ns_steps"], int) or steps < 1:
            raise ValueError(f"ns_steps must be a whole number from 1 on, got {steps!r}")
        self.scale = SCALES[adjust_lr_fn]

    def _update(self, parts: list[Cohort]) -> None:
        for part in parts:
            group, buffers = part.group, part.state("momentum_buffer")
            torch._foreach_lerp_(buffers, part.grads, 1 - group["momentum"])
            ahead = torch._foreach_lerp(part.grads, buffers, group["momentum"]) if group["nesterov"] else buffers
            torch._foreach_mul_(part.params, 1 - group["lr"] * group["weight_decay"])
            updates = orthogonal(ahead, group["ns_steps"])
            torch._foreach_mul_(updates, [self.scale(*p.shape) for p in part.params])
            part.descend(updates)


def orthogonal(matrices: Sequence[Tensor], steps: int) -> list[Tensor]:
    """Matrices with their singular values brought near one by the iteration of Newton and Schulz, computed in bf16."""
    a, b, c = NEWTON_SCHULZ
    found: dict[int, Tensor] = {}
    by_shape: dict[torch.Size, list[int]] = defaultdict(list)
    for i, matrix in enumerate(matrices):
        by_shape[matrix.shape].append(i)
    for (rows, columns), indices in by_shape.items():
        tall, x = rows > columns, torch.stack([matrices[i] for i in indices]).bfloat16()
        x = x.mT if tall else x
        x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
        for _ in range(steps):
            gram = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        # Contiguous: a single transposed matrix would make every foreach operation one kernel per matrix.
        x = (x.mT if tall else x).to(matrices[indices[0]].dtype, memory_format=torch.contiguous_format)
        found |= zip(indices, x.unbind(), strict=True)
    return [found[i] for i in range(len(matrices))]


class Composite(Optimizer):
    """Two optimizers, of which each steps its own parameters; their groups and states are this one's, too.

    views: matrices that stand for a parameter in `halves`, with the parameter and its role: they share its storage and
        get their gradients from it before a step.
    """

    def __init__(self, halves: list[Optimizer], views: dict[Tensor, tuple[Role, list[Tensor]]]) -> None:
        self.halves, self.views = halves, views
        super().__init__([group for half in halves for group in half.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for p, (role, matrices) in self.views.items():
            grads = [None] * len(matrices) if p.grad is None else role.matrices(p.grad)
            for matrix, grad in zip(matrices, grads, strict=True):
                matrix.grad = grad
        for half in self.halves:
            half.step()
        if len(self.state) < sum(len(half.state) for half in self.halves):
            self._join()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        for p in self.views:
            if p.grad is not None:
                p.grad = None if set_to_none else p.grad.zero_()
        super().zero_grad(set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give each half its groups and states: one may have a format of its own, as Adan has."""
        groups = iter(state_dict["param_groups"])
        for half in self.halves:
            own = [next(groups) for _ in half.param_groups]
            keys = {key for group in own for key in group["params"]}
            states = {key: state for key, state in state_dict["state"].items() if key in keys}
            half.load_state_dict({"state": states, "param_groups": own})
        self._join()

    def _join(self) -> None:
        """Refer to the groups and states of the halves, which loading replaces and the first step makes."""
        self.param_groups = [group for half in self.halves for group in half.param_groups]
        self.state = defaultdict(dict, {p: state for half in self.halves for p, state in half.state.items()})


def _muon(
    rest: Callable[..., Optimizer],
    params: Parameters,
    lr: float = 1e-3,
    weight_decay: float = 0.1,
    momentum: float = 0.95,
    nesterov: bool = True,
    ns_steps: int = 5,
    adjust_lr_fn: str = MATCHED,
    betas: tuple[float, ...] = (0.9, 0.95),
    eps: float = 1e-8,
    rest_factor: float = 1.0,
    capturable: bool = False,
) -> Composite:
    """Muon on groups with a hidden role, or on matrices where groups have no roles; `rest` makes the other half.

    adjust_lr_fn: "match_rms_adamw" scales Muon's steps to the size of AdamW's (arXiv:2502.16982), so that one rate
        serves both; with "original", √max(1, outputs / inputs), AdamW's rate is a fraction of Muon's: set rest_factor.
    betas, eps: of the other half. rest_factor: its learning rate as a multiple of Muon's.
    """
    if not rest_factor > 0:
        raise ValueError(f"rest_factor must be above 0, got {rest_factor!r}")
    hidden: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    views: dict[Tensor, tuple[Role, list[Tensor]]] = {}
    whole: list[Any] = list(params)
    groups: list[dict[str, Any]] = whole if isinstance(whole[0], dict) else [{"params": whole}]
    for group in groups:
        options = {key: value for key, value in group.items() if key not in ("params", "role")}
        matrices: list[Tensor] = []
        rates = {"lr": rest_factor * float(options.get("lr", lr))}
        left: list[Tensor] = []
        for p in group["params"]:
            role: Role = group.get("role") or Role("matrix" if p.dim() == 2 else "")
            if role.name not in HIDDEN:
                left.append(p)
            elif role == Role("matrix") and p.dim() == 2:
                matrices.append(p)
            else:
                views[p] = role, role.matrices(p.detach())
                matrices += views[p][1]
        if matrices:
            hidden.append({**options, "params": matrices})
        if left:
            others.append({**options, **rates, "params": left})
    if not hidden:
        raise UsageError("muon: the model has no hidden matrix; name some by Task(roles={'*.weight': 'matrix'})")
    own = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov, "ns_steps": ns_steps}
    halves: list[Optimizer] = [Muon(hidden, adjust_lr_fn, **own)]
    if others:
        capture = {"capturable": True} if capturable else {}
        halves.append(rest(others, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, **capture))
    return Composite(halves, views)


muon = partial(_muon, partial(torch.optim.AdamW, fused=True))
muon_adan = partial(_muon, Adan, betas=(0.9, 0.92, 0.99), rest_factor=3.0)  # Adan's rates are about three times AdamW's
