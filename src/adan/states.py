"""What Adan keeps for a parameter: how it starts, how it is forgotten, how it is saved and loaded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from adan import lowbit, sharding
from adan.columns import NAMES, STATES, compute_dtype, is_dense
from adan.lowbit import BLOCK, FORMATS, PACKED, SMALLEST
from adan.options import OPTIONS, check, counted, describe

#: What a checkpoint calls quantized states.
CODES = {name: f"{name}_codes" for name in STATES}
#: All that Adan keeps for a parameter, under every name. What others keep there, as timm's Lookahead does, is theirs.
OURS = {*NAMES, *CODES.values(), "layout", "neg_pre_grad"}


class Form(NamedTuple):
    """How the state of a parameter is stored."""

    dtype: torch.dtype
    quantized: str | None  #: "8bit" or "4bit"
    coupled: bool  #: exp_avg is the average of g + b2·d, and there is no exp_avg_diff: exact while betas[0] == betas[1]
    consume: bool  #: the previous gradient is the buffer that backward filled
    kahan: bool

    @classmethod
    def of(cls, group: Mapping[str, Any], param: Tensor, state: Mapping[str, Tensor] | None = None) -> Form:
        """What the options ask for. Whether states are coupled is decided once: an existing `state` stays as it is."""
        dtype = plain = state_dtype(param)
        quantized = None
        if plain == torch.float32 and param.numel() >= SMALLEST:
            dtype = FORMATS[group["state_format"]]
            quantized = group["state_format"] if dtype == torch.uint8 else None
        half = param.dtype in (torch.bfloat16, torch.float16)
        coupled = "exp_avg_diff" not in state if state and "step" in state else _is_coupled(group)
        return cls(dtype, quantized, coupled, group["consume_grad"] and dtype == plain, group["kahan_sum"] and half)

    @property
    def names(self) -> list[str]:
        return [name for name in STATES if not (self.coupled and name == "exp_avg_diff")]

    def is_packed(self, name: str) -> bool:
        return self.quantized is not None and name in PACKED[self.quantized]

    def __str__(self) -> str:
        words = [self.quantized.replace("bit", " bit") if self.quantized else str(self.dtype).removeprefix("torch.")]
        words += ["coupled"] if self.coupled else []
        words += ["Kahan"] if self.kahan else []
        return " ".join(words)


def _is_coupled(group: Mapping[str, Any]) -> bool:
    """Whether two averages may be one: of equal betas that do not change. OneCycleLR and CyclicLR, which change them,
    leave "max_momentum" in a group; a group with coupled states has their beta as "coupled_beta".
    """
    b1, b2, _ = group["betas"]
    return b1 == b2 == group.get("coupled_beta", b2) and "max_momentum" not in group


def describe_forms(groups: Iterable[Mapping[str, Any]], state: Mapping[Tensor, Mapping[str, Tensor]]) -> str:
    """How the states of how many parameters are stored, or will be."""
    counts = Counter(
        "uninitialized" if is_lazy(p) else str(Form.of(group, p, state.get(p)))
        for group in groups
        for p in group["params"]
    )
    return ", ".join(f"{name} for {counted(count)}" for name, count in counts.items()) or "none"


def state_dtype(param: Tensor) -> torch.dtype:
    dtype = compute_dtype(param.dtype)
    return dtype.to_complex() if param.is_complex() else dtype


def _counter_dtype(device: torch.device | str) -> torch.dtype:
    """Of `step` and `prev_scale`. In fp32 a count would stop at 2²⁴; Apple's GPUs have no fp64."""
    return torch.float32 if torch.device(device).type == "mps" else torch.float64


def first_state(group: dict[str, Any], param: Tensor, counter_device: torch.device | str) -> dict[str, Tensor]:
    """The state of a parameter before its first gradient."""
    form = Form.of(group, param)
    if form.coupled:
        group["coupled_beta"] = group["betas"][1]
    return zeros(param, form, counter_device)


def zeros(param: Tensor, form: Form, counter_device: torch.device | str) -> dict[str, Tensor]:
    """The state of a parameter in a form, before its first gradient."""
    state = {"step": torch.zeros((), dtype=_counter_dtype(counter_device), device=counter_device)}
    for name in form.names:
        if form.is_packed(name):
            state[name] = torch.zeros(_packed(param), dtype=torch.uint8, device=param.device)
        else:
            state[name] = torch.zeros_like(param, dtype=form.dtype, memory_format=torch.preserve_format)
    if form.consume:
        # The first gradient's buffer will take this place: one number is enough until then.
        zero = torch.zeros((), dtype=param.dtype, device=param.device)
        state["prev_grad"] = sharding.like(param, zero.expand(sharding.local(param).shape))
        state["prev_scale"] = torch.ones_like(state["step"])
    if form.quantized:
        state["exponents"] = torch.zeros(_blocks(param), dtype=torch.uint8, device=param.device)
    if form.kahan:
        state["compensation"] = torch.zeros_like(param, memory_format=torch.preserve_format)
    return state


def _blocks(param: Tensor) -> tuple[int, int]:
    """The shape of the exponents of quantized states."""
    return -(-sharding.local(param).numel() // BLOCK), len(STATES)


def _packed(param: Tensor) -> tuple[int, int]:
    """The shape of a state with two codes per byte."""
    return _blocks(param)[0], BLOCK // 2


def forget(state: dict[str, Tensor]) -> None:
    """As if there had been no gradient yet; what rounding has cut off the weights stays."""
    unpack(state)
    for name in NAMES:
        if name in state and name != "compensation":
            state[name].fill_(name == "prev_scale")


def check_coupled(state: Mapping[str, Tensor], group: dict[str, Any], groups: list[dict[str, Any]]) -> None:
    """Refuse other betas than those of a state that has one average for two."""
    if "exp_avg_diff" in state:
        return
    b1, b2, _ = group["betas"]
    if "coupled_beta" not in group:  # the parameter came from another group, of which its state says nothing
        others = {other["coupled_beta"] for other in groups if "coupled_beta" in other}
        group["coupled_beta"] = b2 if others <= {b2} else min(others)
    beta = group["coupled_beta"]
    if not b1 == b2 == beta:
        raise RuntimeError(
            f"its state is stored in the coupled form for betas[0] = betas[1] = {beta}, and one average cannot serve "
            f"betas={group['betas']}: set those again, construct Adan with unequal ones from the start, or start anew "
            "by optimizer.state.clear()"
        )


def fit(state: dict[str, Tensor], group: Mapping[str, Any], param: Tensor, counter_device: torch.device | str) -> None:
    """Bring a state from another form, layout, type or device to what is needed now."""
    for name in STATES:
        shapes = (param.shape, _packed(param)) if "exponents" in state else (param.shape,)
        if name in state and tuple(state[name].shape) not in shapes:
            raise RuntimeError(
                f"its {name} has shape {tuple(state[name].shape)}: a parameter that changes its shape needs a new "
                "state, so delete optimizer.state[parameter]"
            )
    form = Form.of(group, param, state)
    if not _fits(state, param, form):
        replace(state, convert(state, param, form, group))
    for name in ("step", "prev_scale"):
        if name in state:
            state[name] = state[name].to(counter_device, _counter_dtype(counter_device))


def check_form(state: Mapping[str, Tensor], group: Mapping[str, Any], param: Tensor) -> None:
    """Refuse a state of another form where it cannot be converted: while a step is traced."""
    if not _has_form(state, param, Form.of(group, param, state)):
        raise RuntimeError(
            "its state has another form than the options ask for: after a change of state_format, kahan_sum or "
            "consume_grad, call optimizer.step() once outside torch.compile"
        )


def _has_form(state: Mapping[str, Tensor], param: Tensor, form: Form) -> bool:
    return (
        ("exp_avg_diff" not in state) == form.coupled
        and ("prev_scale" in state) == form.consume
        and ("compensation" in state) == form.kahan
        and (not form.kahan or state["compensation"].dtype == param.dtype)
        and (not sharding.local(param).numel() or lowbit.format_of(_local(state)) == form.quantized)
        and all(x.dtype == form.dtype for x in _averages(state, form))
    )


def _averages(state: Mapping[str, Tensor], form: Form) -> list[Tensor]:
    """The local parts of states that are laid out as their parameter."""
    names = [name for name in form.names if name in state and not (form.consume and name == "prev_grad")]
    return [sharding.local(state[name]) for name in names if not form.is_packed(name)]


def _fits(state: Mapping[str, Tensor], param: Tensor, form: Form) -> bool:
    local = sharding.local(param)

    def is_laid_out(x: Tensor) -> bool:
        """As the parameter, or as a new tensor like it where that one has gaps in memory."""
        return x.stride() == local.stride() or x.stride() == torch.empty_like(local, device="meta").stride()

    return (
        _has_form(state, param, form)
        and all(map(is_laid_out, _averages(state, form)))
        and all(state[x].device == param.device for x in NAMES if x in state and x not in ("step", "prev_scale"))
    )


def replace(state: dict[str, Any], new: Mapping[str, Any]) -> None:
    """Replace Adan's own entries; keep those of wrappers."""
    for name in OURS & state.keys():
        del state[name]
    state.update(new)


def convert(state: Mapping[str, Tensor], param: Tensor, form: Form, group: Mapping[str, Any]) -> dict[str, Tensor]:
    """The same state in another form: read as plain numbers, and written to nearest."""
    values = plain(state)
    if form.coupled and "exp_avg_diff" in values:
        values["exp_avg"] = values["exp_avg"] + group["betas"][1] * values.pop("exp_avg_diff")
    new = zeros(param, form, "cpu")
    new["step"] = state["step"]
    written = {name: x for name, x in _local(new).items() if name != "prev_grad" or not form.consume}
    like = torch.empty_like(written["exp_avg"], dtype=state_dtype(param))
    lowbit.write(written, new.get("exponents"), {name: torch.empty_like(like).copy_(values[name]) for name in written})
    if form.consume:
        consumed = "prev_scale" in state
        prev = sharding.local(state["prev_grad"]) if consumed else values["prev_grad"]
        shard = torch.empty_like(sharding.local(param), dtype=prev.dtype, requires_grad=False).copy_(prev)
        new["prev_grad"] = sharding.like(param, shard)
        new["prev_scale"] = state["prev_scale"] if consumed else new["prev_scale"]
    if form.kahan and "compensation" in state:
        new["compensation"].copy_(state["compensation"])
    return new


def plain(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The averages and the previous gradient, of this process's shards, as plain numbers in whatever form they are."""
    values = lowbit.read(_local(state), state.get("exponents"))
    if "prev_scale" in state:
        values["prev_grad"] = values["prev_grad"] * state["prev_scale"].to(values["prev_grad"].device)
    return values


def _local(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The averages and the previous gradient of this process's shards, as they are stored."""
    return {name: sharding.local(state[name]) for name in STATES if name in state}


# ---- checkpoints ----------------------------------------------------------------------------------------------------


def portable(state: dict[str, Any], param: Tensor) -> dict[str, Any]:
    """A state as a checkpoint holds it. Codes have names of their own, so that nothing reads them as numbers.

    Blocks of codes run along the memory of a parameter, so they are saved flat in that order, with the sizes and
    strides that say what it is: `torch.distributed.checkpoint` loads into tensors of any layout. The blocks of a shard
    end where it does, so a DTensor's states are saved as numbers.

    A consumed gradient is saved as the step saw it, clipped and unscaled: `torch.distributed.checkpoint` would load it
    without its scale where gradients are not consumed.
    """
    scale = state.get("prev_scale")
    if scale is not None and scale.device.type != "meta" and scale != 1:
        scaled = sharding.like(param, plain(state)["prev_grad"])
        return {**state, "prev_grad": scaled, "prev_scale": torch.ones_like(scale)}
    if "exponents" not in state:
        return state
    others = {name: value for name, value in state.items() if name not in (*STATES, "exponents")}
    if sharding.is_dtensor(param):
        return {**others, **{name: sharding.like(param, value) for name, value in plain(state).items()}}
    codes = {CODES[name]: lowbit.flat(state[name]) for name in STATES if name in state}
    whole = state["exp_avg"]  # never packed
    layout = torch.tensor([whole.shape, whole.stride()], dtype=torch.int64, device="cpu")
    return {**others, **codes, "exponents": state["exponents"], "layout": layout}


def unpack(state: dict[str, Tensor]) -> None:
    """Rename and reshape a state that was put into the optimizer as checkpoints have it: by ZeroRedundancyOptimizer."""
    if "layout" in state:
        replace(state, _unpacked(state))


def _unpacked(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of a checkpoint under the names, and in the shapes, that states have in the optimizer."""
    names = {code: name for name, code in CODES.items()}
    values = {names.get(key, key): value for key, value in entry.items()}
    if values.get("exponents") == {}:  # so torch reads a flattened checkpoint of numbers, which has none
        del values["exponents"]
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
    return {**{name: value for name, value in values.items() if name != "exponents"}, **plain(values)}


def load(
    state_dict: Mapping[str, Any], groups: list[dict[str, Any]], counter_device: Any
) -> tuple[dict[str, Any], dict[Tensor, dict[str, Tensor]]]:
    """A checkpoint, ours or the authors', as a state dict without states, and the states of the parameters.

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
        unsaved |= {"restart_state", "manual_restarts", "param_names"}
        mine = [foreign[key] for key in saved["params"] if isinstance(foreign.get(key), Mapping)]
        if any("neg_pre_grad" in state for state in mine):
            unsaved.add("step")  # of the authors' release: here every parameter has its own
        merged.update((key, value) for key, value in saved.items() if key not in unsaved)
        try:
            check(merged, f"this state dict, group {g}")
        except TypeError as error:
            raise ValueError(str(error)) from None
        new_groups.append(merged)
        merged.pop("coupled_beta", None)
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
                couples = "neg_pre_grad" in state and _is_coupled(merged)  # the authors' release; ours stay as they are
                if couples or "exp_avg_diff" not in values:
                    merged["coupled_beta"] = merged["betas"][1]
                placed = _placed(values, merged, param, counter_device(merged, param), couples)
                new_states.setdefault(param, {}).update(placed)
    return {**state_dict, "state": foreign, "param_groups": new_groups}, new_states


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
    coupled = group["betas"][0] == group["betas"][1]
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
    for key in ("step", "prev_scale"):
        if values.get(key) is not None:
            values[key] = _checked_number(values[key], f"{key} of {name}", is_count=key == "step")
    shapes = {**dict.fromkeys((*STATES, "compensation"), param.shape), "exponents": _blocks(param)}
    if quantized and lowbit.format_of(values) == "4bit":
        shapes |= dict.fromkeys(PACKED["4bit"], _packed(param))
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
    state: Mapping[str, Tensor],
    group: Mapping[str, Any],
    param: Tensor,
    counter_device: torch.device | str,
    couples: bool,
) -> dict[str, Tensor]:
    """A copy of a loaded state beside its parameter: in our types whatever the parameter's, in its layout.

    couples: make one average of two.
    """
    # A copy has the source's strides, along which the blocks of 8-bit codes run.
    placed = {name: value.detach().to(param.device, copy=True) for name, value in state.items()}
    for name in ("step", "prev_scale"):
        if name in placed:
            placed[name] = placed[name].reshape(())
    if "prev_scale" in placed:
        placed["prev_grad"] = torch.empty_like(param, dtype=placed["prev_grad"].dtype).copy_(placed["prev_grad"])
    if couples:
        placed = convert(placed, param, Form.of(group, param), group)
    fit(placed, group, param, counter_device)
    if state["step"].device.type != "meta" and state["step"] == 0:
        forget(placed)  # an automatic restart resets the count alone, and leaves in the checkpoint what it made void
    return placed
