"""Which hyper-parameters: the paper's by task (`recipes`), and a translation of AdamW's (`suggest_from_adamw`).

The paper writes β for what `betas` calls 1 − β. Everything here is in the convention of `betas`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias, get_args

Betas: TypeAlias = tuple[float, float, float]
Task: TypeAlias = Literal["vision", "lm", "moe", "finetune", "rl"]


def _require_number(name: str, value: object, *, positive: bool, remedy: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r} of type {type(value).__name__}; {remedy}")
    number = float(value)
    if not math.isfinite(number) or number < 0 or (positive and number == 0):
        raise ValueError(f"{name} must be finite and {'above' if positive else 'at least'} 0, got {value!r}; {remedy}")
    return number


def _require_count(name: str, value: object, *, least: int, remedy: str) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, got {value!r} of type {type(value).__name__}; {remedy}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value!r}; {remedy}")
    return int(value)


def _require_pair(betas: object) -> tuple[float, float]:
    if not isinstance(betas, Sequence) or isinstance(betas, str) or len(betas) != 2:
        raise ValueError(f"betas must be AdamW's two numbers, got {betas!r}; AdamW's default is (0.9, 0.999)")
    first, second = (
        _require_number(f"betas[{i}]", b, positive=False, remedy="AdamW's default is (0.9, 0.999)")
        for i, b in enumerate(betas)
    )
    for i, b in enumerate((first, second)):
        if b >= 1:
            raise ValueError(f"betas[{i}] must be below 1, got {b!r}; AdamW's default is (0.9, 0.999)")
    return first, second


def scaled_lr(batch_size: int, base_lr: float = 6.25e-3, base_batch_size: int = 256) -> float:
    """The paper's learning rate for a batch size: the square-root rule.

    lr = base_lr · √(batch_size / base_batch_size). The paper uses it for ViT-S on ImageNet at batches of 1k to 32k;
    its other ImageNet runs, at 2048, have 1.5e-2, where the rule gives 1.77e-2.

    Args:
        batch_size: samples a step, over all devices and accumulated micro-batches.
        base_lr: the rate that suits `base_batch_size`; the default is the paper's for vision models.
        base_batch_size: the batch that `base_lr` belongs to.

    Example:
        >>> from adan import scaled_lr
        >>> scaled_lr(4096)
        0.025
        >>> scaled_lr(512, base_lr=3e-3, base_batch_size=128)
        0.006
    """
    batch_size = _require_count("batch_size", batch_size, least=1, remedy="give the samples of one step")
    base_batch_size = _require_count("base_batch_size", base_batch_size, least=1, remedy="give the batch of base_lr")
    base_lr = _require_number("base_lr", base_lr, positive=True, remedy="the paper's is 6.25e-3")
    return base_lr * math.sqrt(batch_size / base_batch_size)


# --- the paper's settings -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Hyper-parameters that the paper states for one task; None where it states none.

    Args:
        lr: peak learning rate. Schedules are the host codebase's; on ImageNet, cosine decay.
        betas: (b1, b2, b3), each 1 minus the paper's β.
        source: the part of the paper that states it.
        weight_decay: λ.
        eps: ε. The paper leaves it as the compared optimizer had it, without naming a value.
        max_grad_norm: limit of the global gradient norm; 0.0 where the paper says that it does not clip.
        batch_size: samples a step.
        warmup_epochs: epochs of linear growth from 0 to `lr`.
        no_prox: False is the proximal decay of Algorithm 1, which the paper uses.
        lr_sweep: the rates that the paper chose from, where it names several; `lr` is the first.
        length: how long the paper trained.
        notes: what is not stated, or needs care.

    Example:
        >>> from adan import recipes
        >>> recipes["bert-finetune"].options()
        {'lr': 2e-05, 'betas': (0.98, 0.99, 0.99), 'weight_decay': 0.01, 'no_prox': False}
    """

    lr: float | None
    betas: Betas
    source: str
    weight_decay: float | None = 0.02
    eps: float | None = None
    max_grad_norm: float | None = None
    batch_size: int | None = None
    warmup_epochs: int | None = None
    no_prox: bool = False
    lr_sweep: tuple[float, ...] = ()
    length: str = ""
    notes: str = ""

    def options(self) -> dict[str, Any]:
        """Keyword arguments for `adan.Adan`. What the paper does not state is left out, and is then Adan's default."""
        names = ("lr", "betas", "eps", "weight_decay", "max_grad_norm", "no_prox")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class _Recipes(Mapping[str, Recipe]):
    """A read-only mapping whose KeyError lists what there is."""

    def __init__(self, entries: Mapping[str, Recipe]) -> None:
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> Recipe:
        try:
            return self._entries[name]
        except KeyError:
            raise KeyError(f"no recipe {name!r}; there are: {', '.join(self._entries)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"recipes({', '.join(self._entries)})"


_DEFAULT_BETAS = (0.98, 0.92, 0.99)
_DETAILS = "Implementation Details of Adan"
_WARMUP_UNSTATED = "Warm-up was tuned, its length is not stated."
_DECAY_BY_DEFAULT = "The decay is the paper's 0.02 “unless noted otherwise”."
_HOST_SETTING = "Batch, warm-up, schedule and clipping are the host codebase's and are not stated."


def _imagenet(setting: str, length: str, *, max_grad_norm: float = 0.0, notes: str = "") -> Recipe:
    return Recipe(
        lr=1.5e-2,
        betas=_DEFAULT_BETAS,
        max_grad_norm=max_grad_norm,
        batch_size=2048,
        length=length,
        source=f"{_DETAILS}; Training {setting}",
        notes=f"{_WARMUP_UNSTATED} {notes}".strip(),
    )


def _large_batch(thousands: int, warmup_epochs: int) -> Recipe:
    batch_size = 1024 * thousands
    return Recipe(
        lr=scaled_lr(batch_size),
        betas=_DEFAULT_BETAS,
        max_grad_norm=0.0,
        batch_size=batch_size,
        warmup_epochs=warmup_epochs,
        source=f"{_DETAILS}; Large-Batch Training",
        notes="ViT-S under Training Setting I, with the square-root rule; the length is not stated.",
    )


#: The paper's settings by task.
recipes: Mapping[str, Recipe] = _Recipes(
    {
        "default": Recipe(
            lr=None,
            betas=_DEFAULT_BETAS,
            source=_DETAILS,
            notes="What holds where nothing else is stated: GPT-2, Deformable-DETR, Mask R-CNN, DeepGCN and CIFAR-10, "
            "whose learning rates the paper does not give.",
        ),
        "resnet": _imagenet(
            "Setting I",
            "100, 200 or 300 epochs of ImageNet",
            max_grad_norm=5.0,
            notes="ResNet-50 and -101; for ResNet-18 under the vanilla setting (90 epochs) the batch is not stated.",
        ),
        "convnext": _imagenet("Setting II", "150 or 300 epochs of ImageNet"),
        "vit": _imagenet(
            "Settings I and II",
            "100 to 300 epochs of ImageNet",
            notes="Under Setting I see also vit-large-batch-2k, which has a warm-up.",
        ),
        "swin": _imagenet("Setting II", "150 or 300 epochs of ImageNet"),
        "mae-pretrain": Recipe(
            lr=2e-3,
            betas=(0.98, 0.92, 0.9),
            max_grad_norm=0.0,
            batch_size=4096,
            length="300 or 800 epochs of ImageNet",
            source=f"{_DETAILS}; Training Setting II",
            notes=f"{_WARMUP_UNSTATED} b3 = 0.9 is “we follow MAE and tune β3 as 0.1”.",
        ),
        "mae-finetune": Recipe(
            lr=1.5e-2,
            betas=_DEFAULT_BETAS,
            max_grad_norm=0.0,
            length="100 epochs of ImageNet",
            source=f"{_DETAILS}; Results on ViTs",
            notes=f"{_WARMUP_UNSTATED} The paper gives a batch of 4096 and β3 = 0.1 “for MAE” without saying whether "
            "fine-tuning is meant; here they are taken to be for pre-training.",
        ),
        **{
            f"vit-large-batch-{thousands}k": _large_batch(thousands, warmup_epochs)
            for thousands, warmup_epochs in zip((1, 2, 4, 8, 16, 32), (20, 40, 60, 100, 160, 200), strict=True)
        },
        "lstm": Recipe(
            lr=1e-2,
            betas=_DEFAULT_BETAS,
            source="Results on LSTM",
            notes=f"Penn Treebank, one to three layers, in AdaBelief's code. {_HOST_SETTING}",
        ),
        "bert-pretrain": Recipe(
            lr=1e-3,
            betas=_DEFAULT_BETAS,
            source="Results on BERT",
            notes=f"BERT-base in Fairseq. {_HOST_SETTING}",
        ),
        "bert-finetune": Recipe(
            lr=2e-5,
            lr_sweep=(2e-5, 4e-5),
            betas=(0.98, 0.99, 0.99),
            weight_decay=0.01,
            batch_size=16,
            source="Results on BERT",
            notes="GLUE; the better of the two rates for each task. Warm-up and clipping are not stated.",
        ),
        "transformer-xl": Recipe(
            lr=1e-3,
            betas=(0.9, 0.9, 0.999),
            length="50k, 100k or 200k steps of WikiText-103",
            source="Results on Transformer-XL",
            notes=f"{_DECAY_BY_DEFAULT} {_HOST_SETTING}",
        ),
        "moe": Recipe(
            lr=None,
            betas=(0.94, 0.92, 0.95),
            length="3B tokens of RedPajama",
            source="Robustness to momentum coefficients, table of betas",
            notes="The best of six pairs (b1, b3) for a mixture of 8 × 0.1B. Learning rate, batch and warm-up are not "
            f"stated; b2 is the default. {_DECAY_BY_DEFAULT}",
        ),
        "rl-ppo": Recipe(
            lr=3e-4,
            betas=_DEFAULT_BETAS,
            weight_decay=0.0,
            source="Results on Reinforcement Learning Tasks",
            notes="MuJoCo, with Tianshou's defaults for all else; batch, warm-up and clipping are not stated.",
        ),
    }
)


# --- from AdamW -----------------------------------------------------------------------------------------------------

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
    lr = _require_number("lr", lr, positive=True, remedy="give the peak learning rate of your AdamW run")
    weight_decay = _require_number("weight_decay", weight_decay, positive=False, remedy="give AdamW's, or 0.0")
    eps = _require_number("eps", eps, positive=False, remedy="AdamW's default is 1e-8")
    adamw_betas = _require_pair(betas)
    warmup_steps = _require_count("warmup_steps", warmup_steps, least=0, remedy="give AdamW's, or 0")
    if total_steps is not None:
        total_steps = _require_count("total_steps", total_steps, least=1, remedy="give optimizer steps, not epochs")
        if warmup_steps >= total_steps:
            raise ValueError(f"warmup_steps={warmup_steps} must be below total_steps={total_steps}; both count steps")
    if task is not None and task not in get_args(Task):
        raise ValueError(f"task must be one of {', '.join(map(repr, get_args(Task)))} or None, got {task!r}")
    if batch_size is not None:
        batch_size = _require_count("batch_size", batch_size, least=1, remedy="give the samples of one step")

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
