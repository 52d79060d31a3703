"""The task of an image classifier: batches under a training setting, the loss, top-1 accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import adan
from adan_bench.data.augment import applied, box_noise, drawn, loss_of
from adan_bench.data.images import ImageData
from adan_bench.data.settings import Setting
from adan_bench.task import Context, Settings, Task


def classification_task(model: nn.Module, data: ImageData, context: Context, setting: Setting) -> Task:
    """A model of transformers, or any other whose result has `logits`, on labeled images."""
    measure = loss_of(setting)
    noise = box_noise(setting, data.channels * data.size**2, context.device)

    def batches(position: int) -> Any:
        return data.batches(position), drawn(setting, context.batch_size, data.size, (context.seed, position))

    def prepare(batch: Any) -> tuple[Tensor, Tensor]:
        images, labels = data.gather(*batch[0])
        return applied(data.normal(images), labels, data.classes, setting, batch[1], noise)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return measure(model(batch[0]).logits.float(), batch[1])

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        right = wrong = torch.zeros((), device=context.device)
        count = 0
        for pair in data.held_out():
            images, labels = (tensor.to(context.device) for tensor in pair)
            logits = model(data.normal(images)).logits.float()
            right = right + (logits.argmax(1) == labels).sum()
            wrong = wrong + F.cross_entropy(logits, labels, reduction="sum")
            count += len(labels)
        return {"accuracy": right.item() / count, "loss": wrong.item() / count}

    return Task(model, batches, loss, evaluate, note=f"{data.note}; {setting.words()}", prepare=prepare)


def without_decay(model: nn.Module, settings: Settings) -> list[dict[str, Any]]:
    """Two groups, as the official settings have them: biases, norms and embeddings of position do not decay."""
    return adan.parameter_groups(model, settings.get("weight_decay", 0.0), named=False)
