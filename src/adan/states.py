"""What Adan keeps for a parameter: how it starts, how it is forgotten, how it is read from a checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from operator import attrgetter, eq
from typing import Any, NamedTuple

import torch
from torch import Tensor, UntypedStorage

from adan import lowbit, sharding
from adan.batch import compute_dtype, laid_out_as
from adan.lowbit import BLOCK, FORMATS, ROOT, SIGNED, SMALLEST
from adan.validation import check_options, describe

_NBYTES = attrgetter("nbytes")
_REQUIRES_GRAD = attrgetter("requires_grad")

#: The tensors of a parameter's state, in the order in which engines take them; `step` counts its gradients.
NAMES = ("exp_avg", "exp_avg_diff", "exp_avg_sq", "prev_grad")
COUPLED = ("exp_avg", "exp_avg_sq", "prev_grad")
CODES = {"exp_avg": SIGNED, "exp_avg_diff": SIGNED, "exp_avg_sq": ROOT, "prev_grad": SIGNED}

#: What a parameter may have besides.
EXTRAS = ("prev_scale", "exponents", "compensation")

#: What a checkpoint adds to the name of a state in 8 bits.
CODED = "_codes"

#: How a step is run is a choice of the program at hand, not part of what was learned: never taken from a checkpoint.
OWN_OPTIONS = (
    "foreach",
    "fused",
    "consume_grad",
    "capturable",
    "differentiable",
    "skip_nonfinite",
    "state_format",
    "stochastic_rounding",
    "kahan_sum",
    "rounding_seed",
    "norm_group",
    "restart",
)


class Form(NamedTuple):
    """How the state of a parameter is kept."""

    dtype: torch.dtype
    coupled: float | None  #: b2 where betas[0] == betas[1]: exp_avg is then the average of g + b2·d, and there is no v
    consume: bool  #: the previous gradient is the buffer that backward filled
    kahan: bool

    @classmethod
    def of(cls, group: Mapping[str, Any], param: Tensor) -> Form:
        dtype = plain = state_dtype(param)
        if plain == torch.float32 and param.numel() >= SMALLEST:
            dtype = FORMATS[group["state_format"]]
        b1, b2, _ = group["betas"]
        half = param.dtype in (torch.bfloat16, torch.float16)
        return cls(
            dtype, b2 if b1 == b2 else None, group["consume_grad"] and dtype == plain, group["kahan_sum"] and half
        )

    @property
    def names(self) -> tuple[str, ...]:
        return NAMES if self.coupled is None else COUPLED


def describe_forms(groups: Iterable[Mapping[str, Any]]) -> str:
    """Which parameters keep their states how, in words."""
    counts: Counter[str] = Counter()
    for group in groups:
        for param in group["params"]:
            form = Form.of(group, param)
            words = [str(form.dtype).removeprefix("torch.").replace("uint8", "8 bit")]
            words += ["coupled"] if form.coupled is not None else []
            words += ["Kahan"] if form.kahan else []
            counts[" ".join(words)] += 1
    return ", ".join(f"{name} for {count} parameters" for name, count in counts.items()) or "none"


def state_dtype(param: Tensor) -> torch.dtype:
    dtype = compute_dtype(param.dtype)
    return dtype.to_complex() if param.is_complex() else dtype


def new_state(param: Tensor, form: Form, counter_device: torch.device | str) -> dict[str, Tensor]:
    state = {"step": torch.zeros((), dtype=torch.float32, device=counter_device)}
    for name in form.names:
        state[name] = torch.zeros_like(param, dtype=form.dtype, memory_format=torch.preserve_format)
    if form.consume:
        # The first gradient's buffer will take this place: one number is enough until then.
        nothing = torch.zeros((), dtype=param.dtype, device=param.device)
        state["prev_grad"] = sharding.like(param, nothing.expand(sharding.local(param).shape))
        state["prev_scale"] = torch.ones((), dtype=torch.float64, device=counter_device)
    if form.dtype == torch.uint8:
        size = (-(-sharding.local(param).numel() // BLOCK), len(NAMES))
        state["exponents"] = torch.zeros(size, dtype=torch.uint8, device=param.device)
    if form.kahan:
        state["compensation"] = torch.zeros_like(param, memory_format=torch.preserve_format)
    return state


def portable(state: dict[str, Any], param: Tensor) -> dict[str, Any]:
    """A state as a checkpoint holds it. 8-bit codes have names of their own, lest they be read as numbers.

    Where a parameter is spread, its blocks end where a process's part does: there the numbers themselves are saved.
    """
    if "exponents" not in state:
        return state
    if not sharding.is_spread(param):
        return {f"{name}{CODED}" if name in NAMES else name: value for name, value in state.items()}
    others = {name: value for name, value in state.items() if name not in (*NAMES, "exponents")}
    return {**others, **{name: sharding.like(param, value) for name, value in plain(state).items()}}


def uncoded_names(state: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint's state by the names it has in the optimizer."""
    return {str(name).removesuffix(CODED): value for name, value in state.items()}


def forget(state: dict[str, Tensor]) -> None:
    """As if there had been no gradient yet; what the weights themselves have lost to rounding stays."""
    for name, value in state.items():
        if name != "compensation":
            value.fill_(name == "prev_scale")


def fit(state: dict[str, Tensor], param: Tensor, form: Form, counter_device: torch.device | str) -> None:
    """Bring a state that was made in another form, layout or type, or for another device, to what holds now."""
    for name in NAMES:
        if name in state and state[name].shape != param.shape:
            raise RuntimeError(
                f"{name} of a parameter of shape {tuple(param.shape)} has shape {tuple(state[name].shape)}: "
                "a parameter that changes its shape needs a new state, so delete optimizer.state[parameter]"
            )
    if not _fits(state, param, form):
        fitted = convert(state, param, form)
        state.clear()
        state.update(fitted)
    for name, dtype in (("step", torch.float32), ("prev_scale", torch.float64)):
        if name in state:
            state[name] = state[name].to(counter_device, dtype)


def _fits(state: Mapping[str, Tensor], param: Tensor, form: Form) -> bool:
    averages = [sharding.local(state[name]) for name in form.names[: -1 if form.consume else None] if name in state]
    stride = sharding.local(param).stride()
    return (
        ("exp_avg_diff" in state) == (form.coupled is None)
        and ("prev_scale" in state) == form.consume
        and ("compensation" in state) == form.kahan
        and (not form.kahan or state["compensation"].dtype == param.dtype)
        and all(x.dtype == form.dtype and x.stride() == stride for x in averages)
        and all(x.device == param.device for name, x in state.items() if name not in ("step", "prev_scale"))
    )


def convert(state: Mapping[str, Tensor], param: Tensor, form: Form) -> dict[str, Tensor]:
    """The same state in another form: read as plain numbers, and written to nearest."""
    values = plain(state)
    if form.coupled is None and "exp_avg_diff" not in values:
        raise RuntimeError(
            f"the state of a parameter of shape {tuple(param.shape)} was kept in the coupled form, as betas[0] was "
            "betas[1]: its one average cannot be parted for other betas; set equal ones again, or start anew by "
            "optimizer.state.clear()"
        )
    if form.coupled is not None and "exp_avg_diff" in values:
        values["exp_avg"] = values["exp_avg"] + form.coupled * values.pop("exp_avg_diff")
    new = new_state(param, form, "cpu")
    new["step"] = state["step"]
    for name in form.names:
        if name != "prev_grad" or not form.consume:
            x = sharding.local(new[name])
            value = torch.empty_like(x, dtype=state_dtype(param)).copy_(values[name])
            lowbit.write(x, _exponents(new, name), value, CODES[name])
    if form.consume:
        kept = "prev_scale" in state
        prev = sharding.local(state["prev_grad"]) if kept else values["prev_grad"]
        part = torch.empty_like(sharding.local(param), dtype=prev.dtype, requires_grad=False).copy_(prev)
        new["prev_grad"] = sharding.like(param, part)
        new["prev_scale"] = state["prev_scale"] if kept else new["prev_scale"]
    if form.kahan and "compensation" in state:
        new["compensation"].copy_(state["compensation"])
    return new


def plain(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The averages and the previous gradient of this process as plain numbers, whatever form they are kept in."""
    names = [name for name in NAMES if name in state]
    values = {name: lowbit.read(sharding.local(state[name]), _exponents(state, name), CODES[name]) for name in names}
    if "prev_scale" in state:
        values["prev_grad"] = values["prev_grad"] * state["prev_scale"].to(values["prev_grad"].device)
    return values


def _exponents(state: Mapping[str, Tensor], name: str) -> Tensor | None:
    return state["exponents"][:, NAMES.index(name)] if "exponents" in state else None


def owned(grads: list[Tensor], params: list[Tensor], prev_grads: list[Tensor]) -> list[Tensor]:
    """Gradients that may be kept: alone in their memory, where no other view writes, laid out as their parameters."""
    if sharding.any_spread(params):
        params, prev_grads = list(map(sharding.local, params)), list(map(sharding.local, prev_grads))
    for i, same in enumerate(map(eq, map(Tensor.data_ptr, grads), map(Tensor.data_ptr, prev_grads))):
        if same and grads[i].numel():
            raise RuntimeError(
                f"consume_grad=True keeps the gradient of a parameter of shape {tuple(params[i].shape)}, and the next "
                "one was written over it: give every step a gradient of its own, or leave consume_grad at False"
            )
    # In one go over lists, each check takes a tenth of what it takes gradient by gradient.
    alone = list(map(UntypedStorage.nbytes, map(Tensor.untyped_storage, grads))) == list(map(_NBYTES, grads))
    if alone and not any(map(_REQUIRES_GRAD, grads)) and all(map(Tensor.is_contiguous, chain(grads, params))):
        return grads
    return [_owned(grad.detach(), p) for grad, p in zip(grads, params, strict=True)]


def _owned(grad: Tensor, param: Tensor) -> Tensor:
    alone = grad.untyped_storage().nbytes() == grad.nbytes
    return laid_out_as(param, grad if alone else grad.clone(), grad.dtype)


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
        other = (*OWN_OPTIONS, "step", "restart_state")
        merged.update((key, value) for key, value in saved.items() if key not in other)
        try:
            check_options(merged, f"this state dict, group {g}")
        except TypeError as error:
            raise ValueError(str(error)) from None
        new_groups.append(merged)
        for i, (key, param) in enumerate(zip(saved["params"], group["params"], strict=True)):
            state = state_dict["state"].get(key)
            if state:
                new_states[key] = _adopt_state(state, saved, merged, param, f"parameter {describe(group, i, g)}")
    return {**state_dict, "state": new_states, "param_groups": new_groups}


def _adopt_state(
    state: Mapping[str, Any], saved: Mapping[str, Any], group: Mapping[str, Any], param: Tensor, name: str
) -> dict[str, Tensor]:
    values = uncoded_names(state)
    if "neg_pre_grad" in values:  # the authors' release: the negated gradient, and one count for the whole group
        values["prev_grad"] = -values.pop("neg_pre_grad")
        values.setdefault("step", saved.get("step"))
    coupled = group["betas"][0] == group["betas"][1]
    coded = values.get("exp_avg") is not None and values["exp_avg"].dtype == torch.uint8
    needed = ("step", *(COUPLED if coupled else NAMES), *(["exponents"] if coded else []))
    missing = [key for key in needed if values.get(key) is None]
    if missing:
        raise ValueError(
            f"the state of {name} lacks {', '.join(missing)} (it has {', '.join(map(str, state)) or 'nothing'}): "
            "this is no checkpoint of Adan"
        )
    blocks = (-(-sharding.local(param).numel() // BLOCK), len(NAMES))
    shapes = {**dict.fromkeys((*NAMES, "compensation"), param.shape), "exponents": blocks}
    for key, shape in shapes.items():
        if key in values and values[key].shape != shape:
            raise ValueError(f"{key} of {name} has shape {tuple(values[key].shape)} in this state dict")
        if key in NAMES and sharding.is_spread(param) and not sharding.is_spread(values.get(key, param)):
            raise ValueError(
                f"{key} of {name} is a whole tensor in this state dict, and the parameter is a DTensor: load with "
                "torch.distributed.checkpoint.state_dict.set_optimizer_state_dict"
            )
    return {key: torch.as_tensor(values[key]) for key in ("step", *NAMES, *EXTRAS) if key in values}


def place(
    state: Mapping[str, Tensor], param: Tensor, form: Form, counter_device: torch.device | str
) -> dict[str, Tensor]:
    """A copy of a loaded state beside its parameter: in our types whatever the parameter's, in its layout."""
    # A copy keeps the layout: the blocks of 8-bit codes run along the memory they were made in.
    placed = {name: value.detach().to(param.device, copy=True) for name, value in state.items()}
    placed["step"] = placed["step"].reshape(())
    if "prev_scale" in placed:
        placed["prev_grad"] = torch.empty_like(param, dtype=placed["prev_grad"].dtype).copy_(placed["prev_grad"])
    fit(placed, param, form, counter_device)
    return placed


def parameters(groups: list[dict[str, Any]]) -> list[Tensor]:
    return list(chain.from_iterable(group["params"] for group in groups))
