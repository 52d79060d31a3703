"""Before training: the bytes that weights, gradients and states will take on a GPU."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from adan import sharding, states
from adan.hyperparameters import require_count
from adan.lowbit import FORMATS
from adan.optimizer import Adan
from adan.options import check, check_params, coupled_beta

_UNITS = {"GB": 10**9, "MB": 10**6, "kB": 10**3, "bytes": 1}
_WHERE = "plan_memory"


class Bytes(NamedTuple):
    """Bytes of one rank, with one optimizer."""

    weights: int
    gradients: int
    states: int

    @property
    def total(self) -> int:
        return sum(self)


@dataclass(frozen=True, repr=False)
class MemoryPlan:
    """Prediction of :func:`plan_memory`; printed, it is a table.

    Args:
        parameters: the number of parameters of the whole model.
        shards: the number of ranks over which FSDP2 shards each parameter.
        rank: the rank whose bytes are given.
        rows: bytes by optimizer: "AdamW", then "Adan fp32", "Adan fp32 coupled" and so on for every ``state_format``.
            Each has ``weights``, ``gradients``, ``states`` and their ``total``.
    """

    parameters: int
    shards: int
    rank: int
    rows: dict[str, Bytes]

    def __repr__(self) -> str:
        where = f" on {self.shards:,} FSDP2 shards, rank {self.rank:,}" if self.shards > 1 else ""
        columns, base = [*Bytes._fields, "total"], max(1, self.rows["AdamW"].total)
        unit, size = next((name, size) for name, size in _UNITS.items() if base >= size or size == 1)
        lines = [f"{self.parameters:,} parameters{where}: {unit}"]
        lines.append(f"{'':20}" + "".join(f"{name:>11}" for name in columns) + f"{'÷ AdamW':>11}")
        for name, row in self.rows.items():
            cells = "".join(f"{getattr(row, column) / size:11,.3f}" for column in columns)
            lines.append(f"{name:20}{cells}{row.total / base:11.2f}")
        return "\n".join(lines)


class _Piece(NamedTuple):
    """One rank's share of a parameter."""

    whole: torch.Size
    shard: torch.Size
    nbytes: int  #: of its weight or its gradient, which FSDP2 pads to the size of the first shard
    dtype: torch.dtype

    def state_bytes(self, group: Mapping[str, Any]) -> int:
        whole, shard = (torch.empty(size, dtype=self.dtype, device="meta") for size in (self.whole, self.shard))
        return sum(x.nbytes for x in states.zeros(shard, states.Form.of(group, whole), "meta").values())


def plan_memory(
    model: nn.Module | Iterable[Any] | float,
    *,
    shards: int = 1,
    rank: int = 0,
    dtype: torch.dtype | None = None,
    kahan_sum: bool = False,
    release_gradients: bool = False,
) -> MemoryPlan:
    """Predict the bytes of weights, gradients and states on a GPU, for AdamW and every form of Adan's states.

    Exact for these three; activations, buffers and the parameters that FSDP2 gathers temporarily are not counted.
    Frozen parameters count as weights only. A model on the meta device (``with torch.device("meta"): ...``) is planned
    without taking memory.

    Args:
        model: a module, its parameters, parameter groups as for :class:`adan.Adan` (what a group sets holds for it in
            all rows of Adan), or the number of parameters, planned as one large tensor. A model of DTensors, after
            ``fully_shard`` or ``parallelize_module``, is planned as this rank has it.
        shards: the ranks over which FSDP2 shards each parameter along its first dimension; 1 is one GPU or DDP. Where
            FSDP2 replicates (HSDP), those of one replica.
        rank: the rank to plan for. The first holds the most.
        dtype: type of weights and gradients, such as ``torch.bfloat16``; None is that of the model, fp32 for a number.
        kahan_sum: Adan's option. (``stochastic_rounding`` takes no memory.)
        release_gradients: with :func:`adan.release_gradients`, where only the largest of Adan's gradients is counted.
            (FSDP2 frees those of a module that was passed to ``fully_shard`` together, so it holds somewhat more.)

    Example:
        >>> import adan
        >>> plan = adan.plan_memory(7_000_000_000, shards=8)
        >>> for name in ("AdamW", "Adan fp32", "Adan 8bit"):
        ...     print(f"{name}: {plan.rows[name].total / 1e9:.1f} GB per GPU")
        AdamW: 14.0 GB per GPU
        Adan fp32: 21.0 GB per GPU
        Adan 8bit: 10.6 GB per GPU
    """
    shards = require_count(f"{_WHERE}: shards", shards, least=1, remedy="give the number of ranks; 1 does not shard")
    rank = require_count(f"{_WHERE}: rank", rank, least=0, remedy="ranks are 0 … shards − 1")
    if rank >= shards:
        raise ValueError(f"{_WHERE}: rank must be below shards={shards}, got {rank}; ranks are 0 … shards − 1")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"{_WHERE}: dtype must be a floating-point type such as torch.bfloat16 or None, got {dtype!r}")
    if not isinstance(release_gradients, bool):
        raise TypeError(f"{_WHERE}: release_gradients must be True or False, got {release_gradients!r}")
    groups = _groups(model)
    pieces = {p: _piece(name, p, shards, rank, dtype) for group in groups for name, p in group["params"]}
    weights = sum(piece.nbytes for piece in pieces.values())
    trained = [piece for p, piece in pieces.items() if p.requires_grad]
    gradients = [piece.nbytes for piece in trained]
    # Two states in the weights' type, and a count in fp32.
    adamw = sum(2 * math.prod(piece.shard) * piece.dtype.itemsize + 4 for piece in trained)
    rows = {"AdamW": Bytes(weights, sum(gradients), adamw)}
    held = max(gradients, default=0) if release_gradients else sum(gradients)
    defaults = {name: x.default for name, x in signature(Adan).parameters.items()} | {"kahan_sum": kahan_sum}
    # By shape, of which a large model has few.
    counts = [Counter(pieces[p] for _, p in group["params"] if p.requires_grad) for group in groups]
    for state_format in FORMATS:
        for suffix, betas in (("", defaults["betas"]), (" coupled", (0.92, 0.92, 0.99))):
            size = 0
            for group, counted in zip(groups, counts, strict=True):
                options = {**defaults, "state_format": state_format, "betas": betas, **group}
                check(options, _WHERE)
                options["coupled"] = coupled_beta(options, _WHERE)
                size += sum(count * piece.state_bytes(options) for piece, count in counted.items())
            rows[f"Adan {state_format}{suffix}"] = Bytes(weights, held, size)
    return MemoryPlan(sum(math.prod(piece.whole) for piece in pieces.values()), shards, rank, rows)


def _groups(model: Any) -> list[dict[str, Any]]:
    """Parameter groups, whose "params" are pairs of a name and a parameter."""
    if isinstance(model, (int, float)) and not isinstance(model, bool):
        if not (math.isfinite(model) and model >= 1 and model == int(model)):
            raise ValueError(f"{_WHERE}: a number of parameters must be whole and at least 1, got {model!r}")
        model = [torch.empty(int(model), device="meta", requires_grad=True)]
    elif isinstance(model, nn.Module):
        model = model.named_parameters()
    if not isinstance(model, Iterable) or isinstance(model, (Tensor, str, bytes)):
        wanted = "a module, an iterable of parameters or of groups, or the number of parameters"
        raise TypeError(f"{_WHERE}: model must be {wanted}, got {model!r} of type {type(model).__name__}")
    entries = list(model)
    if not all(isinstance(entry, dict) for entry in entries):
        entries = [{"params": entries}]
    groups = []
    for i, group in enumerate(entries):
        if "params" not in group:
            raise TypeError(f"{_WHERE}: group {i} must have the key 'params', got {', '.join(map(str, group))}")
        params = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
        names = group.get("param_names", [f"parameter {j} of group {i}" for j in range(len(params))])
        params = [x if isinstance(x, tuple) else (name, x) for name, x in zip(names, params, strict=True)]
        groups.append({**group, "params": params})
    everything = [entry for group in groups for entry in group["params"]]
    if not everything:
        raise ValueError(f"{_WHERE}: model has no parameters; was model.parameters() already consumed?")
    check_params(everything, _WHERE, stochastic_rounding=False)
    return groups


def _piece(name: str, p: Tensor, shards: int, rank: int, dtype: torch.dtype | None) -> _Piece:
    if is_lazy(p):
        raise ValueError(f"{_WHERE}: {name} is uninitialized; run the model on a batch first, which gives it its shape")
    dtype = p.dtype if dtype is None or not p.is_floating_point() else dtype  # as model.to(dtype) does
    shard, padded = p.shape, p.numel()
    if sharding.is_dtensor(p):
        if shards > 1:
            raise ValueError(f"{_WHERE}: shards={shards}, and {name} is sharded already; leave shards at 1")
        local = sharding.local(p)
        shard, padded = local.shape, local.untyped_storage().nbytes() // local.itemsize
    elif shards > 1 and p.dim() == 0:
        raise ValueError(f"{_WHERE}: shards={shards}, and FSDP2 cannot shard {name} of shape (); give it shape (1,)")
    elif shards > 1:
        most, rest = -(-p.shape[0] // shards), p.shape[1:]
        rows = min(most, max(0, p.shape[0] - rank * most))
        shard, padded = torch.Size((rows, *rest)), most * math.prod(rest)
    return _Piece(p.shape, shard, padded * dtype.itemsize, dtype)
