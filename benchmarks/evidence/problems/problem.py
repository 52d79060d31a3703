"""What a problem is, and what several of them need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

EVAL_BATCH = 2_000


@dataclass
class Problem:
    """A training problem, built for one seed.

    loss: the step count, a tensor of one element, to the mean loss of that step's batch.
    begin_epoch: called by the host before the first step of an epoch.
    per_epoch: steps of an epoch.
    decay_all: biases and norms decay too.
    captures: whether a CUDA graph can hold a step.
    compiles: whether a captured step's loss is compiled, which pays where many small kernels can become one.
    stream: what gives the batches and has a state that a checkpoint must hold.
    carried: tensors that a step leaves to the next one.
    groups: parameters and their shares of the learning rate, where these differ; as a harness's task has them.
    handed_over: the part of the model whose weights other runs start from.
    """

    model: nn.Module
    loss: Callable[[Tensor], Tensor]
    evaluate: Callable[[], Mapping[str, float]]
    metric: str
    higher_is_better: bool
    per_epoch: int
    note: str
    begin_epoch: Callable[[int], None] = field(default=lambda epoch: None)
    max_grad_norm: float | None = None
    decay_all: bool = False
    channels_last: bool = False
    captures: bool = True
    compiles: bool = True
    bf16: bool = True
    schedule: str = "cosine"
    warmup: float = 0.05
    stream: Any = None
    carried: Sequence[Tensor] = ()
    groups: Callable[[nn.Module, dict[str, Any]], list[dict[str, Any]]] | None = None
    handed_over: nn.Module | None = None


@dataclass(frozen=True)
class Setup:
    """Where and for what a problem is built."""

    seed: int
    tuning: bool
    device: str
    cache: Path


def without_cudnn_attention() -> None:
    """The backward pass of cuDNN's attention is reported to give NaN on Hopper for some lengths, 64 among them.

    https://github.com/pytorch/pytorch/issues/196678
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def weights_of(cache: Path, key: str) -> Path:
    """Where a run leaves the weights that others start from."""
    return cache / "weights" / f"{key}.pt"


def begin(model: nn.Module, setup: Setup, key: str | None, own: str = "") -> None:
    """Load the weights that the run with this key left, but for parameters whose names begin with `own`."""
    if key is None:
        return
    path = weights_of(setup.cache, key)
    if not path.exists():
        raise FileNotFoundError(f"start {key}: {path} is not there; make the run with that key again, or copy the file")
    weights = torch.load(path, map_location="cpu", weights_only=True)
    mine = {name: value for name, value in model.state_dict().items() if own and name.startswith(own)}
    model.load_state_dict({**weights, **mine})


def shuffle(order: Tensor, seed: int, epoch: int) -> None:
    key = torch.Generator().manual_seed(10_000 * seed + epoch)
    order.copy_(torch.randperm(len(order), generator=key))


def harness_task(setup: Setup, workload: str, scale: str, batch_size: int, **training: Any) -> Any:
    """A workload of `adan_bench` as it is built there. training: values of its options."""
    from adan_bench.workloads.registry import get_workload

    data = setup.cache / "data"
    return get_workload(workload, scale).task(setup.seed, batch_size, data, str(setup.device), training=training)
