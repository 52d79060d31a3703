"""Suggest where to start with Adan, given the AdamW settings that work for a model.

One ratio of learning rates: over our searches no rule by length predicts the chosen ratio better out of sample
(docs/tuning.md). tests/benchmarks/test_tuning.py recomputes the numbers here from the records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adan.hyperparameters import Betas, require_count, require_number

#: Adan's lr ÷ AdamW's, and AdamW's weight decay ÷ Adan's: the geometric mean over our searches.
LR_RATIO = 2.5
#: b1 averages over T / AVERAGES steps. On one GPT 0.9 was better than 0.8 and 0.98 at 1,000, 2,000 and 4,000 steps; at
#: 8,000, 0.9 and 0.98 were equal, so the best may lie between them.
AVERAGES = 400
#: The share of the run that warms up at least: that of our searches, but PPO's, the ladder's and those over ranges.
WARMUP = 0.05
#: The smallest lr at which a run of ours with Adan diverged: a ViT, at 16 times AdamW's rate.
DIVERGED_LR = 0.008
_ASSUMED_STEPS = 2_000


@dataclass(frozen=True)
class Suggestion:
    """Options for Adan, and the reason for each.

    Args:
        lr: peak learning rate.
        betas: (b1, b2, b3).
        eps: ε.
        weight_decay: λ.
        warmup_steps: steps of linear growth from 0 to `lr`.
        why: one sentence or two for each decision. The word in brackets says what stands behind it: measured, paper,
            authors, assumption, or kept from AdamW.
    """

    lr: float
    betas: Betas
    eps: float
    weight_decay: float
    warmup_steps: int
    why: tuple[str, ...]

    def options(self) -> dict[str, Any]:
        """Keyword arguments for `adan.Adan`."""
        return {"lr": self.lr, "betas": self.betas, "eps": self.eps, "weight_decay": self.weight_decay}

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options().items())
        head = f"Adan({options}), warm-up of {self.warmup_steps:,} steps"
        return "\n".join([head, *(f"- {reason}" for reason in self.why)])


def suggest_from_adamw(
    lr: float,
    *,
    weight_decay: float = 0.01,
    total_steps: int | None = None,
    warmup_steps: int = 0,
    eps: float = 1e-8,
) -> Suggestion:
    """Suggest where to start with Adan, given the AdamW settings that work for a model.

    With T steps in all, and AdamW's lr₀, λ₀ and w₀ steps of warm-up::

        lr = 2.5·lr₀    λ = λ₀ / 2.5    b1 = 1 − 400 / T, within [0.9, 0.98]    b2 = 0.92    b3 = 0.99
        warm-up = 2·w₀, up to T/2, but at least w₀ and T/20

    It is a starting point: in three of four searches the best lr was within a factor of two. If you can afford three
    runs, try the suggested lr, half of it and twice it. The tuning guide shows the records.

    Args:
        lr: AdamW's peak learning rate, tuned.
        weight_decay: AdamW's λ; the default is that of ``torch.optim.AdamW``.
        total_steps: optimizer steps in the whole run. None assumes 2,000, or ten times `warmup_steps` if that is more.
        warmup_steps: AdamW's.
        eps: AdamW's ε, kept.

    Example:
        >>> from adan import suggest_from_adamw
        >>> s = suggest_from_adamw(1e-3, weight_decay=0.1, total_steps=1500)
        >>> s.options()
        {'lr': 0.0025, 'betas': (0.9, 0.92, 0.99), 'eps': 1e-08, 'weight_decay': 0.04}
        >>> s.warmup_steps
        75
    """
    lr = require_number("lr", lr, positive=True, remedy="give the peak learning rate of your AdamW run")
    weight_decay = require_number("weight_decay", weight_decay, positive=False, remedy="give AdamW's, or 0.0")
    eps = require_number("eps", eps, positive=False, remedy="AdamW's default is 1e-8")
    warmup_steps = require_count("warmup_steps", warmup_steps, least=0, remedy="give AdamW's, or 0")
    why = []
    if total_steps is None:
        steps = max(_ASSUMED_STEPS, 10 * warmup_steps)
        why.append(f"total_steps = {steps:,} (assumption): not given; b1 and the warm-up depend on it.")
    else:
        steps = require_count("total_steps", total_steps, least=1, remedy="give optimizer steps, not epochs")
        if warmup_steps >= steps:
            raise ValueError(f"warmup_steps={warmup_steps} must be below total_steps={steps}; both count steps")

    new_lr = _round(LR_RATIO * lr)
    reason = f"lr = {new_lr:g}, {LR_RATIO:g} × AdamW's (measured): the geometric mean over our searches."
    if new_lr >= DIVERGED_LR:
        reason += f" One of our runs diverged at {DIVERGED_LR:g}: a ViT, at 16 × its AdamW's lr."
    decay = _round(weight_decay / LR_RATIO)
    b1 = first_beta(steps)
    source = "paper" if b1 == 0.98 else "measured" if b1 == 0.9 else "assumption"
    warmup = max(warmup_steps, round(WARMUP * steps), min(2 * warmup_steps, steps // 2))
    if warmup == 1:  # torch's OneCycleLR divides by one less
        warmup = 2 if steps > 2 else 0
    why += [
        reason,
        f"b1 = {b1:g} ({source}): on one GPT 0.9 was best up to 4,000 steps, 0.98 equal at 8,000; the paper has 0.98."
        + f" Between these, 1 − {AVERAGES} / T." * (source == "assumption"),
        "b2 = 0.92 (paper): Adan is not sensitive to it.",
        "b3 = 0.99 (paper): its default.",
        f"weight_decay = {decay:g}, AdamW's ÷ {LR_RATIO:g} (paper): 0.02 for ViT, AdamW 0.05; lr·λ stays AdamW's.",
        f"warmup_steps = {warmup:,} (authors): twice AdamW's, at most half the run, but at least AdamW's own"
        f" and {WARMUP:.0%}.",
        f"eps = {eps:g} (kept): the paper also keeps the compared optimizer's ε.",
    ]
    return Suggestion(new_lr, (b1, 0.92, 0.99), eps, decay, warmup, tuple(why))


def first_beta(total_steps: int) -> float:
    """b1 for a run of T steps, 1 − 400 / T within [0.9, 0.98]: 0.9 up to 4,000 steps, 0.98 from 20,000 on."""
    return round(min(0.98, max(0.9, 1 - AVERAGES / total_steps)), 3)


def _round(x: float) -> float:
    """Round to three digits: more would suggest a precision that no rule here has."""
    return float(f"{x:.3g}")
