"""What is trained: workloads, the tasks that they build, and optimizers.

A workload owns data, model, loss, metric, target and budget; an optimizer spec owns the update and its search space;
`training/trainer.py` joins them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from adan_bench.errors import UsageError, listing, short, unknown

if TYPE_CHECKING:  # reading records and writing reports must not pay the 2 s that importing torch takes
    import torch
    from torch import nn


T = TypeVar("T")
Settings = dict[str, Any]
SCALES = ("smoke", "small", "paper")  # minutes on two cores, minutes on one GPU, as published


@dataclass(frozen=True)
class Context:
    """What a workload's builder may depend on: the seed, the size of a batch, where data and device are, the scale.

    Args:
        init: the folder of a run whose final weights are the start of this one, or a file of weights; None starts at
            random. What a builder does not read by `weights()` is loaded into its model whole.
        sizes: the scale's own (`Scale.sizes`).
        training: options of the workload (`Workload.options`) whose values are not its defaults.
        tuning: the run is a trial that chooses settings. A workload that can evaluates it on a part of its training
            data that it then does not train on, so that the test split chooses nothing.
        rank, ranks: this process among those that share the run.
    """

    seed: int
    batch_size: int
    data: Path | None = None
    device: str = "cpu"
    scale: str = "smoke"
    init: Path | None = None
    sizes: Any = None
    training: Settings = field(default_factory=dict)
    tuning: bool = False
    read: list[Path] = field(default_factory=list)  # the files of weights that were read
    rank: int = 0
    ranks: int = 1
    split: list[bool] = field(default_factory=list)  # True: `own` was asked for

    def own(self) -> Callable[[T], T]:
        """A function that picks this rank's rows from a tensor or a list with one row for each example of a batch.

        A builder that asks for it returns batches of these rows alone: what is random is drawn for the whole batch, so
        that it does not depend on the number of ranks, and what takes time (reading, decoding) is done for these rows.
        """
        self.split.append(True)
        rows = own_rows(self.batch_size, self.rank, self.ranks)

        def pick(batch: Any) -> Any:
            if self.ranks == 1:
                return batch
            return [batch[row] for row in rows] if isinstance(batch, list) else batch[rows]

        return pick

    def has(self, name: str) -> bool:
        """Whether the data folder holds `name`."""
        return self.data is not None and (self.data / name).exists()

    def path(self, name: str) -> Path:
        """The file `name` of the data folder, or one line that says how to provide it."""
        if self.data is None:
            raise UsageError(f"no data folder: give --data DIR or set ADAN_DATA to a folder that holds {name}")
        if not (self.data / name).exists():
            raise UsageError(f"the data folder {self.data} holds no {name}; it holds: {listing(self.data)}")
        return self.data / name

    def weights(self) -> dict[str, torch.Tensor]:
        """The weights that `init` names: a run's final ones, or those of a file of torch's or safetensors' format."""
        import torch

        assert self.init is not None
        file = weights_file(self.init)
        try:
            if file.suffix == ".safetensors":
                from safetensors.torch import load_file

                weights: dict[str, Any] = load_file(file)
            else:
                weights = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # of many kinds, for a file that is damaged or another one
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise UsageError(
                f"--init {self.init}: {file.name} is not a file of weights ({reason}); give a run made with "
                "--keep-weights, or a file of torch.save or safetensors"
            ) from error
        self.read.append(file)
        for name in ("model", "state_dict"):  # where published checkpoints have them
            weights = weights[name] if isinstance(weights, dict) and isinstance(weights.get(name), dict) else weights
        if not isinstance(weights, dict):
            raise UsageError(f"--init {self.init}: {file.name} holds a {type(weights).__name__}, no weights by name")
        return weights

    def load(self, model: nn.Module, weights: Mapping[str, torch.Tensor], wrong: str) -> None:
        """Fill a model with weights of `init`. wrong: what is said where they do not fit, "{}" where the reason is."""
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            names = str(error).splitlines()[1].strip().split(", ")  # torch gives all that are missing
            reason = ", ".join([*names[:5], *(["…"] if names[5:] else [])])
            raise UsageError(f"--init {self.init}: {wrong.format(reason)}") from error


def own_rows(size: int, rank: int, ranks: int) -> list[int]:
    """The rows of a batch that a rank takes: half from the front, and their mirror images from the back.

    Mixup's partner of an image, the same place counted from the end, is then on the same rank. An odd number of rows is
    taken in one piece.

    >>> [own_rows(8, rank, 2) for rank in (0, 1)], own_rows(6, 1, 2)
    ([[0, 1, 6, 7], [2, 3, 4, 5]], [3, 4, 5])
    """
    count = size // ranks
    if count % 2:
        return list(range(rank * count, (rank + 1) * count))
    front = range(rank * count // 2, (rank + 1) * count // 2)
    return [*front, *(size - 1 - row for row in reversed(front))]


def weights_file(init: Path) -> Path:
    """The file of weights that --init names: its own, or the one that a run's folder holds."""
    if not init.exists():
        raise UsageError(f"--init {init}: no such file or folder; {init.parent} holds: {listing(init.parent)}")
    file = init / "weights.pt" if init.is_dir() else init
    if not file.exists():
        raise UsageError(f"--init {init}: it holds no weights.pt; make that run with --keep-weights")
    return file


@dataclass
class Task:
    """One workload, built: what the loop trains.

    Args:
        model: what is trained.
        batches: the batch at a position 0, 1, 2, …; a pure function of the position resumes exactly. An object whose
            batches depend on more than that also has state_dict() and load_state_dict(), which go into the checkpoints.
        loss: (model, batch) -> the mean loss to differentiate.
        evaluate: model -> numbers on held-out data, the workload's metric among them; in eval mode, no gradients.
        note: which data this is, in words, for the record.
        max_grad_norm: the limit of the gradient's norm, by the same function for every optimizer; None: no limit.
        groups: (model, settings) -> the optimizer's parameter groups, where parts of the model want their own learning
            rate or decay; None: one group.
        prepare: the batch, once it is on the device, as `loss` takes it: what gathers and augments there. `batches`
            then only draws indices and the like.
        eager: why a CUDA graph must not hold its step, where that cannot be seen from outside: its loss depends on
            Python values that change from step to step. Empty: it may.
        rate: the factor of the learning rate at a position, where batches differ in size; None: 1.
        roles: roles by patterns of parameters' names, where `training.roles` sees another: {"decoder.*": "head"}.
        weight: how many things the loss of a batch is the mean over, where these are not its examples but the masked
            words, say, or the boxes: ranks' losses are weighted by it. The loss of none must be finite.
        split: whether batches hold the examples of this rank alone (`Context.own`), which `Workload.task` knows.
    """

    model: nn.Module
    batches: Callable[[int], Any]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    evaluate: Callable[[nn.Module], Mapping[str, float]]
    note: str = ""
    max_grad_norm: float | None = None
    groups: Callable[[nn.Module, Settings], list[dict[str, Any]]] | None = None
    prepare: Callable[[Any], Any] = field(default=lambda batch: batch)
    eager: str = ""
    rate: Callable[[int], float] | None = None
    roles: Mapping[str, str] = field(default_factory=dict)
    weight: Callable[[Any], torch.Tensor] | None = None
    split: bool = False

    def __post_init__(self) -> None:
        from torch import nn

        if not isinstance(self.model, nn.Module):
            raise UsageError(f"Task: model must be a torch.nn.Module, got {short(self.model)}")
        for name, example in _FUNCTIONS.items():
            value = getattr(self, name)
            if not (callable(value) or (value is None and name in ("groups", "rate", "weight"))):
                raise UsageError(f"Task: {name} must be a function, got {short(value)}; {example}")
        limit = self.max_grad_norm
        if limit is not None and (not isinstance(limit, (int, float)) or not limit > 0):
            raise UsageError(f"Task: max_grad_norm must be a number above 0, or None for no limit, got {short(limit)}")
        if not isinstance(self.roles, Mapping):
            raise UsageError(f"Task: roles must be a dictionary, got {short(self.roles)}; write {{'*.qkv': 'matrix'}}")


#: The parts of a task that are functions, with what to write.
_FUNCTIONS = {
    "batches": "write adan_bench.shuffled(tensors, context.batch_size, context.seed) or, for a DataLoader, "
    "kept = list(loader) and lambda position: kept[position % len(kept)]",
    "loss": "write def loss(model, batch): and return the mean loss",
    "evaluate": "write def evaluate(model): and return a dictionary with the metric",
    "groups": "write def groups(model, settings): and return a list of parameter groups, or omit it",
    "prepare": "write def prepare(batch): and return what loss takes, or omit it",
    "rate": "write def rate(position): and return a factor, or omit it",
    "weight": "write def weight(batch): and return a count as a tensor, or omit it",
}


@dataclass(frozen=True)
class Scale:
    """One size of a workload: its budget, what it needs, how large the model is.

    Args:
        target: the value of the metric whose first reaching is timed.
        eval_every: steps between evaluations; a tenth of `steps` unless given.
        needs: files of the data folder without which it cannot run; "a or b" is either of two.
        sizes: what the builder finds as `context.sizes`, usually the sizes of the model.
    """

    target: float
    steps: int
    batch_size: int = 64
    eval_every: int = 0
    needs: tuple[str, ...] = ()
    sizes: Any = None

    def __post_init__(self) -> None:
        target: Any = self.target
        if isinstance(target, bool) or not isinstance(target, (int, float)) or not math.isfinite(target):
            raise UsageError(f"Scale: target must be a value of the metric, got {short(target)}; for example 0.9")
        for name, least in (("steps", 1), ("batch_size", 1), ("eval_every", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UsageError(f"Scale: {name} must be a whole number from {least} on, got {short(value)}")
        needs: Any = self.needs
        if not isinstance(needs, (tuple, list)) or not all(isinstance(name, str) for name in needs):
            raise UsageError(f"Scale: needs must be a tuple of names, got {short(needs)}; write needs=('file',)")
        object.__setattr__(self, "needs", tuple(needs))
        object.__setattr__(self, "eval_every", self.eval_every or max(1, self.steps // 10))


@dataclass(frozen=True)
class Workload:
    """A training problem at one of its scales: how to build it, what counts as good, and how long a run may take.

    after: the workload whose final weights this one starts from, where it is the second half of an experiment.
    tune_metric, tune_higher_is_better: what tuning trials are judged by, where that is another number than the metric,
        and its direction, where that is another than the metric's.
    options: names of what a run may set otherwise (`RunConfig.training`), for example the share of stochastic depth.
    one_rank: why ranks cannot share its runs; empty: they can.
    """

    name: str
    summary: str
    metric: str
    higher_is_better: bool
    build: Callable[[Context], Task] = field(repr=False)
    scales: Mapping[str, Scale] = field(repr=False)
    after: str | None = None
    scale: str = SCALES[0]
    options: tuple[str, ...] = ()
    tune_metric: str = ""
    tune_higher_is_better: bool | None = None
    one_rank: str = ""

    def at(self, scale: str) -> Workload:
        """A copy of the workload at another scale."""
        if scale not in self.scales:
            raise unknown("scale", scale, self.scales, of=self.name)
        return dataclasses.replace(self, scale=scale)

    target = property(lambda self: self.scales[self.scale].target)
    steps = property(lambda self: self.scales[self.scale].steps)
    batch_size = property(lambda self: self.scales[self.scale].batch_size)
    eval_every = property(lambda self: self.scales[self.scale].eval_every)
    needs = property(lambda self: self.scales[self.scale].needs)

    def task(
        self,
        seed: int = 0,
        batch_size: int = 0,
        data: Path | None = None,
        device: str = "cpu",
        init: Path | None = None,
        training: Settings | None = None,
        tuning: bool = False,
        rank: int = 0,
        ranks: int = 1,
    ) -> Task:
        """The problem, built for one of the ranks that share the run."""
        sizes, batch_size = self.scales[self.scale].sizes, batch_size or self.batch_size
        training = training or {}
        context = Context(
            seed, batch_size, data, device, self.scale, init, sizes, training, tuning, rank=rank, ranks=ranks
        )
        task = self.build(context)
        if not isinstance(task, Task):
            raise UsageError(f"{self.name}: its function returned {short(task)}; end it with: return Task(...)")
        if init is not None and not context.read:
            wrong = f"its weights are not those of {self.name} at this scale ({{}})"
            context.load(task.model, context.weights(), wrong)
        task.split = bool(context.split)
        return task

    def facts(self) -> dict[str, Any]:
        """What a record must say for a report to be written without this code."""
        own = ("name", "summary", "metric", "higher_is_better", "target", "steps", "eval_every", "batch_size")
        return {name: getattr(self, name) for name in (*own, "after", "scale", "tune_metric", "tune_higher_is_better")}


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer, its defaults for short runs, and the space in which tuning may look.

    lr: the center of the range of learning rates; every optimizer's range has the same width (`comparison.DECADES`).
    choices: alternatives to single defaults, tried after the learning rate, in this order.
    passes: gradients per update (SAM: 2); the budget counts gradients, so SAM makes half as many updates.
    year, paper: of its publication; the paper by its arXiv number where it has one.
    schedule: its own, in place of the default one; horizon: its setting that takes the number of updates of a run.
    by_role: its groups say which parameters are hidden matrices (`training.roles`).
    one_rate: it cannot have groups with different learning rates.
    """

    name: str
    target: str  # "module:Class", imported when it is used
    lr: float
    defaults: Mapping[str, Any] = field(default_factory=dict)
    choices: tuple[Mapping[str, Any], ...] = ()
    year: int = 0
    paper: str = ""
    passes: int = 1
    base: str | None = None  # the optimizer that a wrapper such as SAM drives
    shards: bool = True  # its step takes DTensors, so that fsdp can share it out
    eager: str = ""  # why a CUDA graph cannot hold its step; empty: it can
    own: Callable[..., Any] | None = field(default=None, repr=False)  # the class or function of a user's script
    schedule: str = ""
    horizon: str = ""
    by_role: bool = False
    one_rate: bool = False

    def facts(self) -> dict[str, Any]:
        facts = {"name": self.name, "target": self.target, "lr_center": self.lr, "passes": self.passes}
        return facts | ({"horizon": self.horizon} if self.horizon else {})
