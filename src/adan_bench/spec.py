"""What the parts of the harness hand to each other: workloads, optimizer specs, configurations, records.

A workload owns data, model, loss, metric, target and budget; an optimizer spec owns the update and its search space;
`train.py` joins them; `stats.py` and `report.py` see only `RunRecord`s read from disk.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # reading records and writing reports must not pay the 2 s that importing torch takes
    import torch
    from torch import nn

Settings = dict[str, Any]
SCALES = ("smoke", "small", "paper")  # minutes on two cores, minutes on one GPU, as published
UNTUNED = "untuned defaults"  # begins the origin of such settings in a record


class UsageError(ValueError):
    """What the user asked for does not exist; the message is the one line to print, the exit code is 2."""


@dataclass(frozen=True)
class Context:
    """What a workload's builder may depend on: the seed, the size of a batch, where data and device are, the scale.

    init: the folder of a run whose final weights are the start of this one; None starts at random.
    """

    seed: int
    batch_size: int
    data: Path | None = None
    device: str = "cpu"
    scale: str = "smoke"
    init: Path | None = None

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
        """The final weights of the run that `init` names."""
        import torch

        assert self.init is not None
        file = self.init / "weights.pt"
        if not file.exists():
            raise UsageError(f"--init {self.init}: it holds no weights.pt; make that run with --keep-weights")
        found: dict[str, torch.Tensor] = torch.load(file, map_location="cpu", weights_only=True)
        return found


def listing(folder: Path) -> str:
    """The names in a folder, for an error message of one line."""
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    return ", ".join(names[:12]) or "nothing"


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass
class Task:
    """One workload, built: what the loop trains.

    batches: the batch at a position 0, 1, 2, …; a pure function of the position resumes exactly. An object whose
        batches depend on more than that also has state_dict() and load_state_dict(), which go into the checkpoints.
    loss: (model, batch) -> the mean loss to differentiate.
    evaluate: model -> numbers on held-out data, the workload's metric among them; called in eval mode, no gradients.
    note: which data this is, in words, for the record.
    max_grad_norm: the limit of the gradient's norm, by the same function for every optimizer; None: no limit.
    groups: (model, settings) -> the optimizer's parameter groups, where parts of the model want their own learning
        rate or decay; None: one group.
    """

    model: nn.Module
    batches: Callable[[int], Any]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    evaluate: Callable[[nn.Module], Mapping[str, float]]
    note: str = ""
    max_grad_norm: float | None = None
    groups: Callable[[nn.Module, Settings], list[dict[str, Any]]] | None = None


@dataclass(frozen=True)
class Workload:
    """A training problem: how to build it, what counts as good, and how long a run may take.

    needs: files of the data folder without which it cannot run.
    after: the workload whose final weights this one starts from, where it is the second half of an experiment.
    scales: what differs at a larger scale: target, steps, eval_every, batch_size, needs.
    """

    name: str
    summary: str
    metric: str
    higher_is_better: bool
    target: float
    steps: int
    eval_every: int
    batch_size: int
    build: Callable[[Context], Task] = field(repr=False)
    needs: tuple[str, ...] = ()
    after: str | None = None
    scale: str = SCALES[0]
    scales: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)

    def at(self, scale: str) -> Workload:
        """The same problem at another scale."""
        if scale == self.scale:
            return self
        if scale not in self.scales:
            raise UsageError(f"{self.name} has no scale {scale!r}; it has: {', '.join([self.scale, *self.scales])}")
        return dataclasses.replace(self, scale=scale, scales={}, **self.scales[scale])

    def facts(self) -> dict[str, Any]:
        """What a record must say for a report to be written without this code."""
        left_out = ("build", "needs", "scales")
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in left_out}


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer, its defaults for short runs, and the space in which tuning may look.

    lr: the centre of the range of learning rates; every optimizer's range has the same width (`tune.DECADES`).
    choices: alternatives to single defaults, tried after the learning rate, in this order.
    passes: gradients per update (SAM: 2); the budget counts gradients, so SAM makes half as many updates.
    """

    name: str
    target: str  # "module:Class", imported when it is used
    lr: float
    defaults: Mapping[str, Any] = field(default_factory=dict)
    choices: tuple[Mapping[str, Any], ...] = ()
    passes: int = 1
    base: str | None = None  # the optimizer that a wrapper such as SAM drives
    shards: bool = True  # its step takes DTensors, so that fsdp can share it out

    def facts(self) -> dict[str, Any]:
        return {"name": self.name, "target": self.target, "lr_centre": self.lr, "passes": self.passes}


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides the numbers of one run; a record holds it in full."""

    workload: str
    optimizer: str
    settings: Settings
    steps: int
    batch_size: int
    eval_every: int
    log_every: int
    seed: int = 0
    schedule: str = "cosine"
    warmup: float = 0.05  # share of the steps
    device: str = "cpu"
    bf16: bool = False
    channels_last: bool = False
    compile: bool = False
    accumulate: int = 1
    threads: int = 1  # part of the configuration: sums on the CPU are ordered by the number of threads
    checkpoint_every: int | None = None  # None: at evaluations, when 15 s have passed since the last one
    tensorboard: bool = False
    data: str | None = None
    script: str | None = None  # the file that brought the workload, when it is the user's own
    role: str = "run"  # "run" | "tune": tuning trials are no evidence, only a choice of settings
    origin: str = ""  # where the settings come from, in words
    jobs: int = 1  # how many runs shared the machine: seconds are only comparable within one value
    parallel: str | None = None  # how ranks share the run: "ddp" | "fsdp"
    ranks: int = 1
    scale: str = SCALES[0]
    init: str | None = None  # the folder of the run whose final weights are the start
    keep_weights: bool = False  # write the final weights beside the record

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunConfig:
        known = {f.name for f in dataclasses.fields(cls)}
        return cls(**{key: value for key, value in values.items() if key in known})


@dataclass(frozen=True)
class Progress:
    """One report of a run under way, for whoever watches."""

    step: int
    steps: int
    loss: float | None
    metric: float | None
    steps_per_second: float
    seconds_left: float


@dataclass(frozen=True)
class RunRecord:
    """One run as it lies on disk."""

    path: Path
    config: RunConfig
    workload: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    environment: Mapping[str, Any]
    metrics: list[dict[str, Any]]
    result: Mapping[str, Any] | None  # None: still running, or killed

    @property
    def status(self) -> str:
        return str(self.result["status"]) if self.result else "unfinished"

    @property
    def final(self) -> float | None:
        """The workload's metric at the end of the run; None where the run has no end or diverged."""
        if self.result is None or self.result["status"] != "finished":
            return None
        value = self.result["final"].get(self.workload["metric"])
        return None if value is None else float(value)

    def curve(self, kind: str, key: str) -> list[tuple[int, float, float]]:
        """(step, seconds, value) of one quantity; kind is "train" or "eval"."""
        return [
            (line["step"], line["seconds"], line[key])
            for line in self.metrics
            if line["kind"] == kind and line.get(key) is not None
        ]
