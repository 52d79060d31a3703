"""Scripts that users may write: a workload with one weight, to which a test adds what it is about."""

from __future__ import annotations

from pathlib import Path

WORKLOAD = """
import os, pathlib, signal, time
import torch
from adan_bench import Scale, Task, workload

@workload("{name}", metric="m", higher_is_better=True, {scales})
def build(context):
    model, steps = torch.nn.Linear(1, 1), []
    {built}
    def loss(model, batch):
        steps.append(batch)
        {loss}
        return model(torch.ones(1, 1)).sum()
    return Task(model, lambda position: position, loss, lambda model: {{"m": {metric}}})
"""


def one_weight(
    path: Path,
    name: str,
    built: str = "",
    loss: str = "",
    metric: str = "1.0",
    scales: str = "smoke=Scale(1, 4, 1)",
) -> Path:
    """Writes a script with what happens where its task is built and where a loss is computed."""
    path.write_text(WORKLOAD.format(name=name, scales=scales, built=built, loss=loss, metric=metric), encoding="utf-8")
    return path


def renamed(tiny: Path, path: Path, name: str, *changes: tuple[str, str]) -> Path:
    """Writes the script of the tiny workload with another name of it, and with what else is to be replaced."""
    text = tiny.read_text(encoding="utf-8")
    for old, new in (('"tiny"', f'"{name}"'), *changes):
        assert old in text, old
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    return path
