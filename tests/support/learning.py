"""A few updates of a workload, as its tests need them."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from adan_bench.config import RunConfig
from adan_bench.data.batching import moved
from adan_bench.records.store import RunStore, read_run
from adan_bench.task import Task
from adan_bench.training.configure import configure
from adan_bench.training.interrupts import Pause
from adan_bench.training.optimizers import SPECS
from adan_bench.training.trainer import Trainer, run
from adan_bench.workloads import registry
from adan_bench.workloads.registry import get_workload


def prepared(task: Task, position: int, device: torch.device | str) -> Any:
    """The batch at a position as the task's loss takes it, on a device."""
    return task.prepare(moved(task.batches(position), device))


def chosen(**options: Any) -> RunConfig:
    """What a user may choose for a run; one thread, as tests share the machine."""
    return RunConfig(threads=1, **options)


def settings(name: str, optimizer: str = "adan", **options: Any) -> RunConfig:
    choice = chosen(**options)
    return configure(get_workload(name, choice.scale), SPECS[optimizer], choice)


def resize(monkeypatch: Any, name: str, sizes: Any, scale: str = "paper") -> None:
    """Give a workload other model sizes at a scale, for one test."""
    found = get_workload(name)
    scales = {**found.scales, scale: replace(found.scales[scale], sizes=sizes)}
    monkeypatch.setitem(registry._workloads, name, replace(found, scales=scales))


def sizes(name: str, scale: str = "paper") -> Any:
    return get_workload(name).scales[scale].sizes


def curve(path: Path) -> list[dict[str, Any]]:
    """What a run recorded, without the clock."""
    return [{key: value for key, value in line.items() if key != "seconds"} for line in read_run(path).metrics]


def trainer(name: str, optimizer: str = "adan", **options: Any) -> Trainer:
    return Trainer(settings(name, optimizer, **options))


def falls(name: str, optimizer: str, updates: int = 40) -> float:
    """The mean loss of the last quarter of the updates, divided by that of the first."""
    found = trainer(name, optimizer, steps=updates)
    losses = []
    for _ in range(updates):
        found.updater.window.zero_()
        found.update()
        losses.append(found.updater.window.item())
    quarter = updates // 4
    return sum(losses[-quarter:]) / sum(losses[:quarter])


def resumes(make: Any, before: int = 1, after: int = 2) -> bool:
    """Whether updates, a checkpoint and more updates in a new trainer end where the first one does, to the bit."""
    buffer, straight = io.BytesIO(), make()
    for step in range(before + after):
        if step == before:
            torch.save(straight.state_dict(), buffer)
        straight.update()
    second = make()
    second.load_state_dict(torch.load(io.BytesIO(buffer.getvalue()), weights_only=True))
    for _ in range(after):
        second.update()
    same = (torch.equal(a, b) for a, b in zip(straight.model.parameters(), second.model.parameters(), strict=True))
    return all(same) and straight.evaluate() == second.evaluate()


class AtStep(Pause):
    """A pause at a step, not at a time."""

    def due(self, step: int) -> bool:
        return self.until is not None and step >= self.until


class Killed(BaseException):
    pass


def killer(at: int) -> Any:
    def on_progress(progress: Any) -> None:
        if progress.step >= at:
            raise Killed

    return on_progress


def killed_run(config: Any, path: Path, at: int) -> None:
    with pytest.raises(Killed):
        run(config, RunStore(path), killer(at))
