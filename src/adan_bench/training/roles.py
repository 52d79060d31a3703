"""Roles of a model's parameters: which of them an optimizer for hidden matrices, such as Muon, may take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from adan_bench.errors import UsageError, unknown

ROLES = ("matrix", "convolution", "embedding", "head", "vector")
HIDDEN = ROLES[:2]
FUSED = ("qkv", "qkv_proj", "c_attn", "in_proj", "Wqkv")  # modules that compute query, key and value at once
GATES = {nn.LSTM: 4, nn.GRU: 3}


@dataclass(frozen=True)
class Role:
    """A parameter's role. parts: matrices of equal size that it fuses; transposed: its rows are the inputs."""

    name: str
    parts: int = 1
    transposed: bool = False

    def matrices(self, value: Tensor) -> list[Tensor]:
        """The matrices, outputs by inputs, of a parameter or of its gradient: views wherever its layout allows them.

        A kernel is one matrix of outputs by all else; a "matrix" of three dimensions is a stack of them.
        """
        if self.name == "matrix" and value.dim() == 3:
            return list(value.unbind())
        if self.transposed:
            value = value.t()
        elif value.dim() == 4 and not value.is_contiguous():  # channels_last; the order of columns does not matter
            value = value.permute(0, 2, 3, 1)
        return list(value.flatten(1).chunk(self.parts))


def roles(model: nn.Module, patterns: Mapping[str, str] | None = None) -> dict[str, Role]:
    """The role of every parameter by its name.

    A *vector* has one dimension that is not 1, or is the kernel of a depthwise convolution, one filter per channel. An
    *embedding* is the weight of an nn.Embedding, a parameter that is not called a weight (of positions, say), or the
    first weight of the model in the order of its modules, which reads the input, unless nothing else is hidden. A
    *head* is the last weight, of a linear layer or a convolution, unless it is tied to an embedding. First and last
    weights are so even where the layer has one input or one output, and thus no matrix. What remains is
    hidden: kernels are *convolution*, all else is *matrix*. The matrices of a fused projection count one by one: q, k
    and v of nn.MultiheadAttention and of layers called qkv or the like, gates of an LSTM or a GRU, stacked experts.

    patterns: roles by patterns of names (fnmatch), the first match counts, for what this rule does not see;
        "matrix/3" is a matrix that fuses three, one below the other.
    """
    found: dict[str, Role] = {}
    by_id: dict[int, str] = {}
    weights: list[tuple[str, nn.Module]] = []  # with the module; a tied weight comes again
    for name, p in model.named_parameters(remove_duplicate=False):
        module = model.get_submodule(name.rpartition(".")[0])
        own = by_id.setdefault(id(p), name)
        if own == name:
            found[name] = _role(name, p, module)
        if "weight" in name.rpartition(".")[2] and (found[own].name != "vector" or _thin(name, p, module)):
            weights.append((own, module))
    if weights:
        first, (last, module) = weights[0][0], weights[-1]
        if found[last].name in (*HIDDEN, "vector") and not isinstance(module, nn.RNNBase):
            found[last] = Role("head")
        others = any(role.name in HIDDEN for name, role in found.items() if name != first)
        if found[first].name in (*HIDDEN, "vector") and others:
            found[first] = Role("embedding")
    for name, p in model.named_parameters():
        pattern = next((pattern for pattern in patterns or () if fnmatchcase(name, pattern)), None)
        if pattern is not None:
            found[name] = _parsed((patterns or {})[pattern], name, p, found[name].transposed)
    return found


def _thin(name: str, p: Tensor, module: nn.Module) -> bool:
    """Whether a vector is the whole weight of a layer, which then has one input or one output."""
    layer = isinstance(module, (nn.Linear, nn.modules.conv._ConvNd)) and getattr(module, "groups", 1) == 1
    return layer and p.dim() > 1 and name.endswith("weight")


def _role(name: str, p: Tensor, module: nn.Module) -> Role:
    """The role of one parameter, apart from its place in the model."""
    *path, own = name.split(".")
    kernel = isinstance(module, nn.modules.conv._ConvNd) and p.dim() > 2
    if p.numel() == max(p.shape, default=1):
        return Role("vector")
    if isinstance(module, nn.modules.conv._ConvNd) and module.groups == module.in_channels > 1:
        return Role("vector")
    if p.dim() == 3 and "expert" in f"{name} {type(module).__name__}".lower():
        return Role("matrix")
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) or "weight" not in own or (p.dim() > 2 and not kernel):
        return Role("embedding")
    if kernel:
        return Role("convolution")
    transposed = type(module).__name__ == "Conv1D"  # of transformers: GPT-2's linear layers
    outputs, inputs = reversed(p.shape) if transposed else p.shape
    fused = own == "in_proj_weight" or (path and path[-1] in FUSED)
    gates = next((count for kind, count in GATES.items() if isinstance(module, kind) and "_hr" not in own), 1)
    return Role("matrix", 3 if fused and outputs == 3 * inputs else gates, transposed)


def _parsed(text: str, name: str, p: Tensor, transposed: bool) -> Role:
    role, _, parts = str(text).partition("/")
    if role not in ROLES:
        raise unknown("role", role, ROLES, of="Task")
    count = int(parts) if parts.isdecimal() else 0 if parts else 1
    rows = (p.shape[1] if transposed else p.shape[0]) if p.dim() > 1 else 0
    if role in HIDDEN and (rows == 0 or count < 1 or rows % count):
        raise UsageError(
            f"Task: roles[{name!r}] {text!r}: its shape is {tuple(p.shape)}; give matrices or kernels, and a number of "
            "parts that divides the outputs"
        )
    return Role(role, max(1, count), transposed and role == "matrix")


def summary(model: nn.Module, patterns: Mapping[str, str] | None = None) -> dict[str, dict[str, int]]:
    """Tensors, parameters and bytes of each role that the model has; matrices: as a fused projection counts them."""
    counts: dict[str, dict[str, int]] = {}
    found, parameters = roles(model, patterns), dict(model.named_parameters())
    for role in ROLES:
        mine = [(parameters[name], own) for name, own in found.items() if own.name == role]
        if mine:
            counts[role] = {
                "tensors": len(mine),
                "parameters": sum(p.numel() for p, _ in mine),
                "bytes": sum(p.numel() * p.element_size() for p, _ in mine),
            }
            if role in HIDDEN:
                stacks = (len(p) if p.dim() == 3 and role == "matrix" else own.parts for p, own in mine)
                counts[role]["matrices"] = sum(stacks)
    return counts


def by_role(
    groups: Iterable[nn.Parameter] | list[dict[str, Any]], model: nn.Module, patterns: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Parameter groups, each split into one for every kind of role, which stands in it as "role"."""
    names = {id(p): name for name, p in model.named_parameters()}
    found = roles(model, patterns)
    split: list[dict[str, Any]] = []
    whole: list[Any] = list(groups)
    given: list[dict[str, Any]] = whole if whole and isinstance(whole[0], dict) else [{"params": whole}]
    for group in given:
        parts: dict[Role, list[Tensor]] = {}
        for p in [group["params"]] if isinstance(group["params"], torch.Tensor) else group["params"]:
            role = found[names[id(p)]]
            parts.setdefault(role if role.name in HIDDEN else Role(""), []).append(p)
        split += [{**group, "params": params, "role": role} for role, params in parts.items()]
    return split
