"""What the scale "paper" takes: the tables of docs/reproduce.md and of docs/paper-settings.md.

A command, data, devices and hours for each table of the paper; and all runs that are planned, each with its source.

Hours are estimates, of training alone: an example of a model takes as long as one of the nearest model that was
measured on an H200 in bf16 (results/reproduce/small-step-time.json), times the ratio of their multiply-adds. Two
workloads were measured themselves, by runs that shared a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import read
from stored import studies

from adan_bench.config import RunConfig
from adan_bench.reports.conclusions import described
from adan_bench.reports.html import markdown_table
from adan_bench.studies.plan import PaperPlan, PlannedCell, plan
from adan_bench.tables import PaperTable, tables
from adan_bench.task import SCALES
from adan_bench.workloads.registry import get_workload

#: Multiply-adds of a forward pass, in billions for an example, of the models that were measured, 128 images at a time
#: or 8 sequences of 1,024 tokens. Here and below images as the models' papers state them, text: active parameters ×
#: tokens.
MEASURED = {"ResNet-50": 4.1, "ViT-B": 17.6, "Swin-B": 15.4, "ConvNeXt-B": 15.4, "GPT-2-670M": 0.67 * 1024}
#: Those of a workload's model, and the nearest measured one. The pre-training of MAE: a quarter of the patches for the
#: encoder, all for a decoder of 8 layers of width 512.
MODELS = {
    "resnet18": (1.8, "ResNet-50"),
    "resnet50": (4.1, "ResNet-50"),
    "resnet101": (7.8, "ResNet-50"),
    "convnext-t": (4.5, "ConvNeXt-B"),
    "convnext-s": (8.7, "ConvNeXt-B"),
    "vit-s": (4.6, "ViT-B"),
    "vit-s-setting-i": (4.6, "ViT-B"),
    "vit-b": (17.6, "ViT-B"),
    "swin-t": (4.5, "Swin-B"),
    "swin-s": (8.7, "Swin-B"),
    "swin-b": (15.4, "Swin-B"),
    "mae-pretrain-vit-b": (17.6 / 4 + 5.2, "ViT-B"),
    "mae-pretrain-vit-l": (61.6 / 4 + 5.2, "ViT-B"),
    "mae-finetune-vit-b": (17.6, "ViT-B"),
    "mae-finetune-vit-l": (61.6, "ViT-B"),
    "deformable-detr": (173.0, "ResNet-50"),
    "mask-rcnn": (262.0, "ConvNeXt-B"),
    "bert-pretrain": (0.12 * 512, "GPT-2-670M"),
    "gpt2-code": (0.35 * 2048, "GPT-2-670M"),
    "transformer-xl": (0.05 * 150, "GPT-2-670M"),
    "moe": (0.15 * 2048, "GPT-2-670M"),
    "moe-8x0.3b": (0.57 * 2048, "GPT-2-670M"),
    "moe-8x0.6b": (1.11 * 2048, "GPT-2-670M"),
}
GLUE = (0.09 * 64, "GPT-2-670M")  # sentences have about 64 tokens
#: Workloads measured themselves: the study, and the ratio of the weights of two and three layers to one.
RUNS = {
    "cifar-resnet34": ("resnet34-200", 1.0),
    "lstm-1": ("lstm-200", 1.0),
    "lstm-2": ("lstm-200", 2.6),
    "lstm-3": ("lstm-200", 4.6),
}
#: What a table needs beside the rest: weights to start from, micro-batches that fit on a GPU of 80 GB, consent.
MORE = {
    "batch-size": "--accumulate 4",
    "deformable-detr": "--init resnet50.pth",
    "mask-rcnn": "--init convnext_tiny.pth",
    "gpt2": "--accumulate 10 --yes-run-generated-code",
    "moe": "--accumulate 4",
}
RANKS = (8, 4, 2, 1)


def table() -> str:
    """A line for each table of the paper that trains."""
    rows = [_line(found) for found in tables().values() if found.kind == "train"]
    return markdown_table(["", "command", "data", "runs", "GPU hours"], rows, 3)


def _line(found: PaperTable) -> list[str]:
    ranks, planned = next((ranks, whole) for ranks in RANKS if (whole := _planned(found, ranks)) is not None)
    configs = [*planned.runs.values()]
    ranks = 1 if all((_hours(config) or 0) < 1 for config in configs) else ranks  # short ones are made side by side
    data = sorted({need.split("/")[0] for c in configs for need in get_workload(c.workload, SCALES[-1]).needs})
    hours = [_hours(config) for config in configs]
    known = sum(hour for hour in hours if hour is not None)
    said = f"{float(f'{known:.2g}'):,.0f}" if all(hour is not None for hour in hours) else "not estimated"
    shared = f"--ranks {ranks}" if ranks > 1 else "--jobs 8"
    command = " ".join(["reproduce", found.name, shared, *([MORE[found.name]] if found.name in MORE else [])])
    names = ", ".join(f"`{name}`" for name in data)
    return [f"{found.place}: {found.title}", f"`{command}`", names, f"{len(configs):,}", said]


def _planned(found: PaperTable, ranks: int) -> PaperPlan | None:
    """The plan, unless so many ranks cannot share a run of the table."""
    parallel: dict[str, Any] = {"ranks": ranks, "parallel": "ddp" if ranks > 1 else None}
    whole = plan([found], RunConfig(scale=SCALES[-1], **parallel), Path("runs"))
    return None if any(cell.absent for cell in whole.cells) else whole


def _hours(config: RunConfig) -> float | None:
    steps = config.stop_after or config.steps
    if config.workload in RUNS:
        name, ratio = RUNS[config.workload]
        run = studies()[name].groups[0].first
        assert run.result is not None
        seconds: float = run.result["seconds"] / run.config.jobs / run.result["step"]
        return ratio * seconds * steps / 3600
    model = GLUE if config.workload.startswith("glue-") else MODELS.get(config.workload)
    if model is None:
        return None
    work, nearest = model
    cells = read("reproduce/small-step-time.json")["tables"][0]["cells"]
    step: float
    (step,) = (cell["values"][0] for cell in cells if (cell["row"], cell["column"]) == ("Adan", f"{nearest}, ms"))
    examples = steps * config.batch_size  # of all gradients: SAM's are two for an update
    return examples * work / MEASURED[nearest] * step / (8 if "GPT" in nearest else 128) / 1000 / 3600


def settings() -> str:
    """A section for each table of the paper that trains."""
    return "\n\n".join(_section(table) for table in tables().values() if table.kind == "train")


def _section(table: PaperTable) -> str:
    title = f"## {table.place}: {table.title}\n\n"
    if table.like and table.curves:  # a figure of their runs
        places = " and ".join(tables()[name].place for name in table.like)
        return f"{title}The runs, and so the settings, are those of {places}."
    cells = [cell for cell in plan([table], RunConfig(scale=SCALES[-1]), Path("runs")).cells if cell.runs]
    rows: dict[tuple[str, ...], list[str]] = {}
    for cell in cells:
        for before, config in _runs(cell):
            guesses = {"floor" if name == "min_lr" else name for name in config.origin.guesses}
            words = [f"*{text}*" if name in guesses else text for name, text in described(config).items()]
            texts = (cell.row.head, before, ", ".join(words), config.origin.source)
            rows.setdefault(texts, []).append(cell.column.head)
    heads = list(dict.fromkeys(cell.column.head for cell in cells))
    sources = list(dict.fromkeys(source for *_, source in rows))
    lines = []
    for (name, before, run, source), columns in rows.items():
        problem = "all" if columns == heads and len(heads) > 1 else ", ".join(dict.fromkeys(columns))
        line = (name, f"{before} before: {problem}" if before else problem, run, str(sources.index(source) + 1))
        lines.append([text.replace("|", "\\|") for text in line])
    text = markdown_table(["optimizer", "problem", "run", "source"], lines, left=4)
    notes = [f"{at}. " + re.sub(r"(?<!\w)_", r"\_", source) for at, source in enumerate(sources, 1)]
    return "\n".join([title + text, "", *notes])


def _runs(cell: PlannedCell) -> Iterator[tuple[str, RunConfig]]:
    """The pre-training of a cell's runs under its workload's name, where there is one, and the run itself."""
    assert cell.arm is not None
    if cell.arm.start is not None:
        yield cell.arm.start.base.workload, cell.arm.start.base
    settings = {"restart": "by a pilot run"} if cell.row.restart else {}
    config = cell.arm.base
    if rates := cell.table.published(config.optimizer, config.workload, cell.column).rates:
        settings["lr"] = f"of {', '.join(f'{rate:g}' for rate in rates)} by trials"
    yield "", replace(config, init=None, settings={**config.settings, **settings})
