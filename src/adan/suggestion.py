"""Where to start with Adan, given the AdamW settings that work for a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from adan.hyperparameters import Betas, require_count, require_number, scaled_lr

Task: TypeAlias = Literal["vision", "lm", "moe", "finetune", "rl"]

#: Averaging windows of 1/(1 − b1) steps that a run should hold. At 500 steps 10 windows (b1 = 0.98) were far too few
#: and 50 (b1 = 0.9) were ahead of AdamW; the paper's shortest ViT run has 1,250.
_WINDOWS = 300
#: Where 300 windows of b1 = 0.9 end.
_SHORT_RUN = 3_000
#: 100 epochs of ImageNet at batch 2048: the shortest ViT run for which the paper states lr 1.5e-2.
_LONG_RUN = 62_500
#: b1 becomes 0.94, the paper's best for language models; in the measured run of 500 it was level with AdamW.
_ASSUMED_STEPS = 5_000

_SHORT_RATIO, _LONG_RATIO = 3.0, 7.5
_MEASURED = "on a character GPT (batch 64, 500 steps, two seeds)"


@dataclass(frozen=True)
class Suggestion:
    """Options for Adan, and the reason for each.

    Args:
        lr: peak learning rate.
        betas: (b1, b2, b3).
        eps: ε.
        weight_decay: λ.
        warmup_steps: steps of linear growth from 0 to `lr`.
        why: one sentence or two for each decision. The word in brackets says what stands behind it: paper, measured,
            rule of thumb, assumption, or kept from AdamW.

    Example:
        >>> from adan import suggest_from_adamw
        >>> suggest_from_adamw(3e-4, task="rl", total_steps=200_000).options()
        {'lr': 0.0003, 'betas': (0.98, 0.92, 0.99), 'eps': 1e-08, 'weight_decay': 0.0}
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
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    total_steps: int | None = None,
    warmup_steps: int = 0,
    task: Task | None = None,
    batch_size: int | None = None,
    eps: float = 1e-8,
) -> Suggestion:
    """Where to start with Adan, given the AdamW settings that work for a model.

    With T steps in all, and AdamW's lr₀, λ₀ and first beta b₀::

        b1 = 1 − 300/T, but at least b₀ and at most 0.98 (0.94 for language models)
        lr = r·lr₀,  r = 3;  for vision from 3 at T ≤ 3,000 to 7.5 at T ≥ 62,500, log r linear in log T between
        λ  = λ₀/r, so that lr·λ stays;  for vision λ₀/√r, which meets the paper's 0.02 from DeiT's 0.05

    Fine-tuning and reinforcement learning have r = 1, as in the paper. It is a starting point: if you can afford three
    runs, try the suggested lr, half of it and twice it.

    Args:
        lr: AdamW's peak learning rate.
        weight_decay: AdamW's λ.
        betas: AdamW's two. A first beta under 0.9 and a second of 0.95 or less are taken as deliberate and kept.
        total_steps: optimizer steps in the whole run. None assumes 5,000, or ten times `warmup_steps` if that is more:
            b1 too small costs a long run little, b1 too large ruins a short one.
        warmup_steps: AdamW's. Where lr grows it is raised to two windows of 1/(1 − b3) steps, or to T/20 if that is
            less; for vision to T/20.
        task: "vision" (classifiers trained from scratch), "lm" (language models), "moe" (mixtures of experts),
            "finetune" or "rl". None makes no use of the kind of model.
        batch_size: samples a step. For vision, lr is not raised above `scaled_lr(batch_size)`; elsewhere it changes
            nothing.
        eps: AdamW's ε, kept.

    Example:
        >>> from adan import suggest_from_adamw
        >>> s = suggest_from_adamw(1e-3, weight_decay=0.1, total_steps=1500, task="lm")
        >>> s.options()
        {'lr': 0.003, 'betas': (0.9, 0.92, 0.99), 'eps': 1e-08, 'weight_decay': 0.0333}
        >>> s.warmup_steps
        75
        >>> suggest_from_adamw(2e-3, weight_decay=0.05, total_steps=187_500, task="vision", batch_size=2048).lr
        0.015
    """
    lr = require_number("lr", lr, positive=True, remedy="give the peak learning rate of your AdamW run")
    weight_decay = require_number("weight_decay", weight_decay, positive=False, remedy="give AdamW's, or 0.0")
    eps = require_number("eps", eps, positive=False, remedy="AdamW's default is 1e-8")
    adamw_betas = _require_pair(betas)
    warmup_steps = require_count("warmup_steps", warmup_steps, least=0, remedy="give AdamW's, or 0")
    if total_steps is not None:
        total_steps = require_count("total_steps", total_steps, least=1, remedy="give optimizer steps, not epochs")
        if warmup_steps >= total_steps:
            raise ValueError(f"warmup_steps={warmup_steps} must be below total_steps={total_steps}; both count steps")
    if task is not None and task not in get_args(Task):
        raise ValueError(f"task must be one of {', '.join(map(repr, get_args(Task)))} or None, got {task!r}")
    if batch_size is not None:
        batch_size = require_count("batch_size", batch_size, least=1, remedy="give the samples of one step")

    why: list[str] = []
    steps = max(_ASSUMED_STEPS, 10 * warmup_steps) if total_steps is None else total_steps
    if total_steps is None and task != "finetune":
        why.append(
            f"total_steps = {steps:,} (assumption): none was given. A b1 too small costs a long run little, one too "
            "large ruins a short one; pass total_steps to do better."
        )
    new_lr = _choose_lr(lr, task, steps, batch_size, why)
    new_betas = _choose_betas(adamw_betas, task, steps, why)
    new_decay = _choose_weight_decay(weight_decay, task, new_lr / lr, why)
    new_warmup = _choose_warmup(warmup_steps, task, steps, new_betas[2], new_lr > lr, why)
    why.append(f"eps = {eps:g} (kept): the paper leaves ε as the compared optimizer had it.")
    return Suggestion(new_lr, new_betas, eps, new_decay, new_warmup, tuple(why))


def _choose_lr(lr: float, task: Task | None, steps: int, batch_size: int | None, why: list[str]) -> float:
    if task == "finetune":
        why.append(
            f"lr = {lr:g} (paper): BERT was fine-tuned at 2e-5 or 4e-5, which is usual for Adam too. MAE's fine-tuning "
            'had 1.5e-2, 7.5 × the official AdamW: for that take recipes["mae-finetune"].'
        )
    elif task == "rl":
        why.append(f"lr = {lr:g} (paper): PPO kept Adam's 3e-4.")
    elif task == "vision":
        return _choose_vision_lr(lr, steps, batch_size, why)
    else:
        new_lr = _round(_SHORT_RATIO * lr)
        evidence = "measured" if task == "lm" and steps <= _SHORT_RUN else "rule of thumb"
        why.append(
            f"lr = {new_lr:g}, 3 × AdamW's ({evidence}): {_MEASURED} 3 × AdamW's tuned lr, with b1 = 0.9, was ahead "
            "after 500. The paper's ratios run from almost 3 over LAMB (ResNet) to 7.5 over DeiT's AdamW (long ViTs)."
        )
        lr = new_lr
    if batch_size is not None:
        why.append(
            f"batch_size = {batch_size:,} changes nothing here (rule of thumb): the paper tested its square-root rule "
            "on ViT-S alone, and AdamW's lr is already that of this batch."
        )
    return lr


def _choose_vision_lr(lr: float, steps: int, batch_size: int | None, why: list[str]) -> float:
    reach = math.log(steps / _SHORT_RUN) / math.log(_LONG_RUN / _SHORT_RUN)
    ratio = _SHORT_RATIO * (_LONG_RATIO / _SHORT_RATIO) ** min(1.0, max(0.0, reach))
    new_lr = _round(ratio * lr)
    if steps >= _LONG_RUN:
        why.append(
            f"lr = {new_lr:g}, 7.5 × AdamW's (paper): 1.5e-2 at batch 2048, where DeiT's rule for AdamW gives 2e-3. "
            'Masked pre-training is not like that: take recipes["mae-pretrain"].'
        )
    else:
        why.append(
            f"lr = {new_lr:g}, {ratio:.2g} × AdamW's (rule of thumb): between 3, measured {_MEASURED}, and the paper's "
            f"7.5 for ViT runs of {_LONG_RUN:,} steps and more."
        )
    if batch_size is not None:
        limit = _round(scaled_lr(batch_size))
        if new_lr > limit:
            new_lr = max(lr, limit)
            why.append(
                f"lr = {new_lr:g} instead (paper): its square-root rule gives {limit:g} for batch {batch_size:,}, "
                "which limits the rise over AdamW's lr."
            )
        else:
            why.append(
                f"batch_size = {batch_size:,} allows that lr (paper): its square-root rule gives {limit:g}. Its large "
                "batches had long warm-ups, from 20 epochs of ImageNet at 1k to 200 at 32k."
            )
    return new_lr


def _choose_betas(betas: tuple[float, float], task: Task | None, steps: int, why: list[str]) -> Betas:
    if task == "finetune":
        why.append("betas = (0.98, 0.99, 0.99) (paper): what it fine-tuned BERT with, whatever the length of the run.")
        return 0.98, 0.99, 0.99
    b1 = _choose_b1(betas[0], task, steps, why)
    why.append("b2 = 0.92 (paper): Adan is not sensitive to it.")

    b3 = 0.99
    if task == "moe" or (task == "lm" and steps > _SHORT_RUN):
        b3 = 0.95
    if betas[1] <= 0.95:
        b3 = min(b3, betas[1])
        why.append(f"b3 = {b3:g} (kept): AdamW's second beta is 0.95 or less, a choice that Adan's should not exceed.")
    elif b3 == 0.95:
        why.append("b3 = 0.95 (paper): better than 0.99 at b1 = 0.9 and 0.94 in its sweep over a mixture of experts.")
    elif task == "lm":
        why.append(f"b3 = 0.99 (measured): {_MEASURED} (0.9, 0.92, 0.99) was ahead of (0.94, 0.92, 0.95).")
    else:
        why.append(f"b3 = 0.99 (paper): its default, beside AdamW's {betas[1]:g}.")
    return b1, 0.92, b3


def _choose_b1(adamw_b1: float, task: Task | None, steps: int, why: list[str]) -> float:
    language = task in ("lm", "moe")
    most = 0.94 if language else 0.98
    if adamw_b1 < 0.9:
        why.append(f"b1 = {adamw_b1:g} (kept): AdamW's is under 0.9, a choice that no evidence here speaks against.")
        return adamw_b1
    if adamw_b1 >= most:
        why.append(f"b1 = {adamw_b1:g} (kept): AdamW's already averages as long as Adan's {most:g} would.")
        return adamw_b1
    b1 = min(most, max(adamw_b1, round(1 - _WINDOWS / steps, 3)))
    if b1 == adamw_b1:
        evidence = "measured" if task == "lm" else "rule of thumb"
        why.append(
            f"b1 = {b1:g}, as AdamW's ({evidence}): {steps:,} steps do not hold {_WINDOWS} windows of 1/(1 − b1). "
            f"{_MEASURED[0].upper()}{_MEASURED[1:]} 0.9 reached a validation loss of 1.568, tuned AdamW 1.621, "
            "and 0.98, at the lr of 0.9, only 1.834."
        )
    elif b1 < most:
        why.append(
            f"b1 = {b1:g} (rule of thumb): {steps:,} steps hold {_WINDOWS} windows of 1/(1 − b1) steps. 0.9 was "
            f"measured at 500 steps, {most:g} is the paper's."
        )
    elif language:
        why.append(
            "b1 = 0.94 (paper): the best for its mixture of experts, with a loss of 2.835 against 2.857 at 0.98."
        )
    else:
        why.append(f"b1 = 0.98 (paper): its default; {steps:,} steps hold {_WINDOWS} windows of 50 steps or more.")
    return b1


def _choose_weight_decay(weight_decay: float, task: Task | None, ratio: float, why: list[str]) -> float:
    if task == "rl":
        why.append("weight_decay = 0 (paper): none for PPO.")
        return 0.0
    if weight_decay == 0:
        why.append("weight_decay = 0 (kept): AdamW had none. The paper's default for Adan is 0.02.")
        return 0.0
    if ratio == 1:
        why.append(f"weight_decay = {weight_decay:g} (kept): lr is AdamW's, so lr·λ is too.")
        return weight_decay
    if task == "vision":
        new = _round(weight_decay / math.sqrt(ratio))
        why.append(
            f"weight_decay = {new:g}, AdamW's/√{ratio:.3g} (rule of thumb): so DeiT's 0.05 becomes 0.018 at a ratio of "
            "7.5, where the paper tuned 0.02; lr·λ grows by √ratio."
        )
        return new
    new = _round(weight_decay / ratio)
    why.append(
        f"weight_decay = {new:g}, AdamW's/{ratio:.3g} (rule of thumb): a step shrinks weights by lr·λ, and this keeps "
        "lr·λ as it was. The paper's default is 0.02."
    )
    return new


def _choose_warmup(given: int, task: Task | None, steps: int, b3: float, lr_grows: bool, why: list[str]) -> int:
    least = steps // 20
    reason = "a twentieth of the run; the paper's shortest warm-up on ImageNet is 20 epochs, at batch 1k."
    if task != "vision":
        least = min(least, round(2 / (1 - b3)))
        reason = "two windows of 1/(1 − b3) steps settle the second moment; at most a twentieth of the run."
    if given >= least or not lr_grows:
        why.append(f"warmup_steps = {given:,} (kept): as with AdamW.")
        return given
    why.append(f"warmup_steps = {least:,} (rule of thumb): {reason}")
    return least


def _round(x: float) -> float:
    """To three digits: more would pretend to a precision that no rule here has."""
    return float(f"{x:.3g}")


def _require_pair(betas: object) -> tuple[float, float]:
    if not isinstance(betas, Sequence) or isinstance(betas, str) or len(betas) != 2:
        raise ValueError(f"betas must be AdamW's two numbers, got {betas!r}; AdamW's default is (0.9, 0.999)")
    first, second = (
        require_number(f"betas[{i}]", b, positive=False, remedy="AdamW's default is (0.9, 0.999)")
        for i, b in enumerate(betas)
    )
    for i, b in enumerate((first, second)):
        if b >= 1:
            raise ValueError(f"betas[{i}] must be below 1, got {b!r}; AdamW's default is (0.9, 0.999)")
    return first, second
