"""What Adan keeps for a parameter: how it starts, how it is forgotten, how it is read from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from adan import sharding
from adan.batch import compute_dtype, laid_out_as
from adan.validation import check_options, describe

#: The tensors of a parameter's state, in the order in which engines take them; `step` counts its gradients.
NAMES = ("exp_avg", "exp_avg_diff", "exp_avg_sq", "prev_grad")

#: How a step is run is a choice of the program at hand, not part of what was learned: never taken from a checkpoint.
OWN_OPTIONS = ("foreach", "fused", "consume_grad", "capturable", "differentiable", "skip_nonfinite", "norm_group")


def state_dtype(param: Tensor) -> torch.dtype:
    dtype = compute_dtype(param.dtype)
    return dtype.to_complex() if param.is_complex() else dtype


def new_state(param: Tensor, counter_device: torch.device | str, consume_grad: bool) -> dict[str, Tensor]:
    state = {"step": torch.zeros((), dtype=torch.float32, device=counter_device)}
    for name in NAMES[:3] if consume_grad else NAMES:
        state[name] = torch.zeros_like(param, dtype=state_dtype(param), memory_format=torch.preserve_format)
    if consume_grad:
        # The first gradient's buffer will take this place: one number is enough until then.
        nothing = torch.zeros((), dtype=param.dtype, device=param.device)
        state["prev_grad"] = sharding.like(param, nothing.expand(sharding.local(param).shape))
        state["prev_scale"] = torch.ones((), dtype=torch.float64, device=counter_device)
    return state


def fit(state: dict[str, Tensor], param: Tensor, counter_device: torch.device | str, consume_grad: bool) -> None:
    """Bring a state that was made for another layout, type, device of counters or `consume_grad` to what holds now."""
    for name in NAMES:
        if state[name].shape != param.shape:
            raise RuntimeError(
                f"{name} of a parameter of shape {tuple(param.shape)} has shape {tuple(state[name].shape)}: "
                "a parameter that changes its shape needs a new state, so delete optimizer.state[parameter]"
            )
    if "prev_scale" in state and not consume_grad:
        state["prev_grad"] = state["prev_grad"].to(state_dtype(param)) * state.pop("prev_scale")
    elif consume_grad and "prev_scale" not in state:
        state["prev_scale"] = torch.ones((), dtype=torch.float64, device=counter_device)
    for name in NAMES[:3] if consume_grad else NAMES:
        value = state[name]
        if value.dtype != state_dtype(param) or value.stride() != param.stride() or value.device != param.device:
            state[name] = torch.zeros_like(param, dtype=state_dtype(param)).copy_(value)
    for name, dtype in (("step", torch.float32), ("prev_scale", torch.float64)):
        if name in state:
            state[name] = state[name].to(counter_device, dtype)


def owned(grad: Tensor, param: Tensor, prev_grad: Tensor | None) -> Tensor:
    """A gradient that may be kept: alone in its memory, where no other view writes, and laid out as its parameter."""
    grad = grad.detach()
    if prev_grad is not None and grad.numel() and grad.data_ptr() == sharding.local(prev_grad).data_ptr():
        raise RuntimeError(
            f"consume_grad=True keeps the gradient of a parameter of shape {tuple(param.shape)}, and the next one was "
            "written over it: give every step a gradient of its own, or leave consume_grad at False"
        )
    alone = grad.untyped_storage().nbytes() == grad.numel() * grad.element_size()
    return laid_out_as(sharding.local(param), grad if alone else grad.clone(), grad.dtype)


def adopt(state_dict: Mapping[str, Any], groups: list[dict[str, Any]]) -> dict[str, Any]:
    """A checkpoint, ours or the authors', in our form; ValueError where it does not fit these parameter groups."""
    if "param_groups" not in state_dict or "state" not in state_dict:
        raise ValueError(f"this is no optimizer's state dict: it has the keys {list(state_dict)}")
    saved_groups = state_dict["param_groups"]
    saved_sizes = [len(group["params"]) for group in saved_groups]
    sizes = [len(group["params"]) for group in groups]
    if saved_sizes != sizes:
        raise ValueError(
            f"this state dict has parameter groups of {saved_sizes} parameters, the optimizer has {sizes}: "
            "build the optimizer with the same groups, in the same order, before loading"
        )
    new_groups: list[dict[str, Any]] = []
    new_states: dict[Any, dict[str, Tensor]] = {}
    for g, (saved, group) in enumerate(zip(saved_groups, groups, strict=True)):
        merged = {key: value for key, value in group.items() if key not in ("params", "param_names")}
        merged.update((key, value) for key, value in saved.items() if key not in (*OWN_OPTIONS, "step"))
        try:
            check_options(merged, f"this state dict, group {g}")
        except TypeError as error:
            raise ValueError(str(error)) from None
        new_groups.append(merged)
        for i, (key, param) in enumerate(zip(saved["params"], group["params"], strict=True)):
            state = state_dict["state"].get(key)
            if state:
                new_states[key] = _adopt_state(state, saved, param, f"parameter {describe(group, i, g)}")
    return {**state_dict, "state": new_states, "param_groups": new_groups}


def _adopt_state(state: Mapping[str, Any], group: Mapping[str, Any], param: Tensor, name: str) -> dict[str, Tensor]:
    values = dict(state)
    if "neg_pre_grad" in values:  # the authors' release: the negated gradient, and one count for the whole group
        values["prev_grad"] = -values.pop("neg_pre_grad")
        values.setdefault("step", group.get("step"))
    missing = [key for key in ("step", *NAMES) if values.get(key) is None]
    if missing:
        raise ValueError(
            f"the state of {name} lacks {', '.join(missing)} (it has {', '.join(map(str, state)) or 'nothing'}): "
            "this is no checkpoint of Adan"
        )
    for key in NAMES:
        if values[key].shape != param.shape:
            raise ValueError(f"{key} of {name} has shape {tuple(values[key].shape)} in this state dict")
        if sharding.is_spread(param) and not sharding.is_spread(values[key]):
            raise ValueError(
                f"{key} of {name} is a whole tensor in this state dict, and the parameter is a DTensor: load with "
                "torch.distributed.checkpoint.state_dict.set_optimizer_state_dict"
            )
    return {key: torch.as_tensor(values[key]) for key in ("step", *NAMES, "prev_scale") if key in values}


def place(
    state: Mapping[str, Tensor], param: Tensor, counter_device: torch.device | str, consume_grad: bool
) -> dict[str, Tensor]:
    """A copy of a loaded state beside its parameter: in our types whatever the parameter's, in its layout."""
    placed = {name: value.detach().clone() for name, value in state.items()}
    placed["step"] = placed["step"].reshape(())
    placed["prev_grad"] = torch.empty_like(param, dtype=state["prev_grad"].dtype).copy_(state["prev_grad"])
    fit(placed, param, counter_device, consume_grad)
    return placed


def parameters(groups: list[dict[str, Any]]) -> list[Tensor]:
    return list(chain.from_iterable(group["params"] for group in groups))
