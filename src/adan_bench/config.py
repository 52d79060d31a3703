"""One run: its configuration, its progress, and its record, of which alone `records/stats.py` and `reports` know."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adan_bench.task import SCALES, Settings

TUNING_SEED = 1000  # trials use this and later ones; comparisons use 0, 1, 2, …
SHORT = "short"  # the kind of origin of a short run, which its training loss judges
TRAINING_LOSS = "training loss"
CONFIRMATIONS = 2  # more seeds for the best trials of a search over ranges
#: How the work of a step is shared out, and the machine: what a run may be resumed with another value of.
SHARING = ("parallel", "ranks", "threads", "jobs")


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def option(
    default: Any,
    help: str = "",
    *,
    min: float | None = None,
    max: float | None = None,
    env: str | None = None,
    decides: bool = True,
    said: str = "",
) -> Any:
    """A field of a run's configuration.

    help: what the command line says about it, where it is also a flag; without a text it is none.
    min, max: what the flag accepts; env: the environment variable that stands in for it.
    decides: whether the numbers of a run depend on it. A run may continue with another value of one that does not.
    said: a value in words, as a format, where that is not its name and the value.
    """
    facts = {"help": help, "min": min, "max": max, "env": env, "decides": decides, "said": said}
    return field(default=default, metadata=facts)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The origin of a run's settings, as facts; `reports.conclusions.said` puts them into words.

    kind: "untuned" (the optimizer's own defaults), "bundled" (this package's tuned ones), "saved" (a file of `tune`),
        "here" (trials beside the run), "study" (as its file says), "failed" (likewise, as none of the trials has a
        result), "trial" (the run is one), SHORT (it is a short run of `suggest`, and `tuned_for` the full one),
        "published", or "" where `source` says it all.
    source: the file of `tune`, the study, or whoever published the settings.
    at_edge: no rate beyond the best one was tried, or none far beyond it.
    seed: of the trials; confirmed: how many of the best were run again on the seeds after it.
    searched: options of the run that the trials varied beside the settings.
    tuned_for: fields of the training that the settings were tuned for, where this run has others.
    changed: settings that the user set otherwise than the trials found them.
    batch_sizes: of this run and of the tuning, where the rate was multiplied by the root of their ratio.
    lr_factor: another factor of the rate.
    guesses: settings and fields that no public source states; fixed: settings that a table is about.
    """

    kind: str = ""
    trials: int = 0
    source: str = ""
    at_edge: bool = False
    seed: int = TUNING_SEED
    confirmed: int = 0
    searched: tuple[str, ...] = ()
    tuned_for: Settings = field(default_factory=dict)
    changed: Settings = field(default_factory=dict)
    batch_sizes: tuple[int, ...] = ()
    lr_factor: float = 1.0
    guesses: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()

    @property
    def flaw(self) -> str:
        """The reason why settings are not as tuned for their run: "untuned", "elsewhere", "changed", or nothing."""
        if self.kind in ("untuned", "failed"):
            return "untuned"
        return "elsewhere" if self.tuned_for else "changed" if self.changed else ""

    def to_json(self) -> dict[str, Any]:
        """The facts that are not the defaults."""
        blank = Origin()
        return {name: as_json(value) for name, value in vars(self).items() if value != getattr(blank, name)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | str) -> Origin:
        """The origin in a record: facts, or the words of an earlier version, which are kept as the source.

        >>> Origin.from_json("defaults tuned in 8 trials for 100 steps of 64").tuned_for
        {'steps': 100, 'batch_size': 64}
        """
        if isinstance(value, str):
            how, *others = re.split(r" for (\d+) steps of (\d+)", value)
            tuned_for = {"steps": int(others[0]), "batch_size": int(others[1])} if others else {}
            kind = "untuned" if how.startswith("untuned") else ""
            return cls(kind=kind, source=how + "".join(others[2:]), tuned_for=tuned_for)
        facts: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in value.items()}
        return cls(**{f.name: facts[f.name] for f in dataclasses.fields(cls) if f.name in facts})


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Length of a run and course of its learning rate. 0 leaves a number to the workload."""

    steps: int = option(
        0,
        "Steps of a run, each with one gradient (SAM's updates take two). Default: the workload's.",
        min=1,
        said="{} steps",
    )
    batch_size: int = option(0, "Examples per update. Default: the workload's.", min=1, said="batch {}")
    eval_every: int = option(0, "Steps between evaluations. Default: the workload's.", min=1)
    log_every: int = option(0)
    stop_after: int = option(
        0, "End after N steps, on the schedule of --steps. To pause instead, use --time-limit.", min=1
    )
    schedule: str = option(
        "cosine",
        "Learning rate after the warm-up: cosine, full-cosine, linear, linear:N, constant, step or steps:30/90,60/90.",
    )
    warmup: float = option(0.05, "Linear warm-up, as a fraction of the steps.", min=0, max=1, said="warm-up {:.2%}")
    floor: float = option(0.0, "Final learning rate, as a fraction of the peak.", min=0, max=1, said="floor {:.3g}")
    cooldown: float = option(
        0.0, "Fraction of the steps, at the end, that keep the final rate.", min=0, max=1, said="cooldown {:.2%}"
    )
    nonmono: int = option(
        0, "Return to the initial rate after N evaluations without improvement, as AWD-LSTM does.", min=1
    )
    clip: float = option(-1.0, "Largest gradient norm; 0 turns clipping off. Default: the workload's.", min=0)
    ema: float = option(
        0.0, "Evaluate a moving average of the weights with this decay.", min=0, max=1, said="average of weights {:g}"
    )


#: Fields of a training that tuned settings depend on: where one differs, they are for another training.
TRAINING = (
    *(f.name for f in dataclasses.fields(Budget) if f.name not in ("eval_every", "log_every")),
    "init",
    "script_sha256",
)


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Execution of the steps."""

    device: str = option("cpu", "Where to train: cpu, cuda or cuda:N.")
    bf16: bool = option(False, "Train under bfloat16 autocast.")
    channels_last: bool = option(False, "Use the channels_last layout for images.")
    tf32: bool = option(False, "Use TF32 for fp32 matrix products on a GPU: faster, 10 bits of mantissa.")
    compile: bool = option(
        False, "Compile the loss with torch.compile: fewer kernels, after half a minute of compiling."
    )
    graph: str = option("auto", "Capture each step as one CUDA graph: auto (where possible), on or off.", decides=False)
    accumulate: int = option(1, "Split each batch into this many micro-batches.", min=1)
    threads: int = option(
        0, "CPU threads, and processes that decode images, per run. Default: cores / jobs.", min=1, decides=False
    )
    parallel: str | None = option(None, "How the processes of a run share it: ddp or fsdp.", decides=False)
    ranks: int = option(
        1, "Processes that share each run, each with its own GPU; by ddp unless --parallel fsdp.", min=1, decides=False
    )
    jobs: int = option(1, decides=False)  # runs that shared the machine: seconds compare within one value only
    checkpoint_every: int = option(
        0, "Steps between checkpoints. Default: about every 15 s, less often if slow.", min=1, decides=False
    )
    cluster: str | None = option(None, "Make the runs on a Ray cluster: ray or ray:ADDRESS.", decides=False)
    tensorboard: bool = option(False, "Also write TensorBoard events.", decides=False)
    keep_weights: bool = option(False, "Save the final weights; with --ema, their average.")


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Sources of model, data and settings."""

    scale: str = option(SCALES[0], "Size of model and data: smoke, small or paper. Workloads have one or more of them.")
    seed: int = option(0, "Seed of weights, batches and dropout.", min=0, max=2**31 - 1)
    data: Path | None = option(None, "Folder of the data sets.", env="ADAN_DATA", decides=False)
    script: Path | None = option(None, "A Python file with your own workloads and optimizers.", decides=False)
    script_sha256: str = option("")  # wherever the script lies, its content is what decides
    init: Path | None = option(None, "Begin with these weights: a run made with --keep-weights, or a file.")
    init_sha256: str = option("")  # likewise; unknown where a run of the same study is to make them first
    role: str = option("run")  # "tune", "pilot": such runs are no evidence, they only choose settings
    origin: Origin = option(Origin(), decides=False)
    #: True: the optimizer's own took the place of the default; False: the user gave one, be it the default's.
    own_schedule: bool | None = option(None, decides=False)
    label: str = option("", decides=False)  # of a variant of an optimizer, such as adan:state_format=8bit
    study: str = option("", decides=False)  # of whose plan it is a run, where a file of `adan-bench study` planned it


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
        """The competitor's name: the optimizer, or a variant of it."""
        return self.label or self.optimizer

    @property
    def tuned(self) -> Settings:
        """The settings, and the options of the run that were searched with them."""
        return {**self.settings, **{name: getattr(self, name) for name in self.origin.searched}}

    def to_json(self) -> dict[str, Any]:
        values = {**dataclasses.asdict(self), "origin": self.origin.to_json()}
        return {key: str(value) if isinstance(value, Path) else value for key, value in values.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunConfig:
        """A configuration of this version or of an earlier one: unknown keys are dropped, null is the default."""
        known = {f.name: f for f in dataclasses.fields(cls)}
        fields = {key: value for key, value in values.items() if key in known and value is not None}
        paths = {key: Path(value) for key, value in fields.items() if "Path" in str(known[key].type)}
        return cls(**{**fields, **paths, "origin": Origin.from_json(fields.get("origin", {}))})

    def identity(self) -> dict[str, Any]:
        """The fields that decide the numbers, without defaults: an option that is added later changes nothing.

        Weights at the start count by whether there are some and by their content, not by where they lie.
        """
        values = self.to_json() | {"init": None if self.init is None else True}
        return {
            f.name: value
            for f in dataclasses.fields(self)
            if f.metadata.get("decides", True) and (value := values[f.name]) != f.default
        }

    def differences(self, other: RunConfig) -> list[str]:
        """The fields that decide the numbers and differ; records of earlier versions lack checksums."""
        a, b = as_json(self.identity()), as_json(other.identity())
        sums = ("script_sha256", "init_sha256")
        unchecked = {name for name in sums if not (getattr(self, name) and getattr(other, name))}
        return [name for name in {**a, **b} if name not in unchecked and a.get(name) != b.get(name)]


def flag(name: str) -> str:
    """The flag of a field; its name where it has none.

    >>> flag("batch_size"), flag("settings")
    ('--batch-size', 'settings')
    """
    return f"--{name.replace('_', '-')}" if RunConfig.__dataclass_fields__[name].metadata.get("help") else name


def in_words(name: str, value: Any) -> str:
    """A field of a configuration in words.

    >>> [in_words(*pair) for pair in (("steps", 100), ("batch_size", 8), ("warmup", 0.0), ("bf16", True))]
    ['100 steps', 'batch 8', 'no warm-up', 'bf16']
    >>> in_words("clip", -1.0), in_words("warmup", 0.05), in_words("training", {"layers": 2})
    ('default clip', 'warm-up 5%', 'training layers=2')
    """
    if name in ("script_sha256", "init_sha256"):
        return f"{name.partition('_')[0]} {value[:8] or 'of unknown content'}"
    said = RunConfig.__dataclass_fields__[name].metadata.get("said", "")
    word = said.partition(" {")[0] or name.replace("_", " ")
    if value is True:
        return word
    if not value:
        return f"no {word}"
    if value == -1:  # of `clip`: left to the workload
        return f"default {word}"
    if isinstance(value, Mapping):
        value = " ".join(f"{key}={item}" for key, item in value.items())
    text = said.format(value) if said else f"{word} {value:g}" if isinstance(value, float) else f"{word} {value}"
    return re.sub(r"\.?0+%", "%", text)


def as_json(value: Any) -> Any:
    """A value as a file has it: tuples are lists there."""
    return json.loads(json.dumps(value, default=str))


@dataclass(frozen=True)
class RunProgress:
    """One report of a run under way, for whoever watches."""

    step: int
    steps: int
    loss: float | None
    metric: float | None
    steps_per_second: float
    seconds_left: float | None
    gpu_share: float | None = None  # of the time in which the GPU was busy, by NVML
    gpu_bytes: int | None = None  # the most that the run has had so far


def judged(workload: Mapping[str, Any]) -> tuple[str, bool]:
    """The number by which a workload's tuning trials are judged, and whether a higher one is better."""
    metric, higher = workload.get("tune_metric"), workload.get("tune_higher_is_better")
    return str(metric or workload["metric"]), bool(workload["higher_is_better"] if higher is None else higher)


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
    def judged_by(self) -> tuple[str, bool]:
        """The number that counts, and whether a higher one is better.

        The workload's metric; for a trial, the number by which the workload judges trials; for a short run of
        `suggest`, the training loss. By a metric on held-out data, rates of a ResNet-34, whose batch norm lags behind,
        and of a graph network near chance were misjudged by up to a factor of fifty.
        """
        if self.config.origin.kind == SHORT:
            return TRAINING_LOSS, False
        if self.config.role == "tune":
            return judged(self.workload)
        return str(self.workload["metric"]), bool(self.workload["higher_is_better"])

    @property
    def metric(self) -> str:
        return self.judged_by[0]

    @property
    def higher_is_better(self) -> bool:
        return self.judged_by[1]

    @property
    def final(self) -> float | None:
        """The number that counts, at the end of the run; None where the run has no end or diverged.

        Of a short run it is the mean training loss over the second half.
        """
        if self.result is None or self.result["status"] != "finished":
            return None
        short = self.config.origin.kind == SHORT
        value = self._loss_after(0.5) if short else self.result["final"].get(self.metric)
        return None if value is None or not math.isfinite(value) else float(value)

    @property
    def lr(self) -> float:
        return float(self.config.settings["lr"])

    @property
    def diverged(self) -> bool:
        """Whether the loss became infinite, or the run went through and ended with a metric that is not finite."""
        return self.status == "diverged" or (self.status == "finished" and self.final is None)

    @property
    def training_loss(self) -> float | None:
        """The training loss over the last tenth of the run."""
        return self._loss_after(0.9)

    def _loss_after(self, share: float) -> float | None:
        """The mean training loss after a share of the run."""
        end = self.config.stop_after or self.config.steps
        values = [value for step, _, value in self.curve("train", "loss") if step > share * end]
        return sum(values) / len(values) if values else None

    @property
    def surroundings(self) -> list[dict[str, Any]]:
        """The environments that the run had, one after the other, each with how the work was shared out."""
        if not self.environment:  # it never began
            return []
        parts = [{**self.environment, **{name: getattr(self.config, name) for name in SHARING}}]
        for line in self.metrics:
            if line["kind"] == "resume":
                shared = {name: line[name] for name in SHARING if name in line}
                parts.append({**parts[-1], **line.get("environment", {}), **shared})
        return parts

    def curve(self, kind: str, key: str) -> list[tuple[int, float, float]]:
        """(step, seconds, value) of one quantity; kind is "train" or "eval"."""
        return [
            (line["step"], line["seconds"], line[key])
            for line in self.metrics
            if line["kind"] == kind and line.get(key) is not None
        ]
