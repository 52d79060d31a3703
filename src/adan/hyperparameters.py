"""The paper's hyper-parameters: by task (`recipes`), and by batch size (`scaled_lr`).

The paper writes β for what `betas` calls 1 − β. Everything here is in the convention of `betas`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

Betas: TypeAlias = tuple[float, float, float]


def require_number(name: str, value: object, *, positive: bool, remedy: str = "") -> float:
    remedy = remedy and f"; {remedy}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r} of type {type(value).__name__}{remedy}")
    number = float(value)
    if not math.isfinite(number) or number < 0 or (positive and number == 0):
        raise ValueError(f"{name} must be finite and {'above' if positive else 'at least'} 0, got {value!r}{remedy}")
    return number


def require_count(name: str, value: object, *, least: int, remedy: str) -> int:
    if isinstance(value, float) and value.is_integer():  # 1e4
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, got {value!r} of type {type(value).__name__}; {remedy}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value!r}; {remedy}")
    return int(value)


def scaled_lr(batch_size: int, base_lr: float = 6.25e-3, base_batch_size: int = 256) -> float:
    """The paper's learning rate for a batch size: the square-root rule.

    lr = base_lr · √(batch_size / base_batch_size). The paper uses it for ViT-S on ImageNet with batch sizes of 1k to
    32k; its other ImageNet runs, with 2048, have 1.5e-2, where the rule gives 1.77e-2.

    Args:
        batch_size: samples per step, over all devices and accumulated micro-batches.
        base_lr: the rate that suits `base_batch_size`; the default is the paper's for vision models.
        base_batch_size: the batch that `base_lr` belongs to.

    Example:
        >>> from adan import scaled_lr
        >>> scaled_lr(4096)
        0.025
        >>> scaled_lr(512, base_lr=3e-3, base_batch_size=128)
        0.006
    """
    batch_size = require_count("batch_size", batch_size, least=1, remedy="give the samples of one step")
    base_batch_size = require_count("base_batch_size", base_batch_size, least=1, remedy="give the batch of base_lr")
    base_lr = require_number("base_lr", base_lr, positive=True, remedy="the paper's is 6.25e-3")
    return base_lr * math.sqrt(batch_size / base_batch_size)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Hyper-parameters that the paper states for one task; None where it states none.

    Args:
        source: the part of the paper that states it.
        lr: peak learning rate. Schedules are the host codebase's; on ImageNet, cosine decay.
        betas: (b1, b2, b3), each 1 minus the paper's β.
        weight_decay: λ.
        eps: ε. The paper leaves it as the compared optimizer had it, without naming a value.
        max_grad_norm: limit of the global gradient norm; 0.0 where the paper says that it does not clip.
        batch_size: samples per step.
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

    source: str
    lr: float | None = None
    betas: Betas = (0.98, 0.92, 0.99)
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


class _Recipes(dict[str, Recipe]):
    def __missing__(self, name: str) -> Recipe:
        raise KeyError(f"no recipe {name!r}; there are: {', '.join(self)}")


_rows = json.loads(Path(__file__).with_name("recipes.json").read_text(encoding="utf-8"))
for _row in _rows.values():
    _row.update({key: tuple(value) for key, value in _row.items() if isinstance(value, list)})

#: The paper's settings by task.
recipes: Mapping[str, Recipe] = MappingProxyType(_Recipes({name: Recipe(**row) for name, row in _rows.items()}))
