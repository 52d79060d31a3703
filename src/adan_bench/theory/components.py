"""Adan taken apart, as in the paper's table of components: heavy ball → Nesterov → proximal decay → restart.

One small optimizer with a flag a component, to be read and to be ablated; train with `adan.Adan`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class Components(torch.optim.Optimizer):
    """Everything off is AdamW; everything on but restart is Adan; with `radius` it restarts by Eqn 8.

    betas: (b1, b2, b3) = 1 − the paper's β; b2 plays no part without Nesterov.
    radius: R of Eqn 8. `accumulated` is (k + 1)·Σ after the last step, `restarts` the 1-based steps after which it
        passed R². math.inf accumulates and never restarts; None does not look at all.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float, float] = (0.9, 0.92, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        nesterov: bool = True,
        proximal: bool = True,
        radius: float | None = None,
        bias_correction: bool = True,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.nesterov, self.proximal, self.radius, self.bias_correction = nesterov, proximal, radius, bias_correction
        self.steps, self.k, self.sum, self.accumulated = 0, 0, 0.0, 0.0
        self.restarts: list[int] = []

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        if closure is not None:
            raise ValueError("closure: Components takes none; call backward() before step()")
        self.steps += 1
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, p.grad, group)
        if self.radius is not None:
            self.accumulated = (self.k + 1) * self.sum
            self.k += 1
            if self.accumulated > self.radius**2:
                self.restarts.append(self.steps)
                self.state.clear()
                self.k, self.sum = 0, 0.0
        return None

    def _update(self, p: Tensor, g: Tensor, group: dict[str, Any]) -> None:
        lr, eps, decay = group["lr"], group["eps"], group["lr"] * group["weight_decay"]
        b1, b2, b3 = group["betas"]
        s = self.state[p]
        if not s:
            s.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p), n=torch.zeros_like(p), g=g, y=p.clone())
        s["t"] += 1
        t = s["t"]
        w1, w2, w3, c1, c2, c3 = _weights((b1, b2, b3), t, self.bias_correction)
        d = g - s["g"] if self.nesterov else torch.zeros_like(g)
        s["m"] += w1 * (g - s["m"])
        s["v"] += w2 * (d - s["v"])
        s["n"] += w3 * ((g + b2 * d) ** 2 - s["n"])
        s["g"] = g.clone()
        u = s["m"] / c1 + b2 * s["v"] / c2
        root = (s["n"] / c3).sqrt() + eps
        before = p.clone() if t == 1 else s["y"]
        if self.proximal:
            p.sub_(lr * u / root).div_(1 + decay)
        else:
            p.mul_(1 - decay).sub_(lr * u / root)
        if self.radius is not None:
            y = p.clone() if t == 1 else p + lr * (u - (1 - b1) * g) / root
            self.sum += float((root * (y - before) ** 2).sum())
            s["y"] = y

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "cycle": (self.steps, self.k, self.sum, list(self.restarts))}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.steps, self.k, self.sum, self.restarts = state_dict["cycle"]
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "cycle"})


def _weights(betas: tuple[float, float, float], t: int, bias_correction: bool) -> tuple[float, ...]:
    """What is new weighs w in m, v and n, and what divides them: 1 − bᵗ, or the footnote's start and no division."""
    b1, b2, b3 = betas
    if bias_correction:
        return 1 - b1, 1 - b2, 1 - b3, 1 - b1**t, 1 - b2**t, 1 - b3**t
    first = t == 1
    return 1.0 if first else 1 - b1, 1.0 if t <= 2 else 1 - b2, 1.0 if first else 1 - b3, 1.0, 1.0, 1.0


#: The rows of the paper's table "component": the flags of each, and the paper's training loss.
ROWS: dict[str, tuple[dict[str, Any], float]] = {
    "heavy-ball": ({"nesterov": False, "proximal": False, "radius": None}, 2.646),
    "nesterov": ({"nesterov": True, "proximal": False, "radius": None}, 2.630),
    "nesterov-proximal": ({"nesterov": True, "proximal": True, "radius": None}, 2.628),
    "nesterov-proximal-restart": ({"nesterov": True, "proximal": True, "radius": math.inf}, 2.622),
}
