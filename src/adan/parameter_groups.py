"""Parameter groups of a model, for any `torch.optim` optimizer: weight decay by kind, rates by depth, rules by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.nn.parameter import Parameter, is_lazy

from adan.hyperparameters import require_number

#: Embeddings of position and learned tokens, as timm, transformers, torchvision, fairseq and the original releases of
#: ViT, DeiT, Swin, MAE, CLIP, SAM, T5 and GPT-2 name them.
NO_DECAY_NAMES: tuple[str, ...] = (
    "pos_emb*", "*_pos_emb*", "pos_enc*", "position*_emb*", "*_position*_emb*", "position*_enc*", "embed_positions",
    "wpe", "rel_pos*", "relative_position*", "relative_attention_bias",
    "cls_token", "class_token", "dist_token", "distillation_token", "mask_token", "reg_token*", "register_token*",
)  # fmt: skip

_NORM_TYPES = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
# LlamaRMSNorm, LayerNorm2d, ConvNextV2GRN, BatchNormAct2d; not PreNormBlock, not NormedLinear.
_NORM_CLASS = re.compile(r"(Norm|Normalization|GRN)(Act)?(\d+d)?$")
# bias, in_proj_bias, and the bias_k of nn.MultiheadAttention, which has three dimensions.
_BIAS_NAME = re.compile(r"(^|_)bias(_|$)")


def parameter_groups(
    model: nn.Module,
    weight_decay: float,
    *,
    no_decay_names: Iterable[str] = NO_DECAY_NAMES,
    named: bool = True,
    rules: Mapping[str | type[nn.Module], Mapping[str, Any]] | None = None,
    lr: float | None = None,
    layer_decay: float | None = None,
) -> list[dict[str, Any]]:
    """Sort a model's trainable parameters into groups: those with weight decay, those without, and others by rules.

    Decay pulls θ towards 0 by a factor 1/(1 + lr·λ) each step. That regularizes a matrix or a convolution kernel, but
    harms a bias, the scale of a normalization layer, a learned token or a position embedding. A parameter does not
    decay if any of these holds:

    - it has at most one dimension, or is called a bias;
    - it belongs to a normalization layer (torch's own, or a class whose name ends in Norm, such as `LlamaRMSNorm`);
    - a pattern of `no_decay_names` matches one dotted part of its name;
    - the model or one of its modules lists it in a method `no_weight_decay()`, as timm's models do.

    Everything else decays, word embeddings included. Frozen parameters are left out, and a shared parameter is listed
    once, in the group without decay if any of its names qualifies. Call it on the model as the optimizer will see it:
    after freezing, and after `fully_shard`.

    Args:
        model: any module.
        weight_decay: λ of the first group.
        no_decay_names: shell patterns (`*`, `?`, `[...]`), case-sensitive; one with a dot in it must match the whole
            name. They replace the default, so add to it with `(*adan.NO_DECAY_NAMES, "wte")`; `()` turns this rule off.
        named: give `params` as (name, parameter) pairs, which lets an optimizer's errors and its `state_dict` name
            them. False gives bare parameters, for hosts that look into the groups before the optimizer does.
        rules: options for some parameters, by a pattern of the whole name or by a class of modules, which means all
            parameters inside: `{"*.embed*": {"lr": 1e-3, "state_format": "fp32"}, Router: {"weight_decay": 0}}`. Later
            rules override earlier ones. A rule that matches nothing is an error.
        lr: the rate of the last layers, where `layer_decay` is given.
        layer_decay: the factor from each layer's rate to that of the layer before. Layers are the members of the
            longest `nn.ModuleList` or `nn.Sequential`; what comes before them in the model is below the first, and
            what comes after, such as the head, above the last.

    Returns:
        The groups, each a dict with the key `params` and its options: first those with `weight_decay` λ and 0 and
        nothing else, then those of rules. Empty groups are omitted. :func:`adan.describe_groups` shows the result.

    Example:
        >>> import torch
        >>> from adan import parameter_groups
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
        >>> groups = parameter_groups(model, 0.02)
        >>> for group in groups:
        ...     print(group["weight_decay"], [name for name, _ in group["params"]])
        0.02 ['0.weight', '2.weight']
        0.0 ['0.bias', '1.weight', '1.bias', '2.bias']
        >>> optimizer = torch.optim.AdamW(groups, lr=1e-3)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}; pass the model itself")
    weight_decay = require_number("weight_decay", weight_decay, positive=False, remedy="the paper's is 0.02")
    patterns = _strings("no_decay_names", no_decay_names)
    if (lr is None) != (layer_decay is None):
        raise ValueError(f"lr={lr!r} and layer_decay={layer_decay!r}: pass both, or lr to the optimizer alone")
    rules = {} if rules is None else rules
    if not isinstance(rules, Mapping) or not all(
        isinstance(rule, (str, type)) and isinstance(chosen, Mapping) for rule, chosen in rules.items()
    ):
        raise TypeError(f"rules must map patterns or classes to options, as {{'*.bias': {{'lr': 0.1}}}}, got {rules!r}")
    listed: list[str] = []
    first_name: dict[Parameter, str] = {}
    exempt: set[Parameter] = set()
    # A module comes after those it is in, whose lists concern it; a shared one under each of its names.
    for prefix, module in model.named_modules(remove_duplicate=False):
        method = getattr(module, "no_weight_decay", None)
        if callable(method):
            entries = _strings(f"what {type(module).__name__}.no_weight_decay() returns", method())
            listed += [f"{prefix}.{entry}" if prefix else entry for entry in entries]
        is_norm = isinstance(module, _NORM_TYPES) or _NORM_CLASS.search(type(module).__name__)
        for name, p in module.named_parameters(prefix, recurse=False, remove_duplicate=False):
            if not p.requires_grad:
                continue
            if is_lazy(p):
                raise ValueError(f"model: parameter {name!r} has no shape yet; run one batch through the model first")
            first_name.setdefault(p, name)
            if p.ndim <= 1 or is_norm or _is_exempt(name, patterns, listed):
                exempt.add(p)
    if not first_name:
        raise ValueError("model has no parameter with requires_grad=True; unfreeze what is to be trained")
    options = {p: {"weight_decay": 0.0 if p in exempt else weight_decay} for p in first_name}
    if layer_decay is not None:
        lr = require_number("lr", lr, positive=False, remedy="give the rate of the last layers")
        layer_decay = require_number("layer_decay", layer_decay, positive=True, remedy="give a factor such as 0.75")
        for p, below in _layers_below_the_last(model).items():
            if p in options:
                options[p]["lr"] = lr * layer_decay**below
    for rule, chosen in rules.items():
        fitting = _fitting(model, rule) & first_name.keys()
        if not fitting:
            names = ", ".join([*first_name.values()][:3])
            raise ValueError(f"rules: {rule!r} matches no trainable parameter; names are, for example, {names}")
        for p in fitting:
            options[p] |= chosen
    kinds: list[Any] = [(False, {"weight_decay": weight_decay}), (True, {"weight_decay": 0.0})]
    members: list[list[Any]] = [[], []]
    for p, name in first_name.items():
        kind = p in exempt, options[p]
        if kind not in kinds:
            kinds.append(kind)
            members.append([])
        members[kinds.index(kind)].append((name, p) if named else p)
    return [{"params": params, **chosen} for params, (_, chosen) in zip(members, kinds, strict=True) if params]


def describe_groups(groups: Iterable[Mapping[str, Any]]) -> str:
    """Describe parameter groups with one line per parameter: its name if it has one, its shape and its options.

    >>> print(describe_groups(parameter_groups(nn.Linear(2, 3), 0.1, rules={"bias": {"lr": 0.5}})))
    weight (3, 2) weight_decay=0.1
    bias (3,) weight_decay=0.0 lr=0.5
    """
    lines = []
    for group in groups:
        if not isinstance(group, Mapping) or not isinstance(group.get("params"), (list, tuple, nn.ParameterList)):
            raise TypeError(f"groups must be dicts with a list 'params', as parameter_groups(...) makes, got {group!r}")
        names = group.get("param_names", [""] * len(group["params"]))  # of an optimizer's groups
        options = " ".join(f"{key}={value!r}" for key, value in group.items() if key not in ("params", "param_names"))
        for name, entry in zip(names, group["params"], strict=True):
            name, p = entry if isinstance(entry, tuple) else (name, entry)
            lines.append(" ".join(filter(None, (name, str(tuple(p.shape)), options))))
    return "\n".join(lines)


def _strings(name: str, values: Any) -> tuple[str, ...]:
    strings = tuple(values) if isinstance(values, Iterable) else (values,)
    if isinstance(values, str) or not all(isinstance(x, str) for x in strings):
        raise TypeError(f"{name} must be a collection of strings, got {values!r}; write a tuple")
    return strings


def _fitting(model: nn.Module, rule: str | type[nn.Module]) -> set[Parameter]:
    """The parameters whose names match a pattern, or that are inside modules of a class."""
    if isinstance(rule, str):
        return {p for name, p in model.named_parameters(remove_duplicate=False) if fnmatchcase(name, rule)}
    return {p for module in model.modules() if isinstance(module, rule) for p in module.parameters()}


def _layers_below_the_last(model: nn.Module) -> dict[Parameter, int]:
    """Each parameter's depth: how many layers it is below what follows the layers."""
    stacks = [module for module in model.modules() if isinstance(module, (nn.ModuleList, nn.Sequential))]
    layers = list(max(stacks, key=len, default=()))
    if len(layers) < 2:
        raise ValueError("layer_decay: the model has no nn.ModuleList or nn.Sequential of layers; give lr by rules")
    inside = {p: len(layers) - i for i, layer in enumerate(layers) for p in layer.parameters()}
    depths: dict[Parameter, int] = {}
    for p in model.parameters():
        before = inside.keys().isdisjoint(depths)
        depths[p] = inside.get(p, len(layers) + 1 if before else 0)
    return depths


def _is_exempt(name: str, patterns: tuple[str, ...], listed: list[str]) -> bool:
    """Whether a parameter's name exempts it from decay: as a bias, by a pattern, or by its module's list."""
    parts = name.split(".")
    matches = (fnmatchcase(part, x) for x in patterns for part in ((name,) if "." in x else parts))
    return bool(_BIAS_NAME.search(parts[-1])) or any(matches) or any(f"{name}.".startswith(f"{x}.") for x in listed)
