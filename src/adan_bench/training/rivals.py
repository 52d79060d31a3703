"""LAMB, AdaBelief, Padam and Adai as published, in a form that a CUDA graph can hold.

pytorch_optimizer 4.1.0 has all of them: its LAMB divides the rate by 1 − b1ᵗ after the trust ratio, clamps ‖θ‖ at 10
and decays outside of the ratio, so that the first step is ten times too long; its Padam lacks the maximum over v; its
Adai keeps the mean of v above eps, which for the gradients of most networks makes the momentum nearly constant; its
AdaBelief reads the count of steps on the host.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Parameters = Iterable[nn.Parameter] | list[dict[str, Any]]
Tensors = tuple[Tensor, ...] | list[Tensor]
FLAGS = ("always_adapt", "weight_decouple", "nesterov")


@dataclass
class Cohort:
    """Parameters of one group, device and type that have had the same number of gradients."""

    group: dict[str, Any]
    params: list[Tensor]
    grads: list[Tensor]
    states: list[dict[str, Any]]
    count: Tensor

    def state(self, name: str) -> list[Tensor]:
        return [state[name] for state in self.states]

    def correction(self, beta: float) -> Tensor:
        """1 − βᵗ, in fp64 until it is known."""
        return (1 - torch.pow(beta, self.count)).to(self.params[0].dtype)

    def average(self, grads: Tensors) -> None:
        """Adam's m and v, of which no bias is corrected yet."""
        b1, b2 = self.group["betas"]
        torch._foreach_lerp_(self.state("exp_avg"), grads, 1 - b1)
        self.average_squares(grads, b2)

    def average_squares(self, values: Tensors, beta: float) -> None:
        torch._foreach_mul_(self.state("exp_avg_sq"), beta)
        torch._foreach_addcmul_(self.state("exp_avg_sq"), values, values, 1 - beta)

    def ratio(self) -> Tensors:
        """m̂ / (√v̂ + ε)."""
        b1, b2 = self.group["betas"]
        roots = torch._foreach_sqrt(self.state("exp_avg_sq"))
        torch._foreach_div_(roots, self.correction(b2).sqrt())
        torch._foreach_add_(roots, self.group["eps"])
        updates = torch._foreach_div(self.state("exp_avg"), self.correction(b1))
        torch._foreach_div_(updates, roots)
        return updates

    def descend(self, updates: Tensors) -> None:
        """θ ← θ − lr · update."""
        torch._foreach_mul_(updates, self.group["lr"])
        torch._foreach_sub_(self.params, updates)

    def coupled(self) -> Tensors:
        """The gradient with decay in it, g + λθ."""
        decay = self.group["weight_decay"]
        return torch._foreach_add(self.grads, self.params, alpha=decay) if decay else self.grads


class Rival(Optimizer):
    """A step in three parts: zeros of the names `STATE` for each new parameter, a count, then `_update`.

    The count is a tensor beside the parameters, one for all that have had the same gradients, so that a step is a few
    operations on lists of tensors and reads nothing back.
    A subclass states its settings and their defaults as class keywords.
    """

    STATE: tuple[str, ...] = ()
    SIGNATURE: inspect.Signature

    def __init_subclass__(cls, **defaults: Any) -> None:
        settings = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=v) for n, v in defaults.items()]
        params = inspect.Parameter("params", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        cls.__signature__ = cls.SIGNATURE = inspect.Signature([params, *settings])  # type: ignore[attr-defined]

    def __init__(self, params: Parameters, **settings: Any) -> None:
        try:
            given = self.SIGNATURE.bind(params, **settings)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}: {error}; it has {self.SIGNATURE}") from None
        given.apply_defaults()
        for name, value in given.kwargs.items():
            _check(name, value)
        super().__init__(params, given.kwargs)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        parts = self._parts()
        for count in {id(part.count): part.count for part in parts}.values():
            count += 1
        self._update(parts)
        return loss

    def _parts(self) -> list[Cohort]:
        parts: dict[Any, Cohort] = {}
        zeros: dict[torch.device, Tensor] = {}
        counts = {id(self.state[p]["step"]) for p in self._params() if p.grad is not None and self.state[p]}
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if p.grad is None:
                    if state and id(state["step"]) in counts:  # others with the same count go on without it
                        state["step"] = state["step"].clone()
                    continue
                if not state:
                    if p.device not in zeros:
                        zeros[p.device] = torch.zeros((), dtype=torch.float64, device=p.device)
                    state.update(step=zeros[p.device], **{name: torch.zeros_like(p) for name in self.STATE})
                key = id(group), id(state["step"]), p.dtype
                part = parts.setdefault(key, Cohort(group, [], [], [], state["step"]))
                part.params.append(p)
                part.grads.append(p.grad)
                part.states.append(state)
        return list(parts.values())

    def _params(self) -> Iterable[Tensor]:
        return (p for group in self.param_groups for p in group["params"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        shared: dict[Any, Tensor] = {}
        for p in self._params():
            if state := self.state[p]:
                count = torch.as_tensor(state["step"], dtype=torch.float64, device=p.device)
                state["step"] = shared.setdefault((p.device, count.item()), count)

    def _update(self, parts: list[Cohort]) -> None:
        raise NotImplementedError


def _check(name: str, value: Any) -> None:
    """Refuse a value with which no step makes sense."""
    if name in FLAGS:
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, got {value!r}")
    elif name == "betas":
        if not isinstance(value, (tuple, list)) or len(value) != 2:
            raise ValueError(f"betas must be two numbers, for example 0.9,0.999, got {value!r}")
        for i, beta in enumerate(value):
            _check_number(f"betas[{i}]", beta, below=1)
    elif not isinstance(value, Tensor):  # a learning rate that may lie on a GPU: reading it would be a synchronization
        _check_number(name, value)


def _check_number(name: str, value: Any, below: float = math.inf) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not 0 <= float(value) < below:
        limit = "finite" if below == math.inf else f"below {below}"
        raise ValueError(f"{name} must be at least 0 and {limit}, got {value!r}")


class Lamb(Rival, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0, always_adapt=True):
    """LAMB (arXiv:1904.00962, Algorithm 2): r = m̂ / (√v̂ + ε) + λθ;  θ ← θ − lr · (‖θ‖ / ‖r‖) · r for each tensor.

    always_adapt: False leaves tensors that do not decay without a trust ratio, as its authors' code does, and timm's
        by default, with which procedure A2 of Wightman et al. 2021 was made.
    """

    STATE = ("exp_avg", "exp_avg_sq")

    def _update(self, parts: list[Cohort]) -> None:
        for part in parts:
            part.average(part.grads)
            updates, decay = part.ratio(), part.group["weight_decay"]
            if decay:
                torch._foreach_add_(updates, part.params, alpha=decay)
            if decay or part.group["always_adapt"]:
                sizes, norms = (torch.stack(torch._foreach_norm(tensors)) for tensors in (part.params, updates))
                trust = torch.where((sizes > 0) & (norms > 0), sizes / norms, 1.0)
                torch._foreach_mul_(updates, list(trust.unbind()))
            part.descend(updates)


class AdaBelief(Rival, lr=1e-3, betas=(0.9, 0.999), eps=1e-16, weight_decay=0.0, weight_decouple=True):
    """AdaBelief (arXiv:2010.07468, Algorithm 2): s ← b2 s + (1 − b2)(g − m)² + ε;  θ ← θ − lr · m̂ / (√ŝ + ε).

    weight_decouple: decay apart from the moments, θ ← θ − lr · λθ; False: g ← g + λθ. Neither has the rectification of
        its authors' later releases.
    """

    STATE = ("exp_avg", "exp_avg_sq")

    def _update(self, parts: list[Cohort]) -> None:
        for part in parts:
            b1, b2 = part.group["betas"]
            decoupled = part.group["weight_decouple"]
            grads = part.grads if decoupled else part.coupled()
            torch._foreach_lerp_(part.state("exp_avg"), grads, 1 - b1)
            part.average_squares(torch._foreach_sub(grads, part.state("exp_avg")), b2)
            torch._foreach_add_(part.state("exp_avg_sq"), part.group["eps"])
            updates = part.ratio()
            if decoupled and part.group["weight_decay"]:
                torch._foreach_add_(updates, part.params, alpha=part.group["weight_decay"])
            part.descend(updates)


class Padam(Rival, lr=0.1, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, partial=0.25):
    """Padam (arXiv:1806.06763): v̂ = max(v̂, v);  θ ← θ − lr · (√(1 − b2ᵗ) / (1 − b1ᵗ)) · m / (√v̂ + ε)^2p.

    The bias corrections are those of its authors' code, the paper has none; decay is coupled: g ← g + λθ.
    """

    STATE = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")

    def _update(self, parts: list[Cohort]) -> None:
        for part in parts:
            b1, b2 = part.group["betas"]
            part.average(part.coupled())
            largest = part.state("max_exp_avg_sq")
            torch._foreach_maximum_(largest, part.state("exp_avg_sq"))
            roots = torch._foreach_sqrt(largest)
            torch._foreach_add_(roots, part.group["eps"])
            torch._foreach_pow_(roots, 2 * part.group["partial"])
            updates = torch._foreach_div(part.state("exp_avg"), roots)
            torch._foreach_mul_(updates, part.correction(b2).sqrt() / part.correction(b1))
            part.descend(updates)


class Adai(Rival, lr=1.0, betas=(0.1, 0.99), eps=1e-3, weight_decay=0.0):
    """Adai (arXiv:2006.15815): the momentum of each weight is smaller where its gradients are larger.

    v ← b2 v + (1 − b2) g²;  b1 = clip(1 − (b0 / v̄) v̂, 0, 1 − ε), v̄ the mean of v̂ over all parameters;
    m ← b1 m + (1 − b1) g;  θ ← θ − lr · m / (1 − ∏ b1). betas are (b0, b2); decay is coupled: g ← g + λθ.
    """

    STATE = ("exp_avg", "exp_avg_sq")

    def _update(self, parts: list[Cohort]) -> None:
        grads, corrected, sums = [], [], []
        for part in parts:
            b2 = part.group["betas"][1]
            grads.append(part.coupled())
            part.average_squares(grads[-1], b2)
            corrected.append(torch._foreach_div(part.state("exp_avg_sq"), part.correction(b2)))
            sums += [square.sum() for square in corrected[-1]]
        if not parts:
            return
        mean = torch.stack(sums).sum() / sum(p.numel() for part in parts for p in part.params)
        inverse = torch.where(mean > 0, 1 / mean, 0.0)  # all gradients so far may be 0
        for part, gradients, squares in zip(parts, grads, corrected, strict=True):
            for p, state in zip(part.params, part.states, strict=True):
                state.setdefault("beta1_product", torch.ones_like(p))
            b1s = torch._foreach_mul(squares, -part.group["betas"][0] * inverse)
            torch._foreach_add_(b1s, 1.0)
            torch._foreach_clamp_min_(b1s, 0.0)
            torch._foreach_clamp_max_(b1s, 1 - part.group["eps"])
            products, averages = part.state("beta1_product"), part.state("exp_avg")
            torch._foreach_mul_(products, b1s)
            torch._foreach_mul_(averages, b1s)
            shares = torch._foreach_neg(b1s)
            torch._foreach_add_(shares, 1.0)
            torch._foreach_addcmul_(averages, shares, gradients)
            rest = torch._foreach_neg(products)
            torch._foreach_add_(rest, 1.0)
            part.descend(torch._foreach_div(averages, rest))
