"""Every compared optimizer in a form that a CUDA graph can capture: the learning rate is a tensor on the device.

Adam, AdamW and SGD are torch's own, fused. LAMB and AdaBelief follow their papers; torch has neither, and the
packaged ones read the step count or the learning rate on the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from adan import Adan, parameter_groups

Groups = list[dict[str, Any]]


def build(
    name: str, model: nn.Module, settings: Mapping[str, Any], lr: Tensor, decay_all: bool
) -> torch.optim.Optimizer:
    """The optimizer `name` on a model's parameters.

    lr: read at every step where it lies.
    decay_all: biases, norms and embeddings of position decay too.
    """
    options: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()
    }
    decay = options.pop("weight_decay", 0.0)
    groups: Groups = [{"params": list(model.parameters()), "weight_decay": decay}]
    if not decay_all:
        groups = parameter_groups(model, decay, named=False)
    capturable = lr.device.type == "cuda"
    if name == "adan":
        return Adan(groups, lr=lr, capturable=capturable, **options)
    if name in ("adam", "adamw"):
        kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
        return kind(groups, lr=lr, fused=True, capturable=capturable, **options)
    if name == "sgd":
        return torch.optim.SGD(groups, lr=lr, fused=True, **{"momentum": 0.9, **options})
    if name == "lamb":
        return Lamb(groups, lr=lr, **options)
    if name == "adabelief":
        return AdaBelief(groups, lr=lr, **options)
    raise ValueError(f"optimizer {name!r}: there are adan, adamw, adam, sgd, lamb, adabelief")


class _Moments(torch.optim.Optimizer):
    """First and second moments of every parameter, and one step count for all of them, on the device."""

    def __init__(self, groups: Groups, lr: Tensor, betas: tuple[float, float], eps: float) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})
        self.count = torch.zeros((), device=lr.device)
        for p in (p for group in self.param_groups for p in group["params"]):
            self.state[p] = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.count += 1
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                averages, squares = ([self.state[p][key] for p in params] for key in ("exp_avg", "exp_avg_sq"))
                grads = [p.grad for p in params]
                corrections = [1 - torch.pow(beta, self.count) for beta in group["betas"]]
                self.update(group, params, grads, averages, squares, corrections)

    def update(self, group: Any, params: Any, grads: Any, averages: Any, squares: Any, corrections: Any) -> None:
        raise NotImplementedError


def _ratio(averages: Any, squares: Any, corrections: Any, eps: float) -> Any:
    """m̂ / (√v̂ + ε)."""
    roots = torch._foreach_sqrt(squares)
    torch._foreach_div_(roots, corrections[1].sqrt())
    torch._foreach_add_(roots, eps)
    updates = torch._foreach_div(averages, corrections[0])
    torch._foreach_div_(updates, roots)
    return updates


class Lamb(_Moments):
    """LAMB (arXiv:1904.00962, Algorithm 2).

    r = m̂ / (√v̂ + ε) + λθ;  θ ← θ − lr · (‖θ‖ / ‖r‖) · r. As in its authors' code, what does not decay (biases, norms)
    has no trust ratio.
    """

    def __init__(
        self, groups: Groups, lr: Tensor, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6
    ) -> None:
        super().__init__(groups, lr, betas, eps)

    def update(self, group: Any, params: Any, grads: Any, averages: Any, squares: Any, corrections: Any) -> None:
        beta1, beta2 = group["betas"]
        torch._foreach_lerp_(averages, grads, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
        updates = _ratio(averages, squares, corrections, group["eps"])
        if group["weight_decay"]:
            torch._foreach_add_(updates, params, alpha=group["weight_decay"])
            sizes, norms = (torch.stack(torch._foreach_norm(tensors)) for tensors in (params, updates))
            trust = torch.where((sizes > 0) & (norms > 0), sizes / norms, 1.0)
            torch._foreach_mul_(updates, list(trust.unbind()))
        torch._foreach_mul_(updates, group["lr"])
        torch._foreach_sub_(params, updates)


class AdaBelief(_Moments):
    """AdaBelief (arXiv:2010.07468, Algorithm 2) with decoupled decay.

    s ← b2 s + (1 − b2)(g − m)² + ε;  θ ← θ − lr · m̂ / (√ŝ + ε) − lr · λθ.
    """

    def __init__(
        self, groups: Groups, lr: Tensor, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-16
    ) -> None:
        super().__init__(groups, lr, betas, eps)

    def update(self, group: Any, params: Any, grads: Any, averages: Any, squares: Any, corrections: Any) -> None:
        beta1, beta2 = group["betas"]
        torch._foreach_lerp_(averages, grads, 1 - beta1)
        surprises = torch._foreach_sub(grads, averages)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, surprises, surprises, 1 - beta2)
        torch._foreach_add_(squares, group["eps"])
        updates = _ratio(averages, squares, corrections, group["eps"])
        if group["weight_decay"]:
            torch._foreach_add_(updates, params, alpha=group["weight_decay"])
        torch._foreach_mul_(updates, group["lr"])
        torch._foreach_sub_(params, updates)
