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
    """A model on labeled images: one of transformers, whose result has `logits`, or one whose result they are."""
    measure = loss_of(setting)
    noise = box_noise(setting, data.channels * data.size**2, context.device)

    def batches(position: int) -> Any:
        return data.batches(position), drawn(setting, context.batch_size, data.size, (context.seed, position))

    def prepare(batch: Any) -> tuple[Tensor, Tensor]:
        images, labels = data.gather(*batch[0])
        return applied(images, labels, data.classes, setting, batch[1], noise)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return measure(_logits(model(batch[0])), batch[1])

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        right = wrong = torch.zeros((), device=context.device)
        count = 0
        for pair in data.held_out():
            images, labels = (tensor.to(context.device) for tensor in pair)
            logits = _logits(model(data.normal(images)))
            right = right + (logits.argmax(1) == labels).sum()
            wrong = wrong + F.cross_entropy(logits, labels, reduction="sum")
            count += len(labels)
        return {"accuracy": right.item() / count, "loss": wrong.item() / count}

    return Task(model, batches, loss, evaluate, note=f"{data.note}; {setting.words()}", prepare=prepare)


def _logits(output: Any) -> Tensor:
    logits: Tensor = output if isinstance(output, Tensor) else output.logits
    return logits.float()


def without_decay(model: nn.Module, settings: Settings) -> list[dict[str, Any]]:
    """Two groups, as the official settings have them: biases, norms and embeddings of position do not decay."""
    return adan.parameter_groups(model, settings.get("weight_decay", 0.0), named=False)
