"""Saving and loading of states: names and layouts in checkpoints, ours and the authors', and checks that one fits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from adan import lowbit, sharding, states
from adan.columns import NAMES, NUMBERS, STATES, is_dense
from adan.lowbit import BLOCK
from adan.options import OPTIONS, check, coupled_beta, describe
from adan.scalars import host_readable
from adan.states import CODES, OURS


def portable(state: dict[str, Any], param: Tensor) -> dict[str, Any]:
    """A state as a checkpoint holds it: codes under names of their own, so that nothing reads them as numbers, and flat
    in the order of memory, along which their blocks run, with its sizes and strides: `torch.distributed.checkpoint`
    loads into any layout. Blocks of a shard end where it does: a DTensor's are saved as numbers, to be resharded.
    """
    if "exponents" not in state:
        return state
    others = {name: value for name, value in state.items() if name not in (*STATES, "exponents")}
    if sharding.is_dtensor(param):
        others.pop("averaging", None)
        return {**others, **{name: sharding.like(param, value) for name, value in states.plain(state).items()}}
    codes = {CODES[name]: lowbit.flat(state[name]) for name in STATES if name in state}
    whole = state["exp_avg"]  # never packed
    layout = torch.tensor([whole.shape, whole.stride()], dtype=torch.int64, device="cpu")
    return {**others, **codes, "exponents": state["exponents"], "layout": layout}


def prepare(
    state: dict[str, Tensor], group: Mapping[str, Any], param: Tensor, counter_device: torch.device | str
) -> None:
    """Create a parameter's state, or convert it to the form that is needed now."""
    if "layout" in state:  # ZeroRedundancyOptimizer puts it there as checkpoints have it
        states.replace(state, _unpacked(state))
    states.check_coupled(state, group)
    if "step" not in state:
        state.update(states.zeros(param, states.Form.of(group, param), counter_device))
    elif torch.compiler.is_compiling():
        if not states.fits(state, param, states.Form.of(group, param)):
            remedy = "after a change of state_format or kahan_sum, call optimizer.step() once outside torch.compile"
            raise RuntimeError(f"its state does not have the form that the options ask for: {remedy}")
    else:
        step = state["step"]
        states.fit(state, group, param, param.device if step.device == param.device else counter_device)
        if host_readable(step) and not step.item():
            states.forget(state)  # ZeroRedundancyOptimizer loads a checkpoint that a restart preceded as it is


def _unpacked(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of a checkpoint under the names, and in the shapes, that states have in the optimizer."""
    names = {code: name for name, code in CODES.items()}
    values = {names.get(key, key): value for key, value in entry.items()}
    if values.get("exponents") == {}:  # so torch reads a flattened checkpoint of numbers, which has none
        del values["exponents"]
    if "layout" not in entry and names.keys().isdisjoint(entry):
        return values
    sizes, strides = _read_layout(values.pop("layout", None))
    for name, value in [(name, values.get(name)) for name in STATES]:
        if not isinstance(value, Tensor):
            continue
        if value.layout is not torch.strided:
            raise ValueError(f"{CODES[name]} is {value.layout}, not dense")
        if value.numel() == math.prod(sizes):
            values[name] = value.reshape(-1).as_strided(sizes, strides)
        elif value.numel() % (BLOCK // 2) == 0:
            values[name] = value.reshape(-1, BLOCK // 2)
            if name == "exp_avg_diff" and "averaging" not in values:
                raise ValueError("averaging is missing")
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
    return {**others, **states.plain(values)}


def load(
    state_dict: Mapping[str, Any], groups: list[dict[str, Any]], counter_device: Any
) -> tuple[dict[str, Any], dict[Tensor, dict[str, Tensor]], list[Tensor | None], int]:
    """A checkpoint, ours or the authors', in parts: a state dict without states, the states of the parameters, each
    group's `restart_state`, and the number of restarts by hand.

    Raises ValueError, and has changed nothing, where it does not fit these parameter groups.
    """
    saved_groups = _checked_groups(state_dict, groups)
    new_groups: list[dict[str, Any]] = []
    new_states: dict[Tensor, dict[str, Tensor]] = {}
    foreign = dict(state_dict["state"])
    for g, (saved, group) in enumerate(zip(saved_groups, groups, strict=True)):
        entries = [foreign[key] for key in saved["params"] if isinstance(foreign.get(key), Mapping)]
        merged = _merged(saved, group, entries, f"this state dict, group {g}")
        new_groups.append(merged)
        for i, (key, param) in enumerate(zip(saved["params"], group["params"], strict=True)):
            state = foreign.pop(key, None)
            if state is None:
                continue
            where = f"parameter {describe(group, i, g)}"
            if not isinstance(state, Mapping):
                raise ValueError(f"the state of {where} must be a dict, got {state!r}")
            others = {name: x for name, x in state.items() if name not in OURS}
            for name, x in others.items():
                new_states.setdefault(param, {})[name] = x.to(param.device) if isinstance(x, Tensor) else x
            if len(others) < len(state):
                ours = _checked(state, saved, merged, param, where)
                # A copy has the source's strides, along which the blocks of 8-bit codes run.
                placed = {}
                for name, value in ours.items():  # `fit` moves the numbers
                    placed[name] = value.detach().to(value.device if name in NUMBERS else param.device, copy=True)
                states.fit(placed, merged, param, counter_device(merged, param))
                if ours["step"].device.type != "meta" and ours["step"] == 0:
                    states.forget(placed)  # an automatic restart resets the count alone: what else is there is void
                new_states.setdefault(param, {}).update(placed)
    cycles = [group.get("restart_state") for group in saved_groups]
    for x in cycles:
        if x is not None and not (isinstance(x, Tensor) and x.shape == (4,)):
            raise ValueError(f"restart_state of this state dict must be a tensor of four numbers, got {x!r}")
    numbers = (_checked_number(x.get("manual_restarts", 0), "manual_restarts", is_count=True) for x in saved_groups)
    without_states = {**state_dict, "state": foreign, "param_groups": new_groups}
    return without_states, new_states, cycles, max(map(int, numbers), default=0)


def _checked_groups(state_dict: Mapping[str, Any], groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The groups of a state dict, after checking that they have the same parameters in the same order."""
    if "param_groups" not in state_dict or "state" not in state_dict:
        raise ValueError(f"this is not an optimizer's state dict: it has the keys {list(state_dict)}")
    if not isinstance(state_dict["state"], Mapping):
        raise ValueError(f"state of this state dict must be a dict, got {type(state_dict['state']).__name__}")
    saved: Any = state_dict["param_groups"]
    listed = isinstance(saved, list) and all(isinstance(group, dict) for group in saved)
    if not listed or not all(isinstance(group.get("params"), list) for group in saved):
        raise ValueError("param_groups of this state dict must be a list of dicts, each with a list under 'params'")
    saved_sizes, sizes = ([len(group["params"]) for group in x] for x in (saved, groups))
    if saved_sizes != sizes:
        got = f"this state dict has parameter groups of {saved_sizes} parameters, the optimizer has {sizes}"
        raise ValueError(f"{got}: build the optimizer with the same groups, in the same order, before loading")
    # States go to parameters by their place: the same names must be in the same order. Other names may mean the same:
    # DistributedDataParallel and `torch.compile` put a prefix before each.
    named = [[group for group in x if isinstance(group.get("param_names"), list)] for x in (saved, groups)]
    theirs, ours = ([str(name) for group in x for name in group["param_names"]] for x in named)
    if theirs != ours and sorted(theirs) == sorted(ours):
        i = next(i for i, name in enumerate(ours) if name != theirs[i])
        order = f"another order, {theirs[i]!r} at place {i} where the optimizer has {ours[i]!r}"
        remedy = "build the groups in the order in which they were saved"
        raise ValueError(f"this state dict has the parameters in {order}: {remedy}")
    return saved  # type: ignore[no-any-return]


def _merged(saved: dict[str, Any], group: dict[str, Any], entries: list[Any], where: str) -> dict[str, Any]:
    """A saved group as it is loaded, with unsaved options from `group`. `entries`: the states of its parameters."""
    if "betas" not in saved:
        raise ValueError(f"{where} has no betas ({', '.join(saved)}): it is not a group of Adan")
    if isinstance(saved["betas"], (tuple, list)) and len(saved["betas"]) == 2:
        raise ValueError(f"{where} has two betas, like AdamW: load only the weights, and start with a warm-up")
    merged = {key: value for key, value in group.items() if key not in ("params", "param_names")}
    unsaved = {"restart_state", "manual_restarts", "param_names"}  # which are no options
    unsaved.update(name for name, option in OPTIONS.items() if not option.saved)
    if any("neg_pre_grad" in entry for entry in entries):
        unsaved.add("step")  # of the authors' release: here every parameter has its own
    merged.update((key, value) for key, value in saved.items() if key not in unsaved)
    if "param_names" in saved and "param_names" not in group:
        merged["param_names"] = saved["param_names"]
    merged["coupled"] = saved.get("coupled")  # of which the authors' release knows nothing
    try:
        check(merged, where)
        merged["coupled"] = coupled_beta(merged, where)
    except TypeError as error:
        raise ValueError(str(error)) from None
    return merged


def _checked(
    state: Mapping[str, Any], saved: Mapping[str, Any], group: Mapping[str, Any], param: Tensor, name: str
) -> dict[str, Tensor]:
    """The state of one parameter under our names, after checking that it fits the parameter."""
    try:
        values = _unpacked(state)
    except ValueError as error:
        raise ValueError(f"{error} in this state dict, for {name}") from None
    if "neg_pre_grad" in values:  # the authors' release: the negated gradient, and one count for the whole group
        values["prev_grad"] = -values.pop("neg_pre_grad")
        values.setdefault("step", saved.get("step"))
    quantized = any(code in state for code in CODES.values())
    optional = {"exp_avg_diff": group["coupled"] is not False, "exponents": not quantized}
    missing = [key for key in ("step", *STATES, "exponents") if values.get(key) is None and not optional.get(key)]
    if missing:
        lacks = f"{', '.join(missing)} (it has {', '.join(map(str, state)) or 'nothing'})"
        raise ValueError(f"the state of {name} lacks {lacks}: this is not a checkpoint of Adan")
    values = {key: values[key] for key in NAMES if values.get(key) is not None}
    shapes = {**dict.fromkeys((*STATES, "compensation"), param.shape), "exponents": (states.blocks(param), len(STATES))}
    for key in values:
        if key not in NUMBERS and not isinstance(values[key], Tensor):
            remedy = "; flatten_optimizer_state_dict drops codes: save without it" if values[key] == {} else ""
            raise ValueError(f"{key} of {name} must be a tensor, got {values[key]!r} in this state dict{remedy}")
    if quantized and lowbit.format_of(values["exp_avg"], values["exp_avg_sq"]) == "4bit":
        shapes |= dict.fromkeys(lowbit.PACKED["4bit"], (states.blocks(param), BLOCK // 2))
    for key, value in values.items():
        where = f"{key} of {name}"
        if key in NUMBERS:
            values[key] = value = _checked_number(value, where, is_count=key == "step")
        if value.device.type == "meta" and param.device.type != "meta":
            raise ValueError(f"{where} is on the meta device in this state dict, without a value")
        if key in NUMBERS:
            continue
        if value.layout is not torch.strided:
            raise ValueError(f"{where} is {value.layout} in this state dict, not dense")
        if value.shape != shapes[key]:
            other = f"got {tuple(value.shape)} in this state dict: is it of another model?"
            raise ValueError(f"{where} must have shape {tuple(shapes[key])}, {other}")
        if quantized and key != "compensation" and value.dtype != torch.uint8:
            got = f"{CODES.get(key, key)} of {name} must be torch.uint8, got {value.dtype} in this state dict"
            remedy = "when you cast a checkpoint, leave tensors of integers as they are"
            raise ValueError(f"{got}: these are codes, not numbers; {remedy}")
        if not (quantized or value.is_floating_point() or (value.is_complex() and param.is_complex())):
            raise ValueError(f"{where} must hold floating-point numbers, got {value.dtype} in this state dict")
        if key in STATES and sharding.is_dtensor(param) and not sharding.is_dtensor(value):
            remedy = "load with torch.distributed.checkpoint.state_dict.set_optimizer_state_dict"
            raise ValueError(f"{where} is a whole tensor in this state dict, and the parameter is a DTensor: {remedy}")
    return values


def _checked_number(value: Any, name: str, is_count: bool) -> Tensor:
    if not isinstance(value, (Tensor, int, float)):
        raise ValueError(f"{name} must be a number, got {value!r} in this state dict")
    number = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64, device="cpu")
    if number.numel() != 1 or number.is_complex() or number.layout is not torch.strided:
        got = f"a tensor of shape {tuple(number.shape)}, {number.dtype}, {number.layout}"
        raise ValueError(f"{name} must be one number, got {got} in this state dict")
    if number.device.type != "meta":
        x = float(number)
        if not math.isfinite(x) or (is_count and (x < 0 or x != int(x))):
            wanted = "a whole number of at least 0" if is_count else "a finite number"
            raise ValueError(f"{name} must be {wanted}, got {x} in this state dict")
    return number.reshape(())
