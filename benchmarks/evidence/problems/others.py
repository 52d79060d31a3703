"""A graph network, a detector, and workloads of the harness as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from evidence import models
from evidence.problems.problem import Problem, Setup, harness_task


def cora(setup: Setup, layers: int = 14, channels: int = 64) -> Problem:
    """DeeperGCN on the citations of Cora, with the public split: a step sees the whole graph and 140 labels."""
    folder, device = setup.cache / "data" / "graphs" / "cora", setup.device
    with np.load(folder / "features.npz") as matrix:
        words = np.zeros(matrix["shape"], np.float32)
        words[np.repeat(np.arange(len(words)), np.diff(matrix["indptr"])), matrix["indices"]] = matrix["data"]
    x = torch.from_numpy(words / words.sum(1, keepdims=True).clip(min=1)).to(device)
    one_way = torch.from_numpy(np.loadtxt(folder / "edges.csv", int, delimiter=",", skiprows=1).T.copy())
    rows = [line.split(",") for line in (folder / "nodes.csv").read_text(encoding="utf-8").split()[1:]]
    labels = torch.tensor([int(label) for _, label, _ in rows], device=device)

    def chosen(name: str) -> Tensor:
        return torch.tensor([i for i, row in enumerate(rows) if row[2] == name], device=device)

    train, held_out = chosen("train"), chosen("valid" if setup.tuning else "test")
    model = models.DeepGCN(
        torch.cat([one_way, one_way.flip(0)], 1), x.shape[1], channels, layers, int(labels.max()) + 1
    )

    def loss(step: Tensor) -> Tensor:
        return F.cross_entropy(model(x).index_select(0, train), labels.index_select(0, train))

    def evaluate() -> Mapping[str, float]:
        logits, answers = model(x)[held_out], labels[held_out]
        accuracy = (logits.argmax(1) == answers).float().mean().item()
        return {"accuracy": accuracy, "loss": F.cross_entropy(logits, answers).item()}

    note = f"Cora, public split: {len(train)} of {len(rows):,} nodes to train, {len(held_out):,} held out"
    return Problem(model, loss, evaluate, "accuracy", True, 1, note, compiles=False, bf16=False)


def detr(setup: Setup, batch_size: int = 16, scale: str = "small", size: tuple[int, int] = (320, 240)) -> Problem:
    """The harness's Deformable-DETR on photographs of blood cells, scaled to a size in pixels.

    Trials hold out every sixth of the photographs that train, and look at the loss on them: the average precision says
    little where it is near zero.
    """
    from adan_bench.data.batching import moved, prepared
    from adan_bench.data.coco import blood_cells
    from adan_bench.task import Context
    from adan_bench.workloads.deformable_detr import detection, with_targets
    from adan_bench.workloads.registry import get_workload

    sizes = get_workload("deformable-detr", scale).scales[scale].sizes
    context = Context(setup.seed, batch_size, setup.cache / "data", str(setup.device), scale, sizes=sizes)
    train, held_out = blood_cells(context, (size[0], size[1]))
    if setup.tuning:
        apart = train.ids[::6]
        train, held_out = train.subset(sorted({*train.ids} - {*apart})), train.subset(apart)
    note = (
        f"BCCD: {len(train.ids)} photographs of blood cells to train, {size[0]}×{size[1]} pixels, mirrored by a fair "
        f"coin; {len(held_out.ids)} held out{' of the training split' if setup.tuning else ''}"
    )
    task = detection(context, train, held_out, note)
    count = min(batch_size, len(held_out.ids))
    judged = with_targets(held_out, replace(context, batch_size=count))

    def evaluate() -> Mapping[str, float]:
        values = dict(task.evaluate(task.model))
        if setup.tuning:
            batches = [moved(judged(i), setup.device) for i in range(len(held_out.ids) // count)]
            values["loss"] = sum(task.loss(task.model, batch).item() for batch in batches) / len(batches)
        return values

    def loss(step: Tensor) -> Tensor:
        return task.loss(task.model, prepared(task, int(step.item()), setup.device))

    return Problem(
        task.model,
        loss,
        evaluate,
        "loss" if setup.tuning else "box AP",
        not setup.tuning,
        len(train.ids) // batch_size,
        task.note,
        max_grad_norm=task.max_grad_norm,
        decay_all=True,
        captures=False,
        bf16=False,
        groups=task.groups,
    )


def harness(
    setup: Setup,
    workload: str,
    scale: str,
    batch_size: int,
    schedule: str,
    warmup: float,
) -> Problem:
    """A workload of `adan_bench` as it is."""
    from adan_bench.data.batching import prepared
    from adan_bench.workloads.registry import get_workload

    definition = get_workload(workload, scale)
    task = harness_task(setup, workload, scale, batch_size)

    def loss(step: Tensor) -> Tensor:
        return task.loss(task.model, prepared(task, int(step.item()), setup.device))

    return Problem(
        task.model,
        loss,
        lambda: task.evaluate(task.model),
        definition.metric,
        definition.higher_is_better,
        1,
        task.note,
        max_grad_norm=task.max_grad_norm,
        decay_all=True,
        captures=False,
        bf16=False,
        schedule=schedule,
        warmup=warmup,
        stream=task.batches if hasattr(task.batches, "state_dict") else None,
    )
