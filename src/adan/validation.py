"""What the constructor and `add_param_group` refuse, and how they say so."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from adan.lowbit import FORMATS
from adan.restart import Restart


def check_options(options: Mapping[str, Any], where: str) -> None:
    """Raise an error that names the option, what it got and what would be right."""
    lr = options["lr"]
    if isinstance(lr, Tensor):
        if lr.numel() != 1 or not lr.is_floating_point():
            raise ValueError(f"{where}: a tensor lr must hold one floating-point number, got {lr!r}")
        # A value on an accelerator is not read: that would be a synchronisation.
        lr = lr.item() if lr.device.type == "cpu" else 0.0
    _check_number("lr", lr, where)
    for name in ("eps", "weight_decay", "max_grad_norm"):
        _check_number(name, options[name], where)
    _check_betas(options["betas"], where)
    for name in (
        "no_prox",
        "bias_correction",
        "maximize",
        "capturable",
        "differentiable",
        "skip_nonfinite",
        "consume_grad",
        "stochastic_rounding",
        "kahan_sum",
    ):
        if not isinstance(options[name], bool):
            raise TypeError(f"{where}: {name} must be True or False, got {options[name]!r}")
    for name in ("foreach", "fused"):
        if options[name] not in (None, True, False):
            raise TypeError(f"{where}: {name} must be None (choose), True or False, got {options[name]!r}")
    if options["state_format"] not in FORMATS:
        names = ", ".join(map(repr, FORMATS))
        raise ValueError(f"{where}: state_format must be one of {names}, got {options['state_format']!r}")
    seed = options["rounding_seed"]
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise ValueError(f"{where}: rounding_seed must be a whole number below 2³², got {seed!r}")
    if options["stochastic_rounding"] and options["kahan_sum"]:
        raise ValueError(f"{where}: stochastic_rounding and kahan_sum are two remedies for one thing; choose one")
    if options["foreach"] and options["fused"]:
        raise ValueError(f"{where}: foreach=True and fused=True name two engines; leave one of them at None")
    if options["differentiable"] and (options["foreach"] or options["fused"] or options["consume_grad"]):
        raise ValueError(
            f"{where}: differentiable=True needs the plain engine; leave foreach, fused and consume_grad alone"
        )
    coded = options["state_format"] != "fp32" or options["stochastic_rounding"] or options["kahan_sum"]
    if options["differentiable"] and coded:
        raise ValueError(
            f"{where}: differentiable=True needs states and weights that are not rounded; leave state_format, "
            "stochastic_rounding and kahan_sum alone"
        )
    if options["consume_grad"] and options["capturable"]:
        raise ValueError(
            f"{where}: consume_grad=True takes a new buffer at every step, and a captured step (capturable=True) has "
            "only the addresses it was captured with; use one of the two"
        )


def check_restart(restart: object, differentiable: bool) -> None:
    if restart is not None and not isinstance(restart, Restart):
        raise TypeError(f"Adan: restart must be None or an adan.Restart(...), got {restart!r}")
    if restart is not None and differentiable:
        raise ValueError(
            f"Adan: differentiable=True goes through steps as they are, and restart={restart!r} is a decision between "
            "them; call restart() where you want one"
        )


def _check_number(name: str, value: object, where: str) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{where}: {name} must be a number, got {value!r} of type {type(value).__name__}")
    if not (math.isfinite(value) and float(value) >= 0):
        raise ValueError(f"{where}: {name} must be finite and at least 0, got {value!r}")


def _check_betas(betas: object, where: str) -> None:
    if not isinstance(betas, Sequence) or isinstance(betas, str) or len(betas) != 3:
        raise ValueError(
            f"{where}: betas must be three numbers (b1, b2, b3), got {betas!r}; the default is (0.98, 0.92, 0.99), and "
            "adan.suggest_from_adamw turns AdamW's two into Adan's three"
        )
    for i, b in enumerate(betas):
        _check_number(f"betas[{i}]", b, where)
        if b >= 1:
            raise ValueError(f"{where}: betas[{i}] must be below 1, got {b!r}")
    if all(0 < b <= 0.2 for b in betas):
        code = tuple(round(1 - b, 6) for b in betas)
        warnings.warn(
            f"{where}: betas={tuple(betas)} look like the paper's β. Here betas are 1 − β, as in torch.optim: "
            f"pass betas={code}",
            stacklevel=4,
        )


def check_params(params: Sequence[Any], where: str, stochastic_rounding: bool) -> None:
    """Refuse what is no tensor or listed twice or cannot be rounded, by name where the caller gave names."""
    seen: set[Tensor] = set()
    for i, entry in enumerate(params):
        named = isinstance(entry, tuple)
        name, p = entry if named else (f"parameter {i}", entry)
        if not isinstance(p, Tensor):
            raise TypeError(f"{where}: {name} must be a tensor, got {type(p).__name__}")
        if not (p.is_floating_point() or p.is_complex()):
            raise TypeError(
                f"{where}: {name} of shape {tuple(p.shape)} is {p.dtype}; only real or complex can be trained"
            )
        if stochastic_rounding and p.dtype == torch.float16:
            raise ValueError(
                f"{where}: stochastic_rounding=True is for bfloat16, and {name} of shape {tuple(p.shape)} is "
                "torch.float16; convert the model to bfloat16, or take kahan_sum=True"
            )
        if p in seen:
            raise ValueError(f"{where}: {name} of shape {tuple(p.shape)} is listed twice; pass each parameter once")
        seen.add(p)


def describe(group: Mapping[str, Any], index: int, group_index: int) -> str:
    """A parameter's name where it was given, else where it stands."""
    shape = tuple(group["params"][index].shape)
    if "param_names" in group:
        return f"{group['param_names'][index]!r} of shape {shape}"
    return f"{index} of group {group_index}, of shape {shape}"


def sparse_gradient(groups: Sequence[Mapping[str, Any]], group: Mapping[str, Any]) -> RuntimeError:
    """The error for a gradient that is not dense, by the name of its parameter."""
    grads = [p.grad for p in group["params"]]
    i = next(i for i, grad in enumerate(grads) if grad is not None and grad.layout is not torch.strided)
    name = describe(group, i, next(k for k, g in enumerate(groups) if g is group))
    return RuntimeError(
        f"the gradient of parameter {name} is {grads[i].layout}: Adan needs dense gradients; "
        "for an embedding, construct it with sparse=False"
    )


def refuse_tracing(groups: Sequence[Mapping[str, Any]], restarts: bool) -> None:
    """A step that is captured or compiled must not count on the host, nor take a new buffer each time."""
    if torch.compiler.is_compiling():
        if restarts:
            raise NotImplementedError("restart=... sets the counters of all parameters, which is not traced")
        if any(group["consume_grad"] for group in groups):
            # torch.compile answers by running the step in Python.
            raise NotImplementedError("consume_grad=True takes a new buffer at every step, which cannot be traced")
        return
    if not torch.cuda.is_initialized() or not torch.cuda.is_current_stream_capturing():
        return
    if not all(group["capturable"] for group in groups):
        raise RuntimeError(
            "this step() is being captured in a CUDA graph: construct Adan with capturable=True for that"
        )
