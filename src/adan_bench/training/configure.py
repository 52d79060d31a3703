"""The configuration of a run: what the user chose, what the workload and the optimizer bring, complete and checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from adan_bench.spec import SCALES, UNTUNED, OptimizerSpec, RunConfig, Settings, UsageError, Workload, listing
from adan_bench.training import optimizers
from adan_bench.training.schedules import SCHEDULES


@dataclass(frozen=True)
class Options:
    """What a user may choose for all runs of a study alike; None leaves it to the workload."""

    steps: int | None = None
    batch_size: int | None = None
    eval_every: int | None = None
    schedule: str = "cosine"
    warmup: float = 0.05
    device: str = "cpu"
    bf16: bool = False
    channels_last: bool = False
    compile: bool = False
    accumulate: int = 1
    threads: int = 1
    checkpoint_every: int | None = None
    tensorboard: bool = False
    data: Path | None = None
    script: Path | None = None
    parallel: str | None = None
    ranks: int = 1
    scale: str = SCALES[0]
    init: Path | None = None
    keep_weights: bool = False


def tuned_defaults() -> dict[str, Any]:
    """The settings found by `adan-bench tune` for the workloads of this package, and how they were found."""
    found: dict[str, Any] = json.loads((resources.files("adan_bench.training") / "tuned.json").read_text())
    return found


def configure(
    workload: Workload,
    spec: OptimizerSpec,
    options: Options,
    *,
    seed: int = 0,
    overrides: Mapping[str, Any] | None = None,
    jobs: int = 1,
) -> RunConfig:
    """The configuration of one run, complete and checked."""
    if options.schedule not in SCHEDULES:
        raise UsageError(f"no schedule {options.schedule!r}; there are: {', '.join(SCHEDULES)}")
    check_data(workload, options.data)
    check_device(options.device)
    batch_size = options.batch_size or workload.batch_size
    if batch_size % (options.accumulate * options.ranks):
        among = f" on {options.ranks} ranks" if options.ranks > 1 else ""
        raise UsageError(f"--accumulate {options.accumulate}{among} does not divide the batch size {batch_size}")
    if options.parallel == "fsdp" and not spec.shards:
        raise UsageError(f"{spec.name} cannot step on sharded parameters (DTensors); take --parallel ddp")
    if options.parallel == "fsdp" and options.channels_last:
        raise UsageError("--channels-last: fsdp shards contiguous parameters only; take --parallel ddp")
    settings, origin = starting_settings(workload, spec)
    if overrides:
        settings = {**settings, **overrides}
        origin += ", then --set " + " ".join(f"{key}={value}" for key, value in overrides.items())
    optimizers.check_settings(spec, settings)
    steps = options.steps or workload.steps
    if origin != UNTUNED and (steps != workload.steps or batch_size != workload.batch_size):
        origin += f" for {workload.steps} steps of {workload.batch_size}"
    eval_every = options.eval_every or max(1, round(workload.eval_every * steps / workload.steps))
    return RunConfig(
        workload=workload.name,
        optimizer=spec.name,
        settings=settings,
        steps=steps,
        batch_size=batch_size,
        eval_every=eval_every,
        log_every=max(1, steps // 60),
        seed=seed,
        schedule=options.schedule,
        warmup=options.warmup,
        device=options.device,
        bf16=options.bf16,
        channels_last=options.channels_last,
        compile=options.compile,
        accumulate=options.accumulate,
        threads=options.threads,
        checkpoint_every=options.checkpoint_every,
        tensorboard=options.tensorboard,
        data=None if options.data is None else str(options.data),
        script=None if options.script is None else str(options.script),
        origin=origin,
        jobs=jobs,
        parallel=options.parallel,
        ranks=options.ranks,
        scale=workload.scale,
        init=None if options.init is None else str(options.init),
        keep_weights=options.keep_weights,
    )


def starting_settings(workload: Workload, spec: OptimizerSpec) -> tuple[Settings, str]:
    """The tuned defaults where there are some, else the optimizer's own; and which of the two it was."""
    name = workload.name if workload.scale == SCALES[0] else f"{workload.name}@{workload.scale}"
    found = tuned_defaults()["workloads"].get(name, {}).get(spec.name)
    if found is None:
        return optimizers.defaults(spec), UNTUNED
    return dict(found["settings"]), f"defaults tuned in {found['trials']} trials"


def check_data(workload: Workload, data: Path | None) -> None:
    if data is not None and not data.is_dir():
        raise UsageError(
            f"--data {data}: no such folder; {data.absolute().parent} holds: {listing(data.absolute().parent)}"
        )
    for name in workload.needs:
        if data is None:
            raise UsageError(
                f"{workload.name} needs {name}: give --data DIR or set ADAN_DATA to a folder that holds it"
            )
        if not (data / name).exists():
            raise UsageError(f"{workload.name} needs {name}, which {data} does not hold; it holds: {listing(data)}")


def check_device(device: str) -> None:
    import torch

    there = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    if device not in there and not (device == "cuda" and len(there) > 1):
        raise UsageError(f"--device {device}: not on this machine; there are: {', '.join(there)}")
