"""One run shared among processes, those of torchrun or of a pool: all that the harness knows of torch.distributed.

Every rank builds the model from the same seed, makes its own examples of each batch, and trains on the mean gradient.
Checkpoints hold whole tensors in the format of a single process, so that any number of ranks can continue from them.
"""

from __future__ import annotations

import atexit
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from adan import checkpoints
from adan_bench.data.batching import mapped
from adan_bench.errors import UsageError, unknown
from adan_bench.task import own_rows

T = TypeVar("T")

STRATEGIES = ("ddp", "fsdp")


def launched(strategy: str | None, words: Sequence[str] = (), asked: int | None = None) -> tuple[str | None, int]:
    """The strategy and how many ranks share a run; a UsageError where that and what started them do not fit together.

    words: what follows the program's name on the command line, for the remedy.
    asked: --ranks, of a command whose workers are to start them; None: it has no such flag, and torchrun starts them.
    """
    started = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    ranks = int(os.environ["WORLD_SIZE"]) if started else 1
    if strategy is not None and strategy not in STRATEGIES:
        raise unknown("strategy", strategy, STRATEGIES)
    if ranks > 1 and (asked is not None or strategy is None):
        instead = "" if asked is None else ", or start this command without torchrun and give it --ranks"
        raise UsageError(f"torchrun started {ranks} ranks: let them share a run by run --parallel ddp or fsdp{instead}")
    if asked is not None:
        if strategy is not None and asked == 1:
            raise UsageError(f"--parallel {strategy} with one rank: add --ranks N, for example --ranks 8")
        return (strategy or STRATEGIES[0] if asked > 1 else None), asked
    if strategy is not None and not started:
        command = f"torchrun --nproc-per-node 2 -m adan_bench.cli {shlex.join(words)}"
        raise UsageError(f"--parallel {strategy} is for processes that torchrun starts: {command}")
    return strategy, ranks


@dataclass(frozen=True)
class Ranks:
    """The processes of a run, as one of them sees them; without a strategy there is no other."""

    strategy: str | None = None
    device: str | None = None  # None: the configuration's
    rank: int = 0
    count: int = 1

    def spread(self, model: nn.Module) -> nn.Module:
        """What to call in place of the model; under fsdp its own parameters become DTensors."""
        if self.strategy == "ddp":
            return nn.parallel.DistributedDataParallel(model)
        if self.strategy == "fsdp":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh(next(model.parameters()).device.type, (self.count,))
            lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
            blocks = [block for blocks in lists for block in blocks if not isinstance(block, nn.ModuleList)]
            for part in [*reversed(blocks), model]:  # the inner ones first
                fully_shard(part, mesh=mesh)
        return model

    def summing(self, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """The forward and backward pass of a micro-batch: under ddp, gradients are sent with those of the last one."""
        if self.strategy != "ddp" or last:
            return nullcontext()
        held: AbstractContextManager[Any] = model.no_sync()  # type: ignore[operator]
        return held

    def share(self, batch: Any, size: int) -> Any:
        """The part of a batch that this rank takes; its `size` examples lie along the first dimension of tensors."""
        rows = own_rows(size, self.rank, self.count)

        def part(tensor: Tensor) -> Tensor:
            if tensor.dim() == 0:
                return tensor
            if len(tensor) != size:
                raise UsageError(
                    f"--parallel {self.strategy}: a tensor of shape {tuple(tensor.shape)} in a batch of {size} cannot "
                    f"be shared out; its first dimension must be {size}"
                )
            return tensor[rows]

        return batch if self.count == 1 else mapped(batch, part)

    def weighted(self, loss: Tensor, weight: Tensor) -> Tensor:
        """A rank's mean loss over `weight` things, scaled such that the mean over ranks is that over all things."""
        own = weight.to(loss.device, torch.float32)
        total = own.clone()
        dist.all_reduce(total)
        return loss * (self.count * own.clamp(min=1) / total.clamp(min=1))

    def average(self, value: Tensor) -> None:
        if self.strategy is not None:
            dist.all_reduce(value.div_(self.count))

    def from_first(self, find: Callable[[], T]) -> T:
        """What the first rank finds, or its UsageError, on every rank."""
        if self.strategy is None:
            return find()
        answer: list[Any] = [None, None]
        if self.rank == 0:
            try:
                answer[0] = find()
            except UsageError as error:
                answer[1] = error
        dist.broadcast_object_list(answer)
        if answer[1] is not None:
            raise answer[1]
        value: T = answer[0]
        return value

    def from_all(self, value: T) -> list[T]:
        if self.strategy is None:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def whole(self, state: Any) -> Any:
        """A state dict with whole tensors in place of DTensors, on the first rank."""
        if self.strategy != "fsdp":
            return state
        if isinstance(state, Mapping):
            return {key: self.whole(value) for key, value in state.items()}
        if not hasattr(state, "full_tensor"):
            return state
        value = state.full_tensor()  # all ranks take part
        return value.cpu() if self.rank == 0 else None

    def load_model(self, model: nn.Module, state: Mapping[str, Any]) -> None:
        own = model.state_dict()
        model.load_state_dict({name: _cut(value, own.get(name)) for name, value in state.items()})

    def load_optimizer(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        if self.strategy == "fsdp":
            keys = [key for group in state["param_groups"] for key in group["params"]]
            params = [p for group in optimizer.param_groups for p in group["params"]]
            entries = {}
            for key, param in zip(keys, params, strict=True):
                if (entry := state["state"].get(key)) is not None:
                    # Quantized states become numbers: their blocks run through the whole tensor, a part has its own.
                    numbers = checkpoints.dequantized(entry) if "exponents" in entry else entry
                    entries[key] = {name: _cut(value, param) for name, value in numbers.items()}
            state = {**state, "state": entries}
        optimizer.load_state_dict(dict(state))


ALONE = Ranks()


def _cut(value: Any, like: Any) -> Any:
    """A whole tensor spread as a DTensor of the same shape is; every rank has it, so that nothing is sent."""
    if not (hasattr(like, "full_tensor") and isinstance(value, Tensor) and value.shape == like.shape):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


@contextmanager
def joined(strategy: str | None, device: str) -> Iterator[Ranks]:
    """Meet the other ranks, if the run is to be shared; a rank that is lost meanwhile is a ConnectionError."""
    if strategy is None:
        yield ALONE
        return
    if device != "cpu":
        local, there = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
        if device != "cuda" or local >= there:
            raise UsageError(
                f"--parallel {strategy} --device {device}: every rank takes a GPU of its own, so give --device "
                f"cuda and at most {there} ranks here; this is local rank {local}"
            )
        device = f"cuda:{local}"
        torch.cuda.set_device(device)
    if not dist.is_initialized():  # a worker's ranks stay together for its next run
        dist.init_process_group("gloo" if device == "cpu" else "cpu:gloo,cuda:nccl")
        atexit.register(dist.destroy_process_group)
    try:
        yield Ranks(strategy, device, dist.get_rank(), dist.get_world_size())
    except UsageError:
        raise
    except BaseException as error:
        atexit.unregister(dist.destroy_process_group)  # after the loss of a rank, gloo's end aborts the process
        if isinstance(error, RuntimeError) and (isinstance(error, dist.DistError) or "gloo" in str(error)):
            reason = str(error).splitlines()[0].split(". ")[0]
            gone = f"rank {dist.get_rank()}: another rank is gone ({reason}); the log has its own words"
            raise ConnectionError(gone) from error
        raise
