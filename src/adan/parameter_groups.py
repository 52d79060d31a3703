"""Weight decay by kind of parameter: a model's parameters in two groups for any `torch.optim` optimizer."""

from __future__ import annotations

import re
from collections.abc import Iterable
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
) -> list[dict[str, Any]]:
    """A model's trainable parameters in two groups: those that decay by `weight_decay`, and those that do not.

    Decay pulls θ towards 0 by a factor 1/(1 + lr·λ) each step. That regularizes a matrix or a convolution kernel; it
    works against a bias, the scale of a normalization layer, a learned token or an embedding of position. A parameter
    does not decay if any of these holds:

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

    Returns:
        The groups, with the keys `params` and `weight_decay`: λ in the first, 0 in the second. One that would be empty
        is left out.

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
    if isinstance(no_decay_names, str):
        raise TypeError(f"no_decay_names must be a collection of patterns, got {no_decay_names!r}; write a tuple")
    patterns = tuple(no_decay_names)
    listed: list[str] = []
    for prefix, module in model.named_modules():
        method = getattr(module, "no_weight_decay", None)
        if callable(method):
            listed += [f"{prefix}.{entry}" if prefix else entry for entry in method()]
    first_name: dict[Parameter, str] = {}
    exempt: set[Parameter] = set()
    for prefix, module in model.named_modules():
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
    groups = []
    for decay, chosen in ((weight_decay, first_name.keys() - exempt), (0.0, exempt)):
        entries = [(name, p) for p, name in first_name.items() if p in chosen]
        groups.append({"params": entries if named else [p for _, p in entries], "weight_decay": decay})
    return [group for group in groups if group["params"]]


def _is_exempt(name: str, patterns: tuple[str, ...], listed: list[str]) -> bool:
    """Whether a parameter does not decay by its name: of a bias, by a pattern, or as its module lists it."""
    parts = name.split(".")
    matches = (fnmatchcase(part, x) for x in patterns for part in ((name,) if "." in x else parts))
    return bool(_BIAS_NAME.search(parts[-1])) or any(matches) or any(f"{name}.".startswith(f"{x}.") for x in listed)
