"""Parameters that are spread over processes: all that is known here of DTensor and of process groups.

Engines get the part of a DTensor that lies in this process, as plain memory. States stay DTensors, so that
`torch.distributed.checkpoint` can spread them anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor

from adan.batch import Batch

#: A mesh of processes, and into how many parts a tensor is cut on it: if fewer than processes, some hold the same.
Share: TypeAlias = tuple[Any, int]


def is_spread(param: object) -> bool:
    """Whether a tensor is a DTensor, told without importing that module: torch may have been built without it."""
    return hasattr(type(param), "_local_tensor")


def any_spread(params: Iterable[Tensor]) -> bool:
    return any(hasattr(kind, "_local_tensor") for kind in set(map(type, params)))


def local(x: Tensor) -> Tensor:
    """The part that lies in this process; a plain tensor itself."""
    # `to_local()` is a view by autograd's machinery: 9 µs, this 0.1 µs.
    return x._local_tensor if is_spread(x) else x  # type: ignore[attr-defined]


def like(param: Tensor, part: Tensor) -> Tensor:
    """The tensor that is spread as a parameter is, and of which `part` lies in this process."""
    if not is_spread(param):
        return part
    p: Any = param
    whole: Tensor = type(p).from_local(
        part, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride()
    )
    return whole


def local_grads(params: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
    """The parts of gradients that belong to the parts of their parameters in this process."""
    return [_local_grad(p, grad) if is_spread(p) else grad for p, grad in zip(params, grads, strict=True)]


def _local_grad(param: Any, grad: Any) -> Tensor:
    if grad.placements != param.placements:  # such as a sum that is still to be made
        grad = grad.redistribute(param.device_mesh, param.placements)
    part: Any = grad._local_tensor
    # A collective may still be filling it; then it is no plain tensor yet.
    return part.wait() if hasattr(part, "trigger_wait") else part  # type: ignore[no-any-return]


def localised(batch: Batch) -> Batch:
    if not any_spread(batch.params):
        return batch
    return batch.of(*(list(map(local, tensors)) for tensors in batch.tensors()), streams=batch.streams)


def share(param: Any) -> Share:
    """Over which mesh a parameter is spread, and in how many parts; a tensor that is whole here, over none."""
    return _share(param.device_mesh, param.placements) if is_spread(param) else (None, 1)


@cache
def _share(mesh: Any, placements: tuple[Any, ...]) -> Share:
    if mesh.get_coordinate() is None:  # this process is not in the mesh
        return None, 1
    cut = (size for size, placed in zip(mesh.shape, placements, strict=True) if not placed.is_replicate())
    return mesh, math.prod(cut)


@cache
def covers(mesh: Any, other: Any) -> bool:
    """Whether all processes of another mesh are in this one."""
    return set(other.mesh.flatten().tolist()) <= set(mesh.mesh.flatten().tolist())


def weights(params: list[Tensor]) -> tuple[Any, dict[Tensor, float]]:
    """The mesh over which to sum what each process finds of its parts, and how much of it each parameter counts.

    What is not cut into as many parts as there are processes is the same on several, and counts once in all.
    """
    shares = {p: share(p) for p in params}
    largest = max((mesh for mesh, _ in shares.values() if mesh is not None), key=lambda mesh: mesh.size(), default=None)
    if largest is None:
        return None, dict.fromkeys(params, 1.0)
    for mesh, _ in shares.values():
        if mesh is not None and not covers(largest, mesh):
            raise NotImplementedError(
                f"restart=... needs one mesh that holds the processes of all others, and {mesh} is not part of "
                f"{largest}; call restart() where you want one"
            )
    return largest, {p: n / largest.size() for p, (_, n) in shares.items()}


def sum_over_mesh(sums: Tensor, mesh: Any) -> Tensor:
    """By one all-reduce, where one group spans the mesh; else by one for each of its dimensions."""
    from torch import distributed

    sums = sums.to(mesh.device_type, non_blocking=mesh.device_type != "cpu")
    spans_world = mesh.ndim > 1 and mesh.size() == distributed.get_world_size()
    for group in [distributed.group.WORLD] if spans_world else mesh.get_all_groups():
        distributed.all_reduce(sums, group=group)
    return sums


def sum_over_group(sums: Tensor, name: str) -> Tensor:
    from torch import distributed
    from torch._C._distributed_c10d import _resolve_process_group

    if not distributed.is_initialized():
        raise RuntimeError(f"norm_group={name!r} needs torch.distributed.init_process_group(...) before the first step")
    group = distributed.group.WORLD if name == "world" else _resolve_process_group(name)  # type: ignore[arg-type]
    served = [device.type for device in group._device_types]  # type: ignore[union-attr]
    if sums.device.type not in served:
        sums = sums.to(served[0], non_blocking=served[0] != "cpu")
    distributed.all_reduce(sums, group=group)
    return sums


def group_name(group: object) -> str | None:
    """A process group by a name that can be saved: state dicts and copies of an optimizer cannot hold the group."""
    if group is None or (isinstance(group, str) and group):
        return group
    if torch.distributed.is_available() and isinstance(group, torch.distributed.ProcessGroup):
        return str(group.group_name)
    raise TypeError(
        "Adan: norm_group must be None, 'world', a torch.distributed.ProcessGroup that this process is in, or its "
        f"group_name, got {group!r}"
    )
