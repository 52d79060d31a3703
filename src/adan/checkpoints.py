"""States as they are saved and loaded: names and layouts of checkpoints, ours and the authors'; whether one fits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import NoneType
from typing import Any

import torch
from torch import Tensor

from adan import lowbit, sharding
from adan.columns import NAMES, NUMBERS, STATES, compute_dtype, is_dense
from adan.lowbit import BLOCK, PACKED, averaging
from adan.options import OPTIONS, check, coupled_beta, describe
from adan.states import CODES, OURS, blocks, fit, forget, packed, plain, replace


def portable(state: dict[str, Any], param: Tensor) -> dict[str, Any]:
    """A state as a checkpoint holds it. Codes have names of their own, so that nothing reads them as numbers.

    Blocks of codes run along the memory of a parameter, so they are saved flat in that order, with the sizes and
    strides that say what it is: `torch.distributed.checkpoint` loads into tensors of any layout. The blocks of a shard
    end where it does, so a DTensor's states are saved as numbers.
    """
    if "exponents" not in state:
        return state
    others = {name: value for name, value in state.items() if name not in (*STATES, "exponents")}
    if sharding.is_dtensor(param):
        others.pop("averaging", None)
        return {**others, **{name: sharding.like(param, value) for name, value in plain(state).items()}}
    codes = {CODES[name]: lowbit.flat(state[name]) for name in STATES if name in state}
    whole = state["exp_avg"]  # never packed
    layout = torch.tensor([whole.shape, whole.stride()], dtype=torch.int64, device="cpu")
    return {**others, **codes, "exponents": state["exponents"], "layout": layout}


def unpack(state: dict[str, Tensor]) -> None:
    """Rename and reshape a state that was put into the optimizer as checkpoints have it: by ZeroRedundancyOptimizer."""
    if "layout" in state or "prev_scale" in state:
        replace(state, _unpacked(state))


def _unpacked(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of a checkpoint under the names, and in the shapes, that states have in the optimizer."""
    names = {code: name for name, code in CODES.items()}
    values = {names.get(key, key): value for key, value in entry.items()}
    if values.get("exponents") == {}:  # so torch reads a flattened checkpoint of numbers, which has none
        del values["exponents"]
    scale, last = values.pop("prev_scale", None), values.get("prev_grad")
    if scale is not None and isinstance(last, Tensor):
        # An older checkpoint: the gradient as backward left it, and the factor with which the step took it.
        factor = float(_checked_number(scale, "prev_scale", is_count=False))
        values["prev_grad"] = (last if last.is_complex() else last.to(compute_dtype(last.dtype))) * factor
    layout = values.pop("layout", None)  # absent in older checkpoints, whose codes have the parameter's shape
    if layout is None:
        return values
    sizes, strides = _read_layout(layout)
    for name in STATES:
        value = values.get(name)
        if isinstance(value, Tensor) and value.layout is not torch.strided:
            raise ValueError(f"{CODES[name]} is {value.layout}, not dense")
        if isinstance(value, Tensor) and value.numel() == math.prod(sizes):
            values[name] = value.reshape(-1).as_strided(sizes, strides)
        elif isinstance(value, Tensor) and value.numel() % (BLOCK // 2) == 0:
            values[name] = value.reshape(-1, BLOCK // 2)
            if name == "exp_avg_diff":  # the only factor of older checkpoints
                values.setdefault("averaging", torch.tensor(averaging(0.92), dtype=torch.float64, device="cpu"))
    return values


def _read_layout(layout: Any) -> tuple[list[int], list[int]]:
    """Sizes and strides of a quantized state, which must fill its memory."""
    is_two = isinstance(layout, Tensor) and layout.layout is torch.strided and layout.dim() == 2 and len(layout) == 2
    if is_two and layout.dtype == torch.int64 and layout.device.type != "meta":
        sizes, strides = layout.tolist()
        if min([*sizes, *strides, 0]) >= 0 and is_dense(torch.empty_strided(sizes, strides, device="meta")):
            return sizes, strides
    raise ValueError(f"layout must be the sizes and strides of a quantized state, got {layout!r}")


def dequantized(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of a checkpoint with its states as plain numbers."""
    values = _unpacked(entry)
    others = {name: value for name, value in values.items() if name not in ("exponents", "averaging")}
    return {**others, **plain(values)}


def load(
    state_dict: Mapping[str, Any], groups: list[dict[str, Any]], counter_device: Any
) -> tuple[dict[str, Any], dict[Tensor, dict[str, Tensor]], list[Tensor | None], int]:
    """A checkpoint, ours or the authors', in parts: a state dict without states, the states of the parameters, each
    group's `restart_state`, and the number of restarts by hand.

    Raises ValueError, and has changed nothing, where it does not fit these parameter groups.
    """
    if "param_groups" not in state_dict or "state" not in state_dict:
        raise ValueError(f"this is not an optimizer's state dict: it has the keys {list(state_dict)}")
    saved_groups = state_dict["param_groups"]
    if not isinstance(state_dict["state"], Mapping):
        raise ValueError(f"state of this state dict must be a dict, got {type(state_dict['state']).__name__}")
    listed = isinstance(saved_groups, list) and all(isinstance(group, dict) for group in saved_groups)
    if not listed or not all(isinstance(group.get("params"), list) for group in saved_groups):
        raise ValueError("param_groups of this state dict must be a list of dicts, each with a list under 'params'")
    saved_sizes = [len(group["params"]) for group in saved_groups]
    sizes = [len(group["params"]) for group in groups]
    if saved_sizes != sizes:
        raise ValueError(
            f"this state dict has parameter groups of {saved_sizes} parameters, the optimizer has {sizes}: "
            "build the optimizer with the same groups, in the same order, before loading"
        )
    _check_order(_names(saved_groups), _names(groups))
    new_groups: list[dict[str, Any]] = []
    new_states: dict[Tensor, dict[str, Tensor]] = {}
    foreign = dict(state_dict["state"])
    for g, (saved, group) in enumerate(zip(saved_groups, groups, strict=True)):
        if "betas" not in saved:
            raise ValueError(f"group {g} of this state dict has no betas ({', '.join(saved)}): it is not one of Adan")
        if isinstance(saved["betas"], (tuple, list)) and len(saved["betas"]) == 2:
            raise ValueError(
                f"group {g} of this state dict has two betas, as Adam's and AdamW's have, whose moments are of no use "
                "to Adan: load the model's weights alone, and start with a warm-up"
            )
        merged = {key: value for key, value in group.items() if key not in ("params", "param_names")}
        unsaved = {name for name, option in OPTIONS.items() if not option.saved}
        unsaved |= {"restart_state", "manual_restarts", "param_names", "consume_grad", "coupled_beta"}
        mine = [foreign[key] for key in saved["params"] if isinstance(foreign.get(key), Mapping)]
        if any("neg_pre_grad" in state for state in mine):
            unsaved.add("step")  # of the authors' release: here every parameter has its own
        merged.update((key, value) for key, value in saved.items() if key not in unsaved)
        if "param_names" in saved and "param_names" not in group:
            merged["param_names"] = saved["param_names"]
        if "coupled" not in saved:  # the authors' release, or an older checkpoint of ours: its states stay as they are
            ours = [OURS & state.keys() for state in mine if "neg_pre_grad" not in state]
            apart = [bool(names & {"exp_avg_diff", CODES["exp_avg_diff"]}) for names in ours if names]
            merged["coupled"] = False if apart and all(apart) else None
        where = f"this state dict, group {g}"
        try:
            check(merged, where)
            merged["coupled"] = coupled_beta(merged, where)
        except TypeError as error:
            raise ValueError(str(error)) from None
        new_groups.append(merged)
        for i, (key, param) in enumerate(zip(saved["params"], group["params"], strict=True)):
            state = foreign.pop(key, None)
            if state is None:
                continue
            where = f"parameter {describe(group, i, g)}"
            if not isinstance(state, Mapping):
                raise ValueError(f"the state of {where} must be a dict, got {state!r}")
            others = {name: x for name, x in state.items() if name not in OURS}
            if others:
                new_states[param] = {
                    name: x.to(param.device) if isinstance(x, Tensor) else x for name, x in others.items()
                }
            if len(others) < len(state):
                values = _checked(state, saved, merged, param, where)
                placed = _placed(values, merged, param, counter_device(merged, param))
                new_states.setdefault(param, {}).update(placed)
    cycles = [group.get("restart_state") for group in saved_groups]
    for x in cycles:
        if x is not None and not (isinstance(x, Tensor) and x.shape == (4,)):
            raise ValueError(f"restart_state of this state dict must be a tensor of four numbers, got {x!r}")
    numbers = [group.get("manual_restarts", 0) for group in saved_groups]
    for x in numbers:
        if isinstance(x, bool) or not isinstance(x, int) or x < 0:
            raise ValueError(f"manual_restarts of this state dict must be a number of at least 0, got {x!r}")
    without_states = {**state_dict, "state": foreign, "param_groups": new_groups}
    return without_states, new_states, cycles, max(numbers, default=0)


def _names(groups: list[dict[str, Any]]) -> list[str]:
    lists = [names for group in groups if isinstance(names := group.get("param_names"), list)]
    return [str(name) for names in lists for name in names]


def _check_order(saved: list[str], own: list[str]) -> None:
    """States go to parameters by their place: the same names must be in the same order. Other names may mean the same.

    DistributedDataParallel and `torch.compile` put a prefix before each.
    """
    if saved != own and sorted(saved) == sorted(own):
        i, (theirs, ours) = next((i, pair) for i, pair in enumerate(zip(saved, own, strict=True)) if len(set(pair)) > 1)
        raise ValueError(
            f"this state dict has the parameters in another order, {theirs!r} at place {i} where the optimizer has "
            f"{ours!r}: build the model and the groups in the order in which they were when it was saved"
        )


def _checked(
    state: Mapping[str, Any], saved: Mapping[str, Any], group: Mapping[str, Any], param: Tensor, name: str
) -> dict[str, Tensor]:
    """The state of one parameter under our names, all of which fit the parameter."""
    try:
        values = _unpacked(state)
    except ValueError as error:
        raise ValueError(f"{error} in this state dict, for {name}") from None
    if "neg_pre_grad" in values:  # the authors' release: the negated gradient, and one count for the whole group
        values["prev_grad"] = -values.pop("neg_pre_grad")
        values.setdefault("step", saved.get("step"))
    coupled = group["coupled"] is not False
    quantized = any(code in state for code in CODES.values())
    needed = ["step", *STATES, *(["exponents"] if quantized else [])]
    missing = [key for key in needed if values.get(key) is None and not (coupled and key == "exp_avg_diff")]
    if missing:
        raise ValueError(
            f"the state of {name} lacks {', '.join(missing)} (it has {', '.join(map(str, state)) or 'nothing'}): "
            "this is not a checkpoint of Adan"
        )
    for key in (*STATES, "exponents", "compensation"):
        if not isinstance(values.get(key), (Tensor, NoneType)):
            dropped = "; flatten_optimizer_state_dict drops the codes of plain tensors: save without it"
            remedy = dropped if values[key] == {} else ""
            raise ValueError(f"{key} of {name} must be a tensor, got {values[key]!r} in this state dict{remedy}")
    for key in NUMBERS:
        if values.get(key) is not None:
            values[key] = _checked_number(values[key], f"{key} of {name}", is_count=key == "step")
            if values[key].device.type == "meta" and param.device.type != "meta":
                raise ValueError(f"{key} of {name} is on the meta device in this state dict, without a value")
    shapes = {**dict.fromkeys((*STATES, "compensation"), param.shape), "exponents": blocks(param)}
    if quantized and lowbit.format_of(values) == "4bit":
        shapes |= dict.fromkeys(PACKED["4bit"], packed(param))
    for key, shape in shapes.items():
        value = values.get(key)
        if value is None:
            continue
        if value.layout is not torch.strided:
            raise ValueError(f"{key} of {name} is {value.layout} in this state dict, not dense")
        if value.shape != shape:
            raise ValueError(
                f"{key} of {name} must have shape {tuple(shape)}, got {tuple(value.shape)} in this state dict: is it "
                "the checkpoint of another model?"
            )
        if quantized and key != "compensation" and value.dtype != torch.uint8:
            raise ValueError(
                f"{CODES.get(key, key)} of {name} must be torch.uint8, got {value.dtype} in this state dict: codes are "
                "no numbers; when you cast a checkpoint, leave tensors of integers as they are"
            )
        is_number = value.is_floating_point() or (value.is_complex() and param.is_complex())
        if not (is_number or quantized) or (value.device.type == "meta" and param.device.type != "meta"):
            raise ValueError(
                f"{key} of {name} must hold floating-point numbers in memory, got {value.dtype} on {value.device} in "
                "this state dict"
            )
        if key in STATES and sharding.is_dtensor(param) and not sharding.is_dtensor(value):
            raise ValueError(
                f"{key} of {name} is a whole tensor in this state dict, and the parameter is a DTensor: load with "
                "torch.distributed.checkpoint.state_dict.set_optimizer_state_dict"
            )
    return {key: values[key] for key in NAMES if values.get(key) is not None}


def _checked_number(value: Any, name: str, is_count: bool) -> Tensor:
    if not isinstance(value, (Tensor, int, float)):
        raise ValueError(f"{name} must be a number, got {value!r} in this state dict")
    number = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64, device="cpu")
    if number.numel() != 1 or number.is_complex() or number.layout is not torch.strided:
        raise ValueError(
            f"{name} must be one number, got a tensor of shape {tuple(number.shape)}, {number.dtype}, "
            f"{number.layout} in this state dict"
        )
    if number.device.type != "meta":
        x = float(number)
        if not math.isfinite(x) or (is_count and (x < 0 or x != int(x))):
            wanted = "a whole number of at least 0" if is_count else "a finite number"
            raise ValueError(f"{name} must be {wanted}, got {x} in this state dict")
    return number


def _placed(
    state: Mapping[str, Tensor], group: Mapping[str, Any], param: Tensor, counter_device: torch.device | str
) -> dict[str, Tensor]:
    """A copy of a loaded state beside its parameter: in our types whatever the parameter's, in its layout."""
    # A copy has the source's strides, along which the blocks of 8-bit codes run.
    placed = {name: value.detach().to(param.device, copy=True) for name, value in state.items()}
    for name in NUMBERS:
        if name in placed:
            placed[name] = placed[name].reshape(())
    fit(placed, group, param, counter_device)
    if state["step"].device.type != "meta" and state["step"] == 0:
        forget(placed)  # an automatic restart resets the count alone, and leaves in the checkpoint what it made void
    return placed
