"""Every compared optimizer in a form that a CUDA graph can capture: the learning rate is a tensor on the device.

Adam, AdamW and SGD are torch's own, fused. LAMB and AdaBelief are the harness's, which follow their papers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from adan import Adan, Restart, parameter_groups
from adan_bench.training.rivals import AdaBelief, Lamb

Groups = list[dict[str, Any]]

SGD_MOMENTUM = 0.9  # unless its settings say otherwise


def build(
    name: str,
    model: nn.Module,
    settings: Mapping[str, Any],
    lr: Tensor,
    decay_all: bool,
    own: Callable[[nn.Module, dict[str, Any]], Groups] | None = None,
) -> torch.optim.Optimizer:
    """The optimizer `name` on a model's parameters.

    lr: read at every step where it lies.
    decay_all: biases, norms and embeddings of position decay too.
    own: a task's groups, where their rates differ. Each gets a tensor of its own for its `share` of `lr`, which the
        caller must update.
    """
    options: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()
    }
    decay = options.pop("weight_decay", 0.0)
    groups: Groups = [{"params": list(model.parameters()), "weight_decay": decay}]
    if not decay_all:
        groups = parameter_groups(model, decay, named=False)
    if own is not None:
        groups = [{"weight_decay": decay, **group} for group in own(model, {"lr": 1.0})]
        for group in groups:
            group["share"] = group.pop("lr", 1.0)
            group["lr"] = group["share"] * lr
    capturable = lr.device.type == "cuda"
    if name == "adan":
        if "restart" in options:
            options["restart"] = Restart(**options["restart"])
        return Adan(groups, lr=lr, capturable=capturable, **options)
    if name in ("adam", "adamw"):
        kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
        return kind(groups, lr=lr, fused=True, capturable=capturable, **options)
    if name == "sgd":
        return torch.optim.SGD(groups, lr=lr, fused=True, **{"momentum": SGD_MOMENTUM, **options})
    if name == "lamb":
        return Lamb(groups, lr=lr, always_adapt=False, **options)  # as its authors have it
    if name == "adabelief":
        return AdaBelief(groups, lr=lr, **options)
    raise ValueError(f"optimizer {name!r}: there are adan, adamw, adam, sgd, lamb, adabelief")
