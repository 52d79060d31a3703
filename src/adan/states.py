"""A parameter's state: its start, its storage form, and how it is reset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from adan import lowbit, sharding
from adan.columns import NAMES, NUMBERS, STATES, compute_dtype, widest_dtype
from adan.lowbit import BLOCK, FORMATS, PACKED, SMALLEST
from adan.options import counted

#: What a checkpoint calls quantized states.
CODES = {name: f"{name}_codes" for name in STATES}
#: Every name of Adan's own in a parameter's state; entries of wrappers, such as timm's Lookahead, stay as they are.
#: `neg_pre_grad` is the authors'.
OURS = {*NAMES, *CODES.values(), "layout", "neg_pre_grad"}


class Form(NamedTuple):
    """The form in which a parameter's state is stored."""

    dtype: torch.dtype
    quantized: str | None  #: "8bit" or "4bit"
    coupled: bool  #: exp_avg is the average of g + b2·d, and there is no exp_avg_diff: exact for one b1 = b2
    kahan: bool
    averaging: float | None  #: factor of v in the 4-bit format, which a state keeps when betas change

    @classmethod
    def of(cls, group: Mapping[str, Any], param: Tensor) -> Form:
        """Form that the options ask for."""
        dtype = plain = state_dtype(param)
        quantized = None
        if plain == torch.float32 and param.numel() >= SMALLEST:
            dtype = FORMATS[group["state_format"]]
            quantized = group["state_format"] if dtype == torch.uint8 else None
        half = param.dtype in (torch.bfloat16, torch.float16)
        coupled = group["coupled"] is not False
        averaging = lowbit.averaging(group["betas"][1]) if quantized == "4bit" and not coupled else None
        return cls(dtype, quantized, coupled, group["kahan_sum"] and half, averaging)

    def tensors(self, param: Tensor) -> dict[str, tuple[torch.dtype, tuple[int, int] | None]]:
        """The tensors of a state: types, and shapes where they are not laid out as the parameter."""
        n, packed = blocks(param), PACKED[self.quantized] if self.quantized else ()
        names = [name for name in STATES if not (self.coupled and name == "exp_avg_diff")]
        tensors: dict[str, Any] = {name: (self.dtype, (n, BLOCK // 2) if name in packed else None) for name in names}
        if self.quantized:
            tensors["exponents"] = (torch.uint8, (n, len(STATES)))
        if self.kahan:
            tensors["compensation"] = (param.dtype, None)
        return tensors

    def __str__(self) -> str:
        name = self.quantized.replace("bit", " bit") if self.quantized else str(self.dtype).removeprefix("torch.")
        return name + " coupled" * self.coupled + " Kahan" * self.kahan


def describe_forms(groups: Iterable[Mapping[str, Any]]) -> str:
    """Count the parameters whose states are, or will be, stored in each form."""
    params = ((group, p) for group in groups for p in group["params"])
    counts = Counter("uninitialized" if is_lazy(p) else str(Form.of(group, p)) for group, p in params)
    return ", ".join(f"{name} for {counted(count)}" for name, count in counts.items()) or "none"


def state_dtype(param: Tensor) -> torch.dtype:
    dtype = compute_dtype(param.dtype)
    return dtype.to_complex() if param.is_complex() else dtype


def zeros(param: Tensor, form: Form, counter_device: torch.device | str) -> dict[str, Tensor]:
    """The state of a parameter in a form, before its first gradient."""
    state = {"step": torch.zeros((), dtype=widest_dtype(counter_device), device=counter_device)}
    if form.averaging is not None:
        state["averaging"] = torch.full_like(state["step"], form.averaging)
    for name, (dtype, shape) in form.tensors(param).items():
        if shape is None:
            state[name] = torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format)
        else:
            state[name] = torch.zeros(shape, dtype=dtype, device=param.device)
    return state


def blocks(param: Tensor) -> int:
    return -(-sharding.local(param).numel() // BLOCK)


def forget(state: dict[str, Tensor]) -> None:
    """Reset a state to what it was before the first gradient, but keep the rounding error of weights."""
    for name in ("step", *STATES, *CODES.values(), "exponents"):
        if name in state:
            state[name].zero_()


def check_grad(param: Tensor) -> None:
    """Reject a gradient that no engine supports."""
    grad = param.grad
    if grad is not None and grad.layout is not torch.strided:
        raise RuntimeError(f"its gradient is {grad.layout}, not dense: construct the embedding with sparse=False")
    if grad is not None and grad.shape != param.shape:
        raise RuntimeError(f"its gradient has shape {tuple(grad.shape)}: call zero_grad() after changing its shape")


def check_coupled(state: Mapping[str, Tensor], group: Mapping[str, Any]) -> None:
    """Reject betas for which a state cannot be coupled."""
    b1, b2, _ = group["betas"]
    beta = group["coupled"]
    is_one = "step" in state and "exp_avg_diff" not in state
    if is_one if beta is False else not b1 == b2 == beta:
        got = f"its group now has betas={group['betas']} and coupled={beta}"
        remedy = "restore them, or construct Adan with coupled=False"
        raise RuntimeError(f"its state is coupled, one average for equal b1 and b2, but {got}: {remedy}")


def fit(state: dict[str, Tensor], group: Mapping[str, Any], param: Tensor, counter_device: torch.device | str) -> None:
    """Convert a state to the form, layout, type and device that are needed now."""
    shapes = (param.shape, (blocks(param), BLOCK // 2)) if "exponents" in state else (param.shape,)
    for name in STATES:
        if name in state and (shape := tuple(state[name].shape)) not in shapes:
            remedy = "change its shape with adan.resize_state, or delete optimizer.state[parameter]"
            raise RuntimeError(f"its {name} has shape {shape}: {remedy}")
    form = Form.of(group, param)
    if not fits(state, param, form):
        replace(state, convert(state, param, form, group))
    for name in NUMBERS:
        if name in state:
            state[name] = state[name].to(counter_device, widest_dtype(counter_device))


def fits(state: Mapping[str, Tensor], param: Tensor, form: Form) -> bool:
    """Whether a state has the form: its names, types, layouts and devices."""
    local, mine, wanted = sharding.local(param), _local(state), form.tensors(param)
    has_form = mine.keys() - NUMBERS == wanted.keys() and ("averaging" in state) == (form.averaging is not None)
    return has_form and all(
        mine[name].dtype == dtype
        and mine[name].device == local.device
        and (mine[name].shape == shape if shape else _is_laid_out_as(local, mine[name]))
        for name, (dtype, shape) in wanted.items()
    )


def _is_laid_out_as(param: Tensor, x: Tensor) -> bool:
    """Whether `x` is laid out like the parameter or, where that one has gaps in memory, like a new tensor."""
    return x.stride() == param.stride() or x.stride() == torch.empty_like(param, device="meta").stride()


def replace(state: dict[str, Any], new: Mapping[str, Any]) -> None:
    """Replace Adan's own entries; keep those of wrappers."""
    for name in OURS & state.keys():
        del state[name]
    state.update(new)


def convert(state: Mapping[str, Tensor], param: Tensor, form: Form, group: Mapping[str, Any]) -> dict[str, Tensor]:
    """A state in another form: dequantized, then rounded to nearest."""
    values = plain(state)
    if form.coupled and "exp_avg_diff" in values:
        values["exp_avg"] = values["exp_avg"] + group["betas"][1] * values.pop("exp_avg_diff")
    new = zeros(param, form, "cpu")
    new["step"] = state["step"]
    written = _local(new)
    like = torch.empty_like(written["exp_avg"], dtype=state_dtype(param))
    lowbit.write(written, {name: torch.empty_like(like).copy_(values[name]) for name in STATES if name in new})
    if form.kahan and "compensation" in state:
        new["compensation"].copy_(state["compensation"])
    return new


def plain(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The averages and the previous gradient of this process's shards, dequantized."""
    return lowbit.read(_local(state))


def _local(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of this process's shards, as it is stored."""
    return {name: sharding.local(state[name]) for name in NAMES if name in state}
