"""Adan and every optimizer that the paper compares it with, each with its defaults and its search space.

The defaults are for runs of hundreds of steps. Adan's are betas (0.9, 0.92, 0.99) and about three times AdamW's
learning rate: after 500 steps of a 10 M parameter GPT that gave a training loss of 1.46, AdamW 1.52, and Adan with its
betas for long runs, (0.98, 0.92, 0.99), 1.85. The latter stay in the search space.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from adan_bench.spec import OptimizerSpec, Settings, UsageError

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

BETAS = ({"betas": (0.9, 0.95)}, {"betas": (0.95, 0.99)}, {"betas": (0.8, 0.99)})

SPECS = {
    spec.name: spec
    for spec in (
        OptimizerSpec(
            "adan",
            "adan:Adan",
            lr=3e-3,
            defaults={"betas": (0.9, 0.92, 0.99), "weight_decay": 0.02},
            choices=({"betas": (0.95, 0.92, 0.99)}, {"betas": (0.98, 0.92, 0.99)}, {"betas": (0.9, 0.92, 0.95)}),
        ),
        OptimizerSpec("adamw", "torch.optim:AdamW", lr=1e-3, defaults={"weight_decay": 0.02}, choices=BETAS),
        OptimizerSpec("adam", "torch.optim:Adam", lr=1e-3, choices=BETAS),
        OptimizerSpec("amsgrad", "torch.optim:Adam", lr=1e-3, defaults={"amsgrad": True}, choices=BETAS),
        OptimizerSpec("nadam", "torch.optim:NAdam", lr=1e-3, choices=BETAS),
        OptimizerSpec("radam", "torch.optim:RAdam", lr=1e-3, choices=BETAS),
        OptimizerSpec(
            "rmsprop", "torch.optim:RMSprop", lr=1e-3, choices=({"alpha": 0.9}, {"momentum": 0.9}, {"alpha": 0.999})
        ),
        OptimizerSpec(
            "sgd",
            "torch.optim:SGD",
            lr=0.3,
            choices=({"weight_decay": 1e-4}, {"weight_decay": 5e-4}, {"weight_decay": 5e-3}),
        ),
        OptimizerSpec(
            "sgd-momentum",
            "torch.optim:SGD",
            lr=0.1,
            defaults={"momentum": 0.9},
            choices=({"weight_decay": 5e-4}, {"momentum": 0.95}, {"weight_decay": 5e-3}),
        ),
        OptimizerSpec(
            "sgd-nesterov",
            "torch.optim:SGD",
            lr=0.1,
            defaults={"momentum": 0.9, "nesterov": True},
            choices=({"weight_decay": 5e-4}, {"momentum": 0.95}, {"weight_decay": 5e-3}),
        ),
        OptimizerSpec(
            "lamb", "pytorch_optimizer:Lamb", lr=1e-2, defaults={"weight_decay": 0.02}, choices=BETAS, shards=False
        ),
        OptimizerSpec(
            "lars",
            "pytorch_optimizer:LARS",
            lr=3.0,
            defaults={"weight_decay": 1e-4},
            choices=({"momentum": 0.95}, {"weight_decay": 1e-3}, {"nesterov": True}),
            shards=False,
        ),
        OptimizerSpec(
            "adabelief",
            "pytorch_optimizer:AdaBelief",
            lr=1e-3,
            choices=({"betas": (0.9, 0.95)}, {"eps": 1e-8}, {"betas": (0.95, 0.99)}),
        ),
        OptimizerSpec(
            "adabound",
            "pytorch_optimizer:AdaBound",
            lr=1e-3,
            choices=({"final_lr": 0.01}, {"final_lr": 1.0}, {"betas": (0.9, 0.95)}),
        ),
        OptimizerSpec("yogi", "pytorch_optimizer:Yogi", lr=3e-3, choices=BETAS),
        OptimizerSpec(
            "padam",
            "pytorch_optimizer:PAdam",
            lr=0.03,
            choices=({"partial": 0.125}, {"betas": (0.9, 0.95)}, {"weight_decay": 5e-4}),
        ),
        OptimizerSpec(
            "adai",
            "pytorch_optimizer:Adai",
            lr=0.3,
            choices=({"betas": (0.1, 0.9)}, {"betas": (0.5, 0.99)}, {"weight_decay": 5e-4}),
        ),
        OptimizerSpec(
            "sam",
            "pytorch_optimizer:SAM",
            lr=0.1,
            defaults={"rho": 0.05, "momentum": 0.9},
            choices=({"rho": 0.02}, {"rho": 0.1}, {"weight_decay": 5e-4}),
            passes=2,
            base="torch.optim:SGD",
            shards=False,
        ),
    )
}


def get_optimizer(name: str) -> OptimizerSpec:
    if name not in SPECS:
        raise UsageError(f"no optimizer {name!r}; there are: {', '.join(SPECS)}")
    return SPECS[name]


def defaults(spec: OptimizerSpec) -> Settings:
    """The settings of an optimizer that nobody has tuned."""
    return {"lr": spec.lr, **spec.defaults}


def build(
    spec: OptimizerSpec, parameters: Iterable[nn.Parameter] | list[dict[str, Any]], settings: Mapping[str, Any]
) -> Optimizer:
    """The optimizer itself. Settings may come from JSON: lists become tuples, {"radius": R} an `adan.Restart`.

    {"restart": {"probe": True}} measures the restart condition and never restarts.
    """
    from torch.optim import Optimizer

    from adan import Restart

    check_settings(spec, settings)
    values: Settings = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    if isinstance(values.get("restart"), dict):
        rule = values["restart"]
        values["restart"] = Restart.probe() if rule.get("probe") else Restart(**rule)
    if spec.base is not None:
        values["base_optimizer"] = _import(spec.base, spec.name)
    optimizer = _import(spec.target, spec.name)(parameters, **values)
    assert isinstance(optimizer, Optimizer)
    return optimizer


def check_settings(spec: OptimizerSpec, settings: Mapping[str, Any]) -> None:
    """Refuse a setting that the optimizer does not take: dropping it in silence would make a false comparison."""
    known: list[str] = []
    for target in (spec.target, spec.base):
        if target is not None:
            parameters = inspect.signature(_import(target, spec.name).__init__).parameters.values()
            known += [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    known = [name for name in dict.fromkeys(known) if name not in ("self", "params", "base_optimizer")]
    for key in settings:
        if key not in known:
            raise UsageError(f"{spec.name} has no setting {key!r}; it has: {', '.join(known)}")


def _import(target: str, name: str) -> Any:
    module, attribute = target.split(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise UsageError(f"{name} needs the package {error.name}; run: pip install 'adan[bench]'") from error
