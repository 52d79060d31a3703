"""The options of `Adan` in one table: valid values and effects. Defaults are in its signature."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from numbers import Integral
from types import NoneType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from adan.hyperparameters import require_number
from adan.lowbit import FORMATS
from adan.restart import Restart
from adan.scalars import LEAST_LR
from adan.sharding import group_name, is_dtensor

Check = Callable[[str, Any], object]  #: takes the place and name of an option, and its value; raises if it is wrong

_number: Check = partial(require_number, positive=False)


def _lr(name: str, value: Any) -> None:
    if isinstance(value, Tensor):
        if value.numel() != 1 or not value.is_floating_point():
            where, _, option = name.rpartition(" ")
            raise ValueError(f"{where} a tensor {option} must hold one floating-point number, got {value!r}")
        if value.device.type != "cpu" or torch.compiler.is_compiling():
            return  # reading it would be a synchronization
        value = value.item()
    if not (isinstance(value, float) and LEAST_LR < value < 0):
        _number(name, value)


def _betas(name: str, value: Any) -> None:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 3:
        remedy = "the default is (0.98, 0.92, 0.99), and adan.suggest_from_adamw suggests three by the number of steps"
        raise ValueError(f"{name} must be three numbers (b1, b2, b3), got {value!r}; {remedy}")
    for i, b in enumerate(value):
        _number(f"{name}[{i}]", b)
        if b >= 1:
            raise ValueError(f"{name}[{i}] must be below 1, got {b!r}")
    if value[2] == 0:
        raise ValueError(f"{name}[2] must be above 0, got {value[2]!r}: it averages the squares that a step divides by")


def _is_a(kinds: tuple[type, ...], wanted: str) -> Check:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, kinds):
            raise TypeError(f"{name} must be {wanted}, got {value!r}")

    return check


_flag = _is_a((bool,), "True or False")
_choice = _is_a((bool, NoneType), "None (automatic), True or False")


def _format(name: str, value: Any) -> None:
    if not isinstance(value, str) or value not in FORMATS:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, FORMATS))}, got {value!r}")


def _seed(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= int(value) < 2**32:
        raise ValueError(f"{name} must be an int from 0 to 2³² − 1, got {value!r} of type {type(value).__name__}")


class Option(NamedTuple):
    check: Check
    saved: bool = True  #: taken from a checkpoint. How a step is run is not: that is up to the program at hand
    shapes_plan: bool = False  #: a plan made with another value does not hold
    whole_step: bool = False  #: the same for all parameter groups


#: In the order of the constructor's arguments.
OPTIONS = {
    "lr": Option(_lr),
    "betas": Option(_betas),
    "eps": Option(_number),
    "weight_decay": Option(_number),
    "max_grad_norm": Option(partial(require_number, positive=False, remedy="0 turns clipping off")),
    "no_prox": Option(_flag),
    "foreach": Option(_choice, saved=False, shapes_plan=True),
    "fused": Option(_choice, saved=False, shapes_plan=True),
    "bias_correction": Option(_flag),
    "maximize": Option(_flag),
    "capturable": Option(_flag, saved=False, shapes_plan=True),
    "differentiable": Option(_flag, saved=False, shapes_plan=True, whole_step=True),
    "restart": Option(_is_a((Restart, NoneType), "None or an adan.Restart(...)"), saved=False, whole_step=True),
    "skip_nonfinite": Option(_flag, saved=False, shapes_plan=True, whole_step=True),
    "state_format": Option(_format, saved=False, shapes_plan=True),
    "stochastic_rounding": Option(_flag, saved=False, shapes_plan=True),
    "kahan_sum": Option(_flag, saved=False, shapes_plan=True),
    "coupled": Option(_is_a((bool, float, NoneType), "None (automatic), True or False"), shapes_plan=True),
    "rounding_seed": Option(_seed, saved=False, shapes_plan=True),
    "norm_group": Option(lambda name, value: group_name(value), saved=False, whole_step=True),
}


def check(options: Mapping[str, Any], where: str) -> None:
    """Raise an error that names the option, what it got and what would be right."""
    for name, option in OPTIONS.items():
        if name in options:
            option.check(f"{where}: {name}", options[name])
    if options["stochastic_rounding"] and options["kahan_sum"]:
        raise ValueError(f"{where}: stochastic_rounding and kahan_sum are alternatives; choose one")
    if not options["differentiable"]:
        return
    if options["foreach"] or options["fused"]:
        raise ValueError(f"{where}: differentiable=True needs the plain engine; do not set foreach or fused")
    if rounds_at_random(options) or options["kahan_sum"]:
        rounding = "state_format, stochastic_rounding or kahan_sum"
        raise ValueError(f"{where}: differentiable=True does not support rounding; do not set {rounding}")
    if options.get("restart") is not None:
        rule = f"restart={options['restart']!r}"
        raise ValueError(f"{where}: differentiable=True cannot differentiate {rule}; call restart() where you want one")


def warn_of_betas(betas: Sequence[float], where: str) -> None:
    """Warn if betas look like the paper's β, which are 1 − b."""
    if all(0 < b <= 0.2 for b in betas):
        right = tuple(round(1 - b, 6) for b in betas)
        warnings.warn(f"{where}: betas={tuple(betas)} look like the paper's β: pass betas={right}", stacklevel=3)


def warn_of_cycles(groups: Sequence[Mapping[str, Any]]) -> None:
    """Warn if `OneCycleLR` or `CyclicLR` overrides b1 with its default momenta, which are meant for Adam."""
    for group in groups:
        if (group.get("base_momentum"), group.get("max_momentum")) in ((0.85, 0.95), (0.8, 0.9)):
            cycled = f"betas[0] between {group['base_momentum']} and {group['max_momentum']}"
            remedy = "pass cycle_momentum=False to it, or momenta of your own"
            warnings.warn(f"Adan: the schedule cycles {cycled}, overriding the value given; {remedy}", stacklevel=6)
            return


def coupled_beta(group: Mapping[str, Any], where: str) -> float | bool:
    """The one value of b1 and b2 for which a group's states are coupled, or False: what `group["coupled"]` holds."""
    b1, b2, _ = group["betas"]
    coupled = group["coupled"]
    if coupled is False or (coupled is None and b1 != b2):
        return False
    if b1 != b2 or coupled not in (None, True, b2):
        got = f"betas={group['betas']}"
        raise ValueError(f"{where}: coupled={coupled!r} needs equal betas[0] and betas[1], got {got}; leave it at None")
    return float(b2)


def listed(params: Any) -> Any:
    """The constructor's `params`, checked, as a list: a generator can be read only once."""
    module = isinstance(params, torch.nn.Module) and not isinstance(params, torch.nn.ParameterList)
    if not isinstance(params, Iterable) or isinstance(params, Tensor) or module:
        raise TypeError(f"Adan: params must be an iterable such as model.parameters(), got {type(params).__name__}")
    if isinstance(params, Mapping):
        raise TypeError("Adan: params is a dict: pass a list of groups, [{'params': ...}], or its .items()")
    # torch 2.15 warns of a set, whose order changes from run to run.
    params = params if isinstance(params, set) else list(params)
    if not params:
        raise ValueError("Adan: params is empty; was model.parameters() already consumed, or the model frozen?")
    return params


def check_group(new: Any, defaults: Mapping[str, Any], where: str, others: Sequence[Mapping[str, Any]]) -> None:
    """Check a parameter group that is being added, list its parameters, and decide whether its states are coupled.

    torch does not mix named and unnamed parameters: new ones gain or lose names to match the `others`.
    """
    if not isinstance(new, dict) or "params" not in new:
        got = f"the keys {list(new)}" if isinstance(new, dict) else type(new).__name__
        raise TypeError(f"{where}: must be a dict with the key 'params', got {got}")
    params = new["params"]
    if isinstance(params, (set, frozenset)):
        raise TypeError(f"{where}: params is a set, whose order changes from run to run; pass a list")
    params = [params] if isinstance(params, Tensor) else list(params)
    if others and "param_names" in others[0]:
        params = [(f"group{len(others)}.{i}", p) if isinstance(p, Tensor) else p for i, p in enumerate(params)]
    elif others:
        params = [p[1] if isinstance(p, tuple) and len(p) == 2 else p for p in params]
    new["params"] = params
    group = {**defaults, **new}
    check(group, where)
    check_params(params, where, group["stochastic_rounding"])
    if not isinstance(group["betas"], (list, tuple)):
        new["betas"] = tuple(group["betas"])  # a list of OmegaConf's, which checkpoints could not be loaded with
    new["coupled"] = coupled_beta(group, where)
    for name, option in OPTIONS.items():
        if option.whole_step and name in group:
            # ZeroRedundancyOptimizer puts every option into the groups as well.
            value, through = group[name], ""
            if name == "norm_group":
                value, through = group_name(value), ", through ZeroRedundancyOptimizer as 'world' or as a group_name"
            if value != defaults[name] and value is not defaults[name]:
                raise ValueError(f"{where}: {name}={value!r} applies to all groups; pass it to Adan(...){through}")
    if group["differentiable"] and any(map(is_dtensor, params)):
        raise ValueError(f"{where}: differentiable=True does not support DTensor parameters; use plain tensors")


def check_params(params: Sequence[Any], where: str, stochastic_rounding: bool) -> None:
    """Reject what is not a tensor, is listed twice or cannot be rounded, by name where the caller gave names."""
    seen: set[Tensor] = set()
    for i, entry in enumerate(params):
        if isinstance(entry, tuple) and len(entry) != 2:
            raise TypeError(f"{where}: parameter {i} must be a tensor or a pair (name, tensor), got {entry!r}")
        name, p = entry if isinstance(entry, tuple) else (f"parameter {i}", entry)
        if not isinstance(p, Tensor):
            raise TypeError(f"{where}: {name} must be a tensor, got {type(p).__name__}")
        name = f"{where}: {name}" + ("" if is_lazy(p) else f" of shape {tuple(p.shape)}")
        # An integer nn.Parameter is always frozen.
        if not (p.is_floating_point() or p.is_complex() or isinstance(p, torch.nn.Parameter)):
            raise TypeError(f"{name} is {p.dtype}, which cannot be trained")
        if not is_lazy(p) and (p.is_conj() or p.is_neg()):
            raise ValueError(f"{name} is a lazily conjugated or negated view; pass p.resolve_conj().resolve_neg()")
        if stochastic_rounding and p.dtype == torch.float16:
            raise ValueError(f"{name} is torch.float16, and stochastic_rounding is for bfloat16; use kahan_sum=True")
        if p in seen:
            raise ValueError(f"{name} is listed twice; pass each parameter once")
        seen.add(p)


def counted(n: int) -> str:
    return "1 parameter" if n == 1 else f"{n} parameters"


def describe(group: Mapping[str, Any], index: int, group_index: int) -> str:
    """A parameter's name if it has one, else its position."""
    shape = tuple(group["params"][index].shape)
    if "param_names" in group:
        return f"{group['param_names'][index]!r} of shape {shape}"
    return f"{index} of group {group_index}, of shape {shape}"


def rounds_at_random(options: Mapping[str, Any]) -> bool:
    """Whether states or weights may need random bits."""
    return bool(options["state_format"] != "fp32" or options["stochastic_rounding"])
