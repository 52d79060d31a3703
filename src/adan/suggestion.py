"""Suggest where to start with Adan, given the AdamW settings that work for a model.

Every number here is a `Point`: what tuning chose in a recorded study, or what the paper's authors published.
tests/benchmarks/test_tuning.py recomputes each of them from the records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

from adan.hyperparameters import Betas, require_count, require_number, scaled_lr

Task: TypeAlias = Literal["vision", "lm", "moe", "finetune", "rl"]


@dataclass(frozen=True)
class Point:
    """A value that holds for runs of one length.

    Args:
        value: what was chosen there.
        source: a study of results/evidence/runs.jsonl by its name, or an experiment of the paper.
        task: the kind of model that it is of; None for the paper's default, which is for all.
        steps: the length; 0 where it holds at any.
        paper: whether the source is the paper.
        but: what the paper has for others of that kind, where it is something else.
    """

    value: float
    source: str
    task: Task | None
    steps: int = 0
    paper: bool = False
    but: str = ""

    def __str__(self) -> str:
        length = f" ({self.steps:,} steps)" if self.steps else ""
        if self.paper:
            return f"the paper has {self.value:g} for {self.source}{length}{self.but and f', but {self.but}'}"
        return f"tuning chose {self.value:g} in our study {self.source}{length}"


@dataclass(frozen=True)
class Rule:
    """The value of `short` up to its length, that of `long` from its length on; between them linear in log T.

    Without `long`, that of `short` at any length.
    """

    short: Point
    long: Point | None = None

    @property
    def points(self) -> tuple[Point, ...]:
        return (self.short,) if self.long is None else (self.short, self.long)

    def at(self, steps: int) -> float:
        if self.long is None:
            return self.short.value
        share = math.log(steps / self.short.steps) / math.log(self.long.steps / self.short.steps)
        return self.short.value + (self.long.value - self.short.value) * min(1.0, max(0.0, share))

    def why(self, steps: int, task: Task | None) -> tuple[str, str]:
        """The evidence for the value at this length, in a word and in a sentence."""
        point = self.short
        if self.long is not None and steps > self.short.steps:
            if steps < self.long.steps:
                return "rule of thumb", f"{self.short}, {self.long}; this is in between."
            point = self.long
        if point.task != task:
            unknown = "no task was given, and other models may differ" if task is None else f"assumed for {task!r} too"
            return "rule of thumb", f"{point}; {unknown}."
        return "paper" if point.paper else "measured", f"{point}."


_LANGUAGE_LR = Rule(
    Point(2.0, "gpt", "lm", 2_000),
    Point(4.0, "Transformer-XL", "lm", 100_000, paper=True, but="10 for BERT and a one-layer LSTM"),
)
#: Adan's lr ÷ AdamW's.
LR_RATIO: Mapping[Task | None, Rule] = MappingProxyType(
    {
        "vision": Rule(
            Point(2.83, "vit-25", "vision", 4_375), Point(7.5, "ViT on ImageNet", "vision", 62_500, paper=True)
        ),
        "lm": _LANGUAGE_LR,
        "moe": _LANGUAGE_LR,
        "finetune": Rule(Point(2.0, "BERT on GLUE", "finetune", paper=True)),
        "rl": Rule(Point(1.0, "ppo-hopper", "rl")),
        None: _LANGUAGE_LR,
    }
)
_SHORT_B1 = Point(0.9, "gpt", "lm", 2_000)
_LANGUAGE_B1 = Rule(
    _SHORT_B1, Point(0.9, "Transformer-XL", "lm", 100_000, paper=True, but="0.98 for GPT-2, BERT and the LSTM")
)
B1: Mapping[Task | None, Rule] = MappingProxyType(
    {
        "vision": Rule(_SHORT_B1, Point(0.98, "vit-25", "vision", 4_375)),
        "lm": _LANGUAGE_B1,
        "moe": _LANGUAGE_B1,
        "finetune": Rule(Point(0.98, "BERT on GLUE", "finetune", paper=True)),
        "rl": Rule(Point(0.98, "PPO", "rl", paper=True)),
        None: Rule(_SHORT_B1, Point(0.98, "default betas", None, 62_500, paper=True)),
    }
)
#: Adan's weight decay ÷ AdamW's: 0.02 for ViT on ImageNet, where DeiT's AdamW has 0.05.
DECAY_RATIO = 0.4
#: The share of the run that warms up: that of every tuned run but PPO's. Nothing else was tried.
WARMUP = 0.05
_ASSUMED_STEPS = 5_000


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
    weight_decay: float = 0.01,
    betas: tuple[float, float] = (0.9, 0.999),
    total_steps: int | None = None,
    warmup_steps: int = 0,
    task: Task | None = None,
    batch_size: int | None = None,
    eps: float = 1e-8,
) -> Suggestion:
    """Suggest where to start with Adan, given the AdamW settings that work for a model.

    With T steps in all, AdamW's lr₀ and λ₀, and values between two lengths linear in log T::

        lr = r·lr₀   vision: r = 2.83 up to T = 4,375, 7.5 from 62,500 on
                     language models, mixtures of experts, unknown kinds: 2 up to 2,000, 4 from 100,000 on
                     fine-tuning: 2;  reinforcement learning: 1
        b1           0.9 up to T = 2,000;  vision: 0.98 from 4,375 on;  unknown kinds: 0.98 from 62,500 on
                     language models, mixtures of experts: 0.9 at any length
                     fine-tuning, reinforcement learning: 0.98 at any length
        λ            0.4·λ₀ where lr grows, else λ₀;  reinforcement learning: 0
        warm-up      T/20 where lr grows, or AdamW's if that is longer;  fine-tuning: AdamW's

    Values of short runs are what tuning chose in recorded studies, those of long runs the paper's; `LR_RATIO` and `B1`
    of `adan.suggestion` hold each with its source, and the tuning guide shows the records. It is a starting point: if
    you can afford three runs, try the suggested lr, half of it and twice it.

    Args:
        lr: AdamW's peak learning rate.
        weight_decay: AdamW's λ; unless given, ``torch.optim.AdamW``'s default.
        betas: AdamW's two. A first beta under 0.9 or above the rule's, and a second of 0.95 or less, are taken as
            deliberate and kept.
        total_steps: optimizer steps in the whole run. None assumes 5,000, or ten times `warmup_steps` if that is more.
        warmup_steps: AdamW's.
        task: "vision" (classifiers trained from scratch), "lm" (language models), "moe" (mixtures of experts),
            "finetune" or "rl". None makes no use of the kind of model.
        batch_size: samples per step. For vision, lr is not raised above `scaled_lr(batch_size)`; elsewhere it changes
            nothing.
        eps: AdamW's ε, kept.

    Example:
        >>> from adan import suggest_from_adamw
        >>> s = suggest_from_adamw(1e-3, weight_decay=0.1, total_steps=1500, task="lm")
        >>> s.options()
        {'lr': 0.002, 'betas': (0.9, 0.92, 0.99), 'eps': 1e-08, 'weight_decay': 0.04}
        >>> s.warmup_steps
        75
        >>> suggest_from_adamw(2e-3, weight_decay=0.05, total_steps=187_500, task="vision", batch_size=2048).options()
        {'lr': 0.015, 'betas': (0.98, 0.92, 0.99), 'eps': 1e-08, 'weight_decay': 0.02}
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
    new_decay = _choose_weight_decay(weight_decay, task, new_lr > lr, why)
    new_warmup = _choose_warmup(warmup_steps, task, steps, new_lr > lr, why)
    why.append(f"eps = {eps:g} (kept): the paper takes over the compared optimizer's ε.")
    return Suggestion(new_lr, new_betas, eps, new_decay, new_warmup, tuple(why))


def _choose_lr(lr: float, task: Task | None, steps: int, batch_size: int | None, why: list[str]) -> float:
    rule = LR_RATIO[task]
    word, source = rule.why(steps, task)
    ratio = rule.at(steps)
    new_lr = _round(ratio * lr)
    why.append(f"lr = {new_lr:g}, {ratio:.3g} × AdamW's ({word}): {source}")
    if batch_size is None:
        return new_lr
    limit = _round(scaled_lr(batch_size))
    if task != "vision":
        why.append(
            f"batch_size = {batch_size:,} changes nothing here (rule of thumb): the paper tested its square-root rule "
            "on ViT-S alone, and AdamW's lr is already that of this batch."
        )
    elif new_lr <= limit:
        why.append(f"batch_size = {batch_size:,} allows that lr (paper): its square-root rule gives {limit:g}.")
    else:
        new_lr = max(lr, limit)
        why.append(
            f"lr = {new_lr:g} instead (paper): its square-root rule gives {limit:g} for batch {batch_size:,}, "
            "which limits the rise over AdamW's lr."
        )
    return new_lr


def _choose_betas(betas: tuple[float, float], task: Task | None, steps: int, why: list[str]) -> Betas:
    first, second = betas
    rule = B1[task]
    b1 = round(rule.at(steps), 3)
    if first < 0.9 or first > b1:
        why.append(f"b1 = {first:g} (kept): AdamW's, where the rule has {b1:g}; taken as deliberate.")
        b1 = first
    else:
        word, source = rule.why(steps, task)
        why.append(f"b1 = {b1:g} ({word}): {source}")
    b2 = 0.99 if task == "finetune" else 0.92
    why.append(f"b2 = {b2:g} (paper): Adan is not sensitive to it.")
    b3 = 0.95 if task == "moe" else 0.99
    if 0 < second <= 0.95:
        b3 = second
        why.append(f"b3 = {b3:g} (kept): AdamW's second beta is 0.95 or less; taken as deliberate.")
    else:
        why.append(f"b3 = {b3:g} (paper): {'its best for a mixture of experts' if task == 'moe' else 'its default'}.")
    return b1, b2, b3


def _choose_weight_decay(weight_decay: float, task: Task | None, lr_grows: bool, why: list[str]) -> float:
    if task == "rl":
        why.append("weight_decay = 0 (paper): none for PPO.")
        return 0.0
    if weight_decay == 0:
        why.append("weight_decay = 0 (kept): AdamW had none. The paper's default for Adan is 0.02.")
        return 0.0
    if not lr_grows:
        why.append(f"weight_decay = {weight_decay:g} (kept): lr is AdamW's, so lr·λ is too.")
        return weight_decay
    new = _round(DECAY_RATIO * weight_decay)
    why.append(
        f"weight_decay = {new:g}, {DECAY_RATIO:g} × AdamW's (paper): 0.02 for ViT where DeiT's AdamW has 0.05. Our "
        "records are inconclusive: the better of 0.02 and 0.1 is not the same for every model."
    )
    return new


def _choose_warmup(adamw_warmup: int, task: Task | None, steps: int, lr_grows: bool, why: list[str]) -> int:
    least = round(WARMUP * steps)
    least = 2 if least == 1 else least  # torch's OneCycleLR divides by one less
    if adamw_warmup == 1 and (least <= 2 or not lr_grows or task == "finetune"):
        new = 2 if steps > 2 else 0
        rest = "" if new else ", and 2 would be the whole run"
        why.append(f"warmup_steps = {new} (rule of thumb): torch's OneCycleLR cannot do AdamW's 1{rest}.")
        return new
    if adamw_warmup >= least or not lr_grows or task == "finetune":
        why.append(f"warmup_steps = {adamw_warmup:,} (kept): as with AdamW.")
        return adamw_warmup
    why.append(f"warmup_steps = {least:,} (rule of thumb): {WARMUP:.0%} of the run, as in our tuned runs.")
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
