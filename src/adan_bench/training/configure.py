"""The configuration of a run: what the user chose, what the workload and the optimizer bring, complete and checked."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any

from adan_bench.config import TRAINING, Origin, RunConfig, as_json, cores
from adan_bench.errors import UsageError, listing, unknown
from adan_bench.task import SCALES, OptimizerSpec, Settings, Workload, weights_file
from adan_bench.training import optimizers
from adan_bench.training.schedules import schedule
from adan_bench.training.scripts import script_checksum
from adan_bench.workloads.registry import check_packages

GRAPH = ("auto", "on", "off")


def tuned_defaults() -> dict[str, Any]:
    """The settings found by `adan-bench tune` for the workloads of this package, and how they were found."""
    defaults: dict[str, Any] = json.loads(
        (resources.files("adan_bench.training") / "tuned.json").read_text(encoding="utf-8")
    )
    return defaults


def configure(
    workload: Workload, spec: OptimizerSpec, chosen: RunConfig, overrides: Mapping[str, Any] | None = None
) -> RunConfig:
    """Complete the choices for a workload and an optimizer, and check them against this machine."""
    config = complete(workload, spec, chosen, overrides)
    for reason in obstacles(workload, spec, config):
        raise UsageError(reason)
    return config


def obstacles(workload: Workload, spec: OptimizerSpec, config: RunConfig) -> list[str]:
    """Every reason why a run cannot be made here: its packages, data, devices and settings."""
    ranks = config.ranks if "RANK" not in os.environ else 1
    checks = [partial(check_data, workload, config.data), partial(optimizers.check_values, spec, config.settings)]
    if config.cluster is None:
        checks[:1] = [partial(check_packages, workload), checks[0], partial(check_device, config.device, ranks)]
    reasons = []
    for check in checks:
        try:
            check()
        except UsageError as error:
            reasons.append(str(error))
    return reasons


def complete(
    workload: Workload, spec: OptimizerSpec, chosen: RunConfig, overrides: Mapping[str, Any] | None = None
) -> RunConfig:
    """Complete the choices for a workload and an optimizer, which needs neither data nor packages nor device."""
    schedule(chosen.schedule, 1)  # which refuses an unknown one
    check_numbers(chosen)
    if spec.schedule and chosen.schedule == RunConfig.schedule and chosen.own_schedule is None:
        chosen = replace(chosen, schedule=spec.schedule, own_schedule=True)
    for name in chosen.training or ():
        if name not in workload.options:
            raise unknown("option", name, workload.options, of=workload.name)
    weights = None if chosen.init is None else weights_file(chosen.init)
    if chosen.graph not in GRAPH:
        raise UsageError(f"--graph {chosen.graph}: write {', '.join(GRAPH[:-1])} or {GRAPH[-1]}")
    if chosen.graph == "on" and chosen.device == "cpu":
        raise UsageError("--graph on: CUDA graphs need a GPU; give --device cuda, or use --graph auto")
    if chosen.ranks > 1 and workload.one_rank:
        why = f"{workload.one_rank}, so that processes cannot share a run of {workload.name}"
        raise UsageError(f"--ranks {chosen.ranks}: {why}; use one, and --jobs for several runs at a time")
    batch_size = chosen.batch_size or workload.batch_size
    if batch_size % (chosen.accumulate * chosen.ranks):
        parts = chosen.accumulate * chosen.ranks
        split = [f"--accumulate {chosen.accumulate}"] if chosen.accumulate > 1 else []
        split += [f"{chosen.ranks} ranks"] if chosen.ranks > 1 else []
        raise UsageError(
            f"{' × '.join(split)}: a batch of {batch_size} cannot be split into {parts} equal parts; give others, or a "
            f"multiple such as --batch-size {-(-batch_size // parts) * parts}"
        )
    if chosen.parallel == "fsdp" and not spec.shards:
        raise UsageError(f"{spec.name} cannot step on sharded parameters (DTensors); use --parallel ddp")
    if chosen.parallel == "fsdp" and chosen.channels_last:
        raise UsageError("--channels-last: fsdp shards contiguous parameters only; use --parallel ddp")
    steps = chosen.steps or workload.steps
    if chosen.stop_after > steps:
        raise UsageError(f"--stop-after {chosen.stop_after}: the run ends after {steps} steps; give fewer")
    if min(steps, chosen.stop_after or steps) < spec.passes:
        flag = f"--stop-after {chosen.stop_after}" if steps >= spec.passes else f"--steps {steps}"
        raise UsageError(f"{flag}: an update of {spec.name} takes {spec.passes} gradients; give at least {spec.passes}")
    if chosen.parallel == "fsdp" and chosen.ema:
        raise UsageError("--ema: fsdp shards the weights, and their average with them; use --parallel ddp")
    defaults, origin = starting_settings(workload, spec)
    config = replace(
        chosen,
        workload=workload.name,
        optimizer=spec.name,
        settings={**defaults, **(overrides or {})},
        steps=steps,
        batch_size=batch_size,
        eval_every=chosen.eval_every or _eval_every(workload, steps),
        log_every=max(1, steps // 60),
        data=None if chosen.data is None else chosen.data.absolute(),
        script_sha256="" if chosen.script is None else script_checksum(chosen.script),
        init_sha256="" if weights is None else checksum(weights),
    )
    changed = changes(spec, defaults, overrides or {})
    there: Settings = {}
    if origin.kind != "untuned":
        there = {"steps": workload.steps, "batch_size": workload.batch_size}
        if workload.after is not None:  # whose first half may be still to come
            there["init"] = training_of(config).get("init")
        there = elsewhere(there, config)
    at_edge = origin.at_edge and "lr" not in (overrides or ())
    return replace(config, origin=replace(origin, tuned_for=there, changed=changed, at_edge=at_edge))


def _eval_every(workload: Workload, steps: int) -> int:
    """Steps between evaluations: as published at the scale "paper", else as many evaluations however long the run."""
    length = workload.steps if workload.scale == SCALES[-1] else steps
    every: float = workload.eval_every * length / workload.steps
    return max(1, round(every))


def checksum(file: Path) -> str:
    """The SHA-256 of a file, which every run of a study asks for."""
    facts = file.stat()
    return _digest(file, facts.st_mtime_ns, facts.st_size)


@cache
def _digest(file: Path, modified: int, size: int) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while block := content.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def training_of(config: RunConfig) -> dict[str, Any]:
    """The fields of a training that tuned settings depend on, without those at their default."""
    return {name: value for name, value in config.identity().items() if name in TRAINING}


def elsewhere(tuned: Mapping[str, Any], config: RunConfig) -> Settings:
    """The fields of the training that settings were tuned for in which it differs from this one.

    tuned: what `training_of` gave there. An earlier version kept no more than steps and batch size.
    """
    tuned = {"script_sha256": config.script_sha256, **tuned}
    defaults = {f.name: f.default for f in fields(config) if f.name in TRAINING}
    now = defaults | training_of(config)
    return {name: value for name, value in (defaults | tuned).items() if value != now[name]}


def changes(spec: OptimizerSpec, defaults: Mapping[str, Any], overrides: Mapping[str, Any]) -> Settings:
    """The user's settings that differ from what a search found, without those that no search looks for."""
    searched = {*defaults, *(key for choice in spec.choices for key in choice)}
    return {
        key: value
        for key, value in overrides.items()
        if key in searched and as_json(value) != as_json(defaults.get(key))
    }


def threads(config: RunConfig, begun: RunConfig | None = None) -> int:
    """Threads of a run: as given, else as it began, else its share of the cores.

    Sums are ordered by the number of threads: a run that is resumed with other --jobs keeps the threads it began with,
    and so its numbers. With other ranks, each has a new share of the cores.
    """
    if config.threads:
        return config.threads
    if begun is not None and begun.threads and begun.ranks == config.ranks:
        return begun.threads
    if config.cluster is not None:  # the cores of this machine say nothing about those of the nodes
        return 1
    return max(1, cores() // (config.jobs * int(os.environ.get("LOCAL_WORLD_SIZE", 1))))


def tuned_name(workload: str, scale: str) -> str:
    """The name of a workload at a scale in a file of tuned settings.

    >>> tuned_name("mine", "smoke"), tuned_name("mine", "small")
    ('mine', 'mine@small')
    """
    return workload if scale == SCALES[0] else f"{workload}@{scale}"


def starting_settings(workload: Workload, spec: OptimizerSpec) -> tuple[Settings, Origin]:
    """The tuned defaults where there are some, else the optimizer's own; and which of the two it was."""
    entry = tuned_defaults()["workloads"].get(tuned_name(workload.name, workload.scale), {}).get(spec.name)
    if entry is None:
        return optimizers.defaults(spec), Origin(kind="untuned")
    origin = Origin(kind="bundled", trials=entry["trials"], at_edge=entry.get("at_edge", False))
    return dict(entry["settings"]), origin


def check_numbers(chosen: RunConfig) -> None:
    """Refuse what flags refuse, overlapping shares of the steps, and what the schedule or the average cannot have."""
    for option in fields(chosen):
        value, least, most = getattr(chosen, option.name), option.metadata.get("min"), option.metadata.get("max")
        if least is not None and value != option.default and not least <= value <= (most or math.inf):
            limits = f"from {least:g} to {most:g}" if most else f"from {least:g} on"
            raise UsageError(f"--{option.name.replace('_', '-')} {value:g}: give a number {limits}")
    for name in ("floor", "cooldown"):
        if chosen.schedule == "constant" and (value := getattr(chosen, name)):
            raise UsageError(f"--{name} {value:g}: --schedule constant never leaves its peak; use cosine or linear")
    if chosen.warmup + chosen.cooldown > 1 + 1e-9:
        shares = f"--warmup {chosen.warmup:g} and --cooldown {chosen.cooldown:g}"
        raise UsageError(f"{shares}: they are shares of the steps; give two whose sum is at most 1")
    if chosen.ema >= 1:
        raise UsageError(f"--ema {chosen.ema:g}: the average would stay at the first weights; give less than 1")


def check_data_folder(data: Path | None, needed: bool = False) -> None:
    """Refuse a folder that does not exist, unless it is ADAN_DATA, which is for all commands, and not needed here."""
    usual = os.environ.get("ADAN_DATA")
    spared = data is not None and usual is not None and data.absolute() == Path(usual).absolute() and not needed
    if data is not None and not data.is_dir() and not spared:
        parent = data.absolute().parent
        raise UsageError(f"--data or ADAN_DATA {data}: no such folder; {parent} holds: {listing(parent)}")


def check_data(workload: Workload, data: Path | None) -> None:
    missing = workload.needs
    check_data_folder(data, needed=bool(missing))
    if data is not None:
        missing = [name for name in missing if not any((data / one).exists() for one in name.split(" or "))]
    if missing:
        remedy = ": give --data DIR or set ADAN_DATA to a folder that holds it"
        if data is not None:
            remedy = f", which {data} does not hold; it holds: {listing(data)}"
        raise UsageError(f"{workload.name} needs {_either(missing)}{remedy}")


def _either(needs: Sequence[str]) -> str:
    """Names that a scale needs, each perhaps "A or B", in words: one B that stands for all comes first."""
    pairs = [name.partition(" or ") for name in needs]
    others = {other for _, _, other in pairs}
    if len(others) == 1 and all(others):
        return f"{others.pop()}, or {' and '.join(first for first, _, _ in pairs)}"
    return ", ".join(needs)


def check_device(device: str, ranks: int = 1) -> None:
    """Refuse a device that is not here, and more ranks than there are GPUs."""
    import torch

    if device.startswith("gpu"):
        raise UsageError(f"--device {device}: did you mean {device.replace('gpu', 'cuda')}?")
    there = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    if device not in there and not (device == "cuda" and len(there) > 1):
        raise UsageError(f"--device {device}: not on this machine; there are: {', '.join(there)}")
    if device != "cpu" and ranks > (len(there) - 1 if device == "cuda" else 1):
        raise UsageError(
            f"--ranks {ranks} --device {device}: every rank takes a GPU of its own, and this machine has "
            f"{len(there) - 1}; use --device cuda and at most as many ranks"
        )
