"""Parameters that are sharded over processes: all that is known here about DTensor and process groups.

Engines get the local shard of a DTensor, as plain memory. States stay DTensors, so that `torch.distributed.checkpoint`
can reshard them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor


def is_dtensor(param: object) -> bool:
    """Whether a tensor is a DTensor, told without importing its module: torch may have been built without it."""
    return hasattr(type(param), "_local_tensor")


def any_dtensor(params: Iterable[Tensor]) -> bool:
    return any(hasattr(kind, "_local_tensor") for kind in set(map(type, params)))


def is_fsdp1(param: object) -> bool:
    """Whether a parameter is a plain tensor whose elements `FullyShardedDataParallel`, FSDP1, has sharded."""
    return getattr(param, "_fsdp_flattened", False) or getattr(param, "_is_flat_param", False)


def check_fsdp1(groups: list[dict[str, Any]], restarts: bool) -> None:
    """Reject options that need all gradients of parameters that FSDP1 has sharded."""
    names = [name for name in ("max_grad_norm", "skip_nonfinite") if any(group[name] for group in groups)]
    if names or restarts:
        part = f"{[*names, 'restart'][0]} needs all gradients, and with FSDP1 each process has only a part of them"
        remedy = "pass norm_group='world', or the process group of the shards, to Adan(...), or use FSDP2's fully_shard"
        raise RuntimeError(f"{part}: {remedy}")


def local(x: Tensor) -> Tensor:
    """The shard in this process; a plain tensor itself."""
    # `to_local()` is a view by autograd's machinery: 9 µs, this 0.1 µs.
    return x._local_tensor if is_dtensor(x) else x  # type: ignore[attr-defined]


def like(p: Any, shard: Tensor) -> Tensor:
    """The DTensor that is sharded as a parameter is, and whose shard in this process is `shard`."""
    layout = {"shape": p.shape, "stride": p.stride()}
    return type(p).from_local(shard, p.device_mesh, p.placements, run_check=False, **layout)  # type: ignore[no-any-return]


def local_grads(params: list[Any], grads: list[Any], describe: Callable[[Tensor], str]) -> list[Any]:
    """The shards of gradients that belong to the shards of their parameters in this process; None stays None."""
    shards = list(grads)
    for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
        if grad is None or not is_dtensor(param):
            continue
        if not is_dtensor(grad):
            is_plain = f"parameter {describe(param)}: its gradient is a plain tensor, and the parameter is a DTensor"
            remedy = "assign torch.distributed.tensor.distribute_tensor(grad, p.device_mesh, p.placements)"
            raise RuntimeError(f"{is_plain}: {remedy}")
        if grad.placements != param.placements:  # such as a sum that is still to be reduced
            grad = grad.redistribute(param.device_mesh, param.placements)
        shard = grad._local_tensor
        # A collective may still be filling it; then it is not a plain tensor yet.
        shards[i] = shard.wait() if hasattr(shard, "trigger_wait") else shard
    return shards


def share(param: Any) -> tuple[Any, int]:
    """The mesh over which a parameter is sharded, None for one that is whole here, and how many shards differ."""
    if not is_dtensor(param) or param.device_mesh.get_coordinate() is None:  # or this process is not in the mesh
        return None, 1
    return param.device_mesh, _shards(param.device_mesh, param.placements)


@cache  # of numbers alone: a mesh equals that of an earlier init_process_group(), whose groups are gone
def _shards(mesh: Any, placements: tuple[Any, ...]) -> int:
    return math.prod(size for size, placed in zip(mesh.shape, placements, strict=True) if not placed.is_replicate())


def largest(meshes: Iterable[Any]) -> Any:
    """The mesh with the most processes; None if there is none."""
    return max((mesh for mesh in meshes if mesh is not None), key=lambda mesh: mesh.size(), default=None)


@cache
def covers(mesh: Any, other: Any) -> bool:
    """Whether all processes of another mesh are in this one."""
    return set(other.mesh.flatten().tolist()) <= set(mesh.mesh.flatten().tolist())


def weights(params: list[Tensor]) -> tuple[Any, dict[Tensor, float]]:
    """The mesh over which to sum what each process measures on its shards, and the weight of each parameter in it.

    A tensor with fewer shards than there are processes is the same on several of them, and must count once in all.
    """
    shares = {p: share(p) for p in params}
    whole = largest(mesh for mesh, _ in shares.values())
    if whole is None:
        return None, dict.fromkeys(params, 1.0)
    for mesh, _ in shares.values():
        if mesh is not None and not covers(whole, mesh):
            needs = "restart=... needs one mesh that contains the processes of all others"
            raise NotImplementedError(f"{needs}, and {mesh} is not part of {whole}; call restart() where you want one")
    return whole, {p: n / whole.size() for p, (_, n) in shares.items()}


def sum_over(sums: Tensor, mesh: Any, norm_group: str | None = None) -> Tensor:
    """Sums over the processes of a mesh, then over those of a process group, where there are such."""
    if mesh is None and norm_group is None:
        return sums
    from torch import distributed
    from torch._C._distributed_c10d import _resolve_process_group

    if mesh is not None:
        sums = sums.to(mesh.device_type, non_blocking=mesh.device_type != "cpu")
        spans_world = mesh.ndim > 1 and mesh.size() == distributed.get_world_size()
        for group in [distributed.group.WORLD] if spans_world else mesh.get_all_groups():
            distributed.all_reduce(sums, group=group)
    if norm_group is None:
        return sums
    name = f"norm_group={norm_group!r}"
    if not distributed.is_initialized():
        raise RuntimeError(f"{name} needs torch.distributed.init_process_group(...) before the first step")
    try:
        found: Any = distributed.group.WORLD
        if norm_group != "world":
            found = _resolve_process_group(norm_group)  # type: ignore[arg-type]
    except (RuntimeError, ValueError) as error:
        raise RuntimeError(f"{name} names no process group: pass the group, its group_name or 'world'") from error
    served = [device.type for device in found._device_types]
    if sums.device.type not in served:
        sums = sums.to(served[0], non_blocking=served[0] != "cpu")
    distributed.all_reduce(sums, group=found)
    return sums


def group_name(group: object) -> str | None:
    """The name of a process group, for state dicts and copies of an optimizer, which cannot hold the group."""
    if group is None or (isinstance(group, str) and group):
        return group
    if torch.distributed.is_available() and isinstance(group, torch.distributed.ProcessGroup):
        return str(group.group_name)
    wanted = "None, 'world', a torch.distributed.ProcessGroup of this process, or its group_name"
    raise TypeError(f"Adan: norm_group must be {wanted}, got {group!r}")
