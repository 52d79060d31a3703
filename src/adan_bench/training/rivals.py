"""LAMB, Padam and Adai as published: the packaged ones differ from their papers.

pytorch_optimizer 4.1.0: its LAMB divides the rate by 1 − b1ᵗ after the trust ratio, clamps ‖θ‖ at 10 and decays outside
of the ratio, so that the first step is ten times too long; its Padam lacks the maximum over v; its Adai keeps the mean
of v above eps, which for the gradients of most networks makes the momentum nearly constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Parameters = Iterable[nn.Parameter] | list[dict[str, Any]]


class _Rival(Optimizer):
    """The step of all three: a count and zeros of the names `STATE` for each parameter, then `_update`."""

    STATE: tuple[str, ...] = ()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        pairs = [(p, group) for group in self.param_groups for p in group["params"] if p.grad is not None]
        for p, _ in pairs:
            state = self.state[p]
            if not state:
                state.update(step=0, **{name: torch.zeros_like(p) for name in self.STATE})
            state["step"] += 1
        self._update(pairs)
        return loss

    def _update(self, pairs: list[tuple[nn.Parameter, dict[str, Any]]]) -> None:
        raise NotImplementedError


def _moments(p: Tensor, grad: Tensor, state: dict[str, Any], betas: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Adam's m and v, of which no bias is corrected yet."""
    m, v = state["exp_avg"], state["exp_avg_sq"]
    m.lerp_(grad, 1 - betas[0])
    v.mul_(betas[1]).addcmul_(grad, grad, value=1 - betas[1])
    return m, v


class Lamb(_Rival):
    """LAMB (arXiv:1904.00962, Algorithm 2): r = m̂ / (√v̂ + ε) + λθ;  θ ← θ − lr · (‖θ‖ / ‖r‖) · r for each tensor.

    always_adapt: False leaves tensors that do not decay without a trust ratio, as timm's LAMB does by default, with
        which procedure A2 of Wightman et al. 2021 was made.
    """

    STATE = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        always_adapt: bool = True,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "always_adapt": always_adapt}
        super().__init__(params, defaults)

    def _update(self, pairs: list[tuple[nn.Parameter, dict[str, Any]]]) -> None:
        for p, group in pairs:
            assert p.grad is not None
            state, (b1, b2), decay = self.state[p], group["betas"], group["weight_decay"]
            m, v = _moments(p, p.grad, state, (b1, b2))
            root = v.div(1 - b2 ** state["step"]).sqrt_().add_(group["eps"])
            r = m.div(1 - b1 ** state["step"]).div_(root).add_(p, alpha=decay)
            if decay or group["always_adapt"]:
                size, norm = p.norm(), r.norm()
                r.mul_(torch.where((size > 0) & (norm > 0), size / norm, 1.0))
            p.sub_(r, alpha=group["lr"])


class Padam(_Rival):
    """Padam (arXiv:1806.06763): v̂ = max(v̂, v);  θ ← θ − lr · (√(1 − b2ᵗ) / (1 − b1ᵗ)) · m / (√v̂ + ε)^2p.

    The bias corrections are those of its authors' code, the paper has none; decay is coupled: g ← g + λθ.
    """

    STATE = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")

    def __init__(
        self,
        params: Parameters,
        lr: float = 0.1,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        partial: float = 0.25,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "partial": partial}
        super().__init__(params, defaults)

    def _update(self, pairs: list[tuple[nn.Parameter, dict[str, Any]]]) -> None:
        for p, group in pairs:
            assert p.grad is not None
            state, (b1, b2) = self.state[p], group["betas"]
            m, v = _moments(p, p.grad.add(p, alpha=group["weight_decay"]), state, (b1, b2))
            largest = torch.maximum(state["max_exp_avg_sq"], v, out=state["max_exp_avg_sq"])
            root = largest.sqrt().add_(group["eps"]).pow_(2 * group["partial"])
            rate = group["lr"] * math.sqrt(1 - b2 ** state["step"]) / (1 - b1 ** state["step"])
            p.addcdiv_(m, root, value=-rate)


class Adai(_Rival):
    """Adai (arXiv:2006.15815): the momentum of each weight is smaller where its gradients are larger.

    v ← b2 v + (1 − b2) g²;  b1 = clip(1 − (b0 / v̄) v̂, 0, 1 − ε), v̄ the mean of v̂ over all parameters;
    m ← b1 m + (1 − b1) g;  θ ← θ − lr · m / (1 − ∏ b1). betas are (b0, b2); decay is coupled: g ← g + λθ.
    """

    STATE = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Parameters,
        lr: float = 1.0,
        betas: tuple[float, float] = (0.1, 0.99),
        eps: float = 1e-3,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def _update(self, pairs: list[tuple[nn.Parameter, dict[str, Any]]]) -> None:
        grads, squares = [], []
        for p, group in pairs:
            assert p.grad is not None
            state, b2 = self.state[p], group["betas"][1]
            grads.append(p.grad.add(p, alpha=group["weight_decay"]))
            state["exp_avg_sq"].mul_(b2).addcmul_(grads[-1], grads[-1], value=1 - b2)
            squares.append(state["exp_avg_sq"] / (1 - b2 ** state["step"]))
        if not pairs:
            return
        mean = torch.stack([square.sum() for square in squares]).sum() / sum(p.numel() for p, _ in pairs)
        inverse = torch.where(mean > 0, 1 / mean, 0.0)  # all gradients so far may be 0
        for (p, group), grad, square in zip(pairs, grads, squares, strict=True):
            state = self.state[p]
            b1 = (1 - square * (group["betas"][0] * inverse)).clamp_(0.0, 1 - group["eps"])
            product = state.setdefault("beta1_product", torch.ones_like(p)).mul_(b1)
            state["exp_avg"].mul_(b1).addcmul_(1 - b1, grad)
            p.addcdiv_(state["exp_avg"], 1 - product, value=-group["lr"])
