"""What the parts of the harness hand to each other: workloads, optimizer specs, configurations, records.

A workload owns data, model, loss, metric, target and budget; an optimizer spec owns the update and its search space;
`training/trainer.py` joins them; `records/stats.py` and `reports` see only `RunRecord`s read from disk.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # reading records and writing reports must not pay the 2 s that importing torch takes
    import torch
    from torch import nn

Settings = dict[str, Any]
SCALES = ("smoke", "small", "paper")  # minutes on two cores, minutes on one GPU, as published
TUNING_SEED = 1000  # comparisons use 0, 1, 2, …
#: Parts of the words for the origin of settings in a record: what begins it where nobody tuned them, and what follows
#: where they were tuned for a training of another length, schedule and so on, or where the user has changed them since.
UNTUNED = "untuned defaults"
ELSEWHERE = " for another training: "
CHANGED = ", then --set "


class UsageError(ValueError):
    """What the user asked for does not exist; the message is the one line to print, the exit code is 2."""


class WorkloadError(ValueError):
    """What a workload's `loss` or `evaluate` returned cannot be used: the run has failed, and the message says why."""


def unknown(what: str, name: str, known: Iterable[str], of: str = "") -> UsageError:
    """The error for a name that is none of the known ones, which all belong to `of`, with the nearest of them first.

    >>> unknown("optimizer", "adanw", ["adan", "adamw", "sgd"])
    UsageError("no optimizer 'adanw'; did you mean adan or adamw? There are: adan, adamw, sgd")
    """
    names = list(known)
    near = difflib.get_close_matches(name, names, n=2)
    has, have = (f"{of} has no", "it has") if of else ("no", "there are")
    hint = f"did you mean {' or '.join(near)}? {have.capitalize()}" if near else have
    return UsageError(f"{has} {what} {name!r}; {hint}: {', '.join(names) or 'none'}")


def check_name(decorator: str, name: Any, marks: str = "_+-") -> None:
    """Whether a workload or an optimizer may have the name, which becomes a part of paths and of options."""
    if not isinstance(name, str) or not re.fullmatch(rf"[A-Za-z][\w{marks}]*", name) or name == "all":
        raise ValueError(
            f"{decorator}: name must be a word of letters, digits and {marks}, got {name!r}; for example 'mine'"
        )


class TimeLimitReached(Exception):
    """--time-limit ended the work before it was done; the message says how to continue, the exit code is 4."""


@dataclass(frozen=True)
class Context:
    """What a workload's builder may depend on: the seed, the size of a batch, where data and device are, the scale.

    Args:
        init: the folder of a run whose final weights are the start of this one, or a file of weights; None starts at
            random. What a builder does not read by `weights()` is loaded into its model whole.
        sizes: the scale's own (`Scale.sizes`).
        training: options of the workload (`Workload.options`) whose values are not its defaults.
    """

    seed: int
    batch_size: int
    data: Path | None = None
    device: str = "cpu"
    scale: str = "smoke"
    init: Path | None = None
    sizes: Any = None
    training: Settings = field(default_factory=dict)
    read: list[Path] = field(default_factory=list)  # the files of weights that were read

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
            raise UsageError(
                f"--init {self.init}: {file.name} holds a {type(weights).__name__}, not weights by their names"
            )
        return weights


def weights_file(init: Path) -> Path:
    """The file of weights that --init names: its own, or the one that a run's folder holds."""
    if not init.exists():
        raise UsageError(f"--init {init}: no such file or folder; {init.parent} holds: {listing(init.parent)}")
    file = init / "weights.pt" if init.is_dir() else init
    if not file.exists():
        raise UsageError(f"--init {init}: it holds no weights.pt; make that run with --keep-weights")
    return file


def listing(folder: Path) -> str:
    """The names in a folder, for an error message of one line."""
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    return ", ".join(names[:12]) or "nothing"


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def short(value: Any) -> str:
    """A value in an error message: itself, or its type where it is long."""
    text = repr(value)
    return text if len(text) <= 40 and "\n" not in text else f"a {type(value).__name__}"


def _as_it_is(batch: Any) -> Any:
    return batch


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
    """

    model: nn.Module
    batches: Callable[[int], Any]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    evaluate: Callable[[nn.Module], Mapping[str, float]]
    note: str = ""
    max_grad_norm: float | None = None
    groups: Callable[[nn.Module, Settings], list[dict[str, Any]]] | None = None
    prepare: Callable[[Any], Any] = _as_it_is
    eager: str = ""
    rate: Callable[[int], float] | None = None

    def __post_init__(self) -> None:
        from torch import nn

        if not isinstance(self.model, nn.Module):
            raise UsageError(f"Task: model must be a torch.nn.Module, got {short(self.model)}")
        for name, example in _FUNCTIONS.items():
            value = getattr(self, name)
            if not (callable(value) or (value is None and name in ("groups", "rate"))):
                raise UsageError(f"Task: {name} must be a function, got {short(value)}; {example}")
        limit = self.max_grad_norm
        if limit is not None and (not isinstance(limit, (int, float)) or not limit > 0):
            raise UsageError(f"Task: max_grad_norm must be a number above 0, or None for no limit, got {short(limit)}")


#: The parts of a task that are functions, with what to write.
_FUNCTIONS = {
    "batches": "write adan_bench.shuffled(tensors, context.batch_size, context.seed) or, for a DataLoader, "
    "kept = list(loader) and lambda position: kept[position % len(kept)]",
    "loss": "write def loss(model, batch): and return the mean loss",
    "evaluate": "write def evaluate(model): and return a dictionary with the metric",
    "groups": "write def groups(model, settings): and return a list of parameter groups, or omit it",
    "prepare": "write def prepare(batch): and return what loss takes, or omit it",
    "rate": "write def rate(position): and return a factor, or omit it",
}


@dataclass(frozen=True)
class Scale:
    """One size of a workload: its budget, what it needs, how large the model is.

    Args:
        target: the value of the metric whose first reaching is timed.
        eval_every: steps between evaluations; a tenth of `steps` unless given.
        needs: files of the data folder without which it cannot run.
        sizes: what the builder finds as `context.sizes`, usually the sizes of the model.
    """

    target: float
    steps: int
    batch_size: int = 64
    eval_every: int = 0
    needs: tuple[str, ...] = ()
    sizes: Any = None

    def __post_init__(self) -> None:
        if isinstance(self.target, bool) or not isinstance(self.target, (int, float)):
            raise UsageError(f"Scale: target must be a value of the metric, got {short(self.target)}; for example 0.9")
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
    tune_metric: what tuning trials are judged by, where that is another number than the metric.
    options: names of what a run may set otherwise (`RunConfig.training`), for example the share of stochastic depth.
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

    def at(self, scale: str) -> Workload:
        """The same problem at another scale."""
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
    ) -> Task:
        """The problem, built."""
        sizes, batch_size = self.scales[self.scale].sizes, batch_size or self.batch_size
        context = Context(seed, batch_size, data, device, self.scale, init, sizes, training or {})
        task = self.build(context)
        if not isinstance(task, Task):
            raise UsageError(f"{self.name}: its function returned {short(task)}; end it with: return Task(...)")
        if init is not None and not context.read:
            try:
                task.model.load_state_dict(context.weights())
            except RuntimeError as error:
                reason = str(error).splitlines()[1].strip()
                raise UsageError(
                    f"--init {init}: its weights are not those of {self.name} at this scale ({reason})"
                ) from error
            task.note += f"; starts from {init}"
        return task

    def facts(self) -> dict[str, Any]:
        """What a record must say for a report to be written without this code."""
        own = ("name", "summary", "metric", "higher_is_better", "target", "steps", "eval_every", "batch_size")
        return {name: getattr(self, name) for name in (*own, "after", "scale", "tune_metric")}


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer, its defaults for short runs, and the space in which tuning may look.

    lr: the center of the range of learning rates; every optimizer's range has the same width (`comparison.DECADES`).
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
    eager: str = ""  # why a CUDA graph cannot hold its step; empty: it can
    own: Callable[..., Any] | None = field(default=None, repr=False)  # the class or function of a user's script

    def facts(self) -> dict[str, Any]:
        return {"name": self.name, "target": self.target, "lr_center": self.lr, "passes": self.passes}


def option(
    default: Any,
    help: str = "",
    *,
    min: float | None = None,
    max: float | None = None,
    env: str | None = None,
    decides: bool = True,
) -> Any:
    """A field of a run's configuration.

    help: what the command line says about it, where it is also a flag; without a text it is none.
    min, max: what the flag accepts; env: the environment variable that stands in for it.
    decides: whether the numbers of a run depend on it. A run may continue with another value of one that does not.
    """
    return field(default=default, metadata={"help": help, "min": min, "max": max, "env": env, "decides": decides})


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long a run is and how the learning rate moves. 0 leaves a number to the workload."""

    steps: int = option(0, "Gradients per run; the workload's budget unless given.", min=1)
    batch_size: int = option(0, "Examples per update; the workload's unless given.", min=1)
    eval_every: int = option(0, "Steps between evaluations.", min=1)
    log_every: int = option(0)
    stop_after: int = option(0, "Stop after N steps; the schedule still spans --steps.", min=1)
    schedule: str = option("cosine", "cosine, full-cosine, linear, linear:N, constant, step or steps:30/90,60/90.")
    warmup: float = option(0.05, "Share of the steps that warm up.", min=0, max=1)
    floor: float = option(0.0, "Final learning rate, as a fraction of the peak.", min=0, max=1)
    cooldown: float = option(0.0, "Share of the steps at the end that keep the lowest rate.", min=0, max=1)
    nonmono: int = option(
        0, "Return to the initial learning rate after N evaluations without improvement (AWD-LSTM's trigger).", min=1
    )
    clip: float = option(-1.0, "Limit of the gradient's norm, 0 for none; the workload's unless given.", min=0)
    ema: float = option(0.0, "Decay of an exponential average of the weights, which is evaluated.", min=0, max=1)


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How the steps are computed."""

    device: str = option("cpu", "cpu, cuda or cuda:N.")
    bf16: bool = option(False, "bfloat16 autocast.")
    channels_last: bool = option(False, "Images in channels_last layout.")
    compile: bool = option(False, "torch.compile the model: fewer kernels, after half a minute of compiling.")
    graph: str = option("auto", "The step as one CUDA graph: auto (where it can be), on or off.", decides=False)
    accumulate: int = option(1, "Micro-batches per update: the batch is split into so many parts.", min=1)
    threads: int = option(0, "Threads per run; cores / jobs unless given.", min=1, decides=False)
    parallel: str | None = option(None, "ddp or fsdp, on the processes that torchrun starts.", decides=False)
    ranks: int = option(1, decides=False)
    jobs: int = option(1, decides=False)  # runs that shared the machine: seconds compare within one value only
    checkpoint_every: int = option(
        0, "Steps between checkpoints; about every 15 s unless given, less often if slow.", min=1, decides=False
    )
    cluster: str | None = option(None, "ray or ray:ADDRESS: hand the runs to a Ray cluster.", decides=False)
    tensorboard: bool = option(False, "Also write TensorBoard events.", decides=False)
    keep_weights: bool = option(False, "Write the final weights, with --ema their average.")


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where model, data and settings come from."""

    scale: str = option(SCALES[0], "smoke, small or paper, where the workload has it.")
    seed: int = option(0, "Seed of weights, batches and dropout.", min=0, max=2**31 - 1)
    data: Path | None = option(None, "The folder of the data sets.", env="ADAN_DATA", decides=False)
    script: Path | None = option(None, "A Python file with your own workloads and optimizers.", decides=False)
    script_sha256: str = option("")  # wherever the script lies, its content is what decides
    init: Path | None = option(None, "A run whose final weights are the start, or a file of weights.")
    role: str = option("run")  # "tune", "pilot": such runs are no evidence, they only choose settings
    origin: str = option("", decides=False)  # where the settings come from, in words
    lr_at_edge: bool = option(False, decides=False)  # of the rates that the tuning tried, where these were saved
    label: str = option("", decides=False)  # of a variant of an optimizer, such as adan:state_format=8bit


@dataclass(frozen=True, kw_only=True)
class RunConfig(Budget, Execution, Provenance):
    """All that decides the numbers of one run; a record holds it in full.

    Without a workload it is what a user chose for several runs; `training.configure` completes it for each.
    """

    workload: str = ""
    optimizer: str = ""
    settings: Settings = field(default_factory=dict)
    training: Settings | None = None  # options of the workload, where a published run had others than its default

    @property
    def name(self) -> str:
        """Of who competes: the optimizer, or a variant of it."""
        return self.label or self.optimizer

    def to_json(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        return {key: str(value) if isinstance(value, Path) else value for key, value in values.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunConfig:
        """A configuration of this version or of an earlier one: unknown keys are dropped, null is the default."""
        known = {f.name: f for f in dataclasses.fields(cls)}
        fields = {key: value for key, value in values.items() if key in known and value is not None}
        paths = {key: Path(value) for key, value in fields.items() if "Path" in str(known[key].type)}
        return cls(**{**fields, **paths})

    def identity(self) -> dict[str, Any]:
        """What decides the numbers, without what has its default: an option that is added later changes nothing."""
        values = self.to_json()
        return {
            f.name: value
            for f in dataclasses.fields(self)
            if f.metadata.get("decides", True) and (value := values[f.name]) != f.default
        }

    def differences(self, other: RunConfig) -> list[str]:
        """Which fields that decide the numbers differ; records of earlier versions have no checksum of the script."""
        a, b = as_json(self.identity()), as_json(other.identity())
        unchecked = set() if self.script_sha256 and other.script_sha256 else {"script_sha256"}
        return [name for name in {**a, **b} if name not in unchecked and a.get(name) != b.get(name)]


def as_json(value: Any) -> Any:
    """As a file has it: tuples are lists there."""
    return json.loads(json.dumps(value, default=str))


@dataclass(frozen=True)
class Pause:
    """When a run stops for now, with a checkpoint to continue from: at a step, or at a Unix time."""

    step: int | None = None
    time: float | None = None

    def due(self, step: int) -> bool:
        return (self.step is not None and step >= self.step) or (self.time is not None and time.time() >= self.time)


NEVER = Pause()


@dataclass(frozen=True)
class Progress:
    """One report of a run under way, for whoever watches."""

    step: int
    steps: int
    loss: float | None
    metric: float | None
    steps_per_second: float
    seconds_left: float
    gpu_share: float | None = None  # of the time in which the GPU was busy
    gpu_source: str = ""  # who says so: NVML, or the duration of the replays of a captured step
    gpu_bytes: int | None = None  # the most that the run has had so far


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
    def metric(self) -> str:
        """What counts: the workload's metric, or what it judges trials by where this is one."""
        return str((self.config.role == "tune" and self.workload.get("tune_metric")) or self.workload["metric"])

    @property
    def final(self) -> float | None:
        """The metric at the end of the run; None where the run has no end or diverged."""
        if self.result is None or self.result["status"] != "finished":
            return None
        value = self.result["final"].get(self.metric)
        return None if value is None or not math.isfinite(value) else float(value)

    @property
    def diverged(self) -> bool:
        """Whether the loss became infinite, or the run went through and ended with a metric that is not finite."""
        return self.status == "diverged" or (self.status == "finished" and self.final is None)

    @property
    def training_loss(self) -> float | None:
        """The training loss over the last tenth of the run."""
        end = self.config.stop_after or self.config.steps
        values = [value for step, _, value in self.curve("train", "loss") if step > 0.9 * end]
        return sum(values) / len(values) if values else None

    def curve(self, kind: str, key: str) -> list[tuple[int, float, float]]:
        """(step, seconds, value) of one quantity; kind is "train" or "eval"."""
        return [
            (line["step"], line["seconds"], line[key])
            for line in self.metrics
            if line["kind"] == kind and line.get(key) is not None
        ]
