"""The paper's hyper-parameters: by task (`recipes`), and by batch size (`scaled_lr`).

The paper writes β for what `betas` calls 1 − β. Everything here is in the convention of `betas`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
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

    lr = base_lr · √(batch_size / base_batch_size). The paper uses it for ViT-S on ImageNet at batches of 1k to 32k;
    its other ImageNet runs, at 2048, have 1.5e-2, where the rule gives 1.77e-2.

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
        lr: peak learning rate. Schedules are the host codebase's; on ImageNet, cosine decay.
        betas: (b1, b2, b3), each 1 minus the paper's β.
        source: the part of the paper that states it.
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


DEFAULT_BETAS = (0.98, 0.92, 0.99)
_DETAILS = "Implementation Details of Adan"
_WARMUP_UNSTATED = "Warm-up was tuned, its length is not stated."
_DECAY_BY_DEFAULT = "The decay is the paper's 0.02 “unless noted otherwise”."
_HOST_SETTING = "Batch, warm-up, schedule and clipping are the host codebase's and are not stated."


def _imagenet(setting: str, length: str, *, max_grad_norm: float = 0.0, notes: str = "") -> Recipe:
    return Recipe(
        lr=1.5e-2,
        betas=DEFAULT_BETAS,
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
        betas=DEFAULT_BETAS,
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
            betas=DEFAULT_BETAS,
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
            betas=DEFAULT_BETAS,
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
            betas=DEFAULT_BETAS,
            source="Results on LSTM",
            notes=f"Penn Treebank, one to three layers, in AdaBelief's code. {_HOST_SETTING}",
        ),
        "bert-pretrain": Recipe(
            lr=1e-3,
            betas=DEFAULT_BETAS,
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
            betas=DEFAULT_BETAS,
            weight_decay=0.0,
            source="Results on Reinforcement Learning Tasks",
            notes="MuJoCo, with Tianshou's defaults for all else; batch, warm-up and clipping are not stated.",
        ),
    }
)
