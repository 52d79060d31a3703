"""Tasks of image classifiers: batches under a training setting, the loss, top-1 accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

import adan
from adan_bench.data.augment import applied, box_noise, drawn, loss_of
from adan_bench.data.images import ImageData, cifar10, digits, image_data
from adan_bench.data.settings import PLAIN, Setting
from adan_bench.errors import UsageError
from adan_bench.task import Context, Settings, Task
from adan_bench.workloads.images import SMOOTHED, ImageSizes, Model
from adan_bench.workloads.parts.networks import BUILDERS, resnet, vit_sizes
from adan_bench.workloads.parts.transformer import SmallConvNeXt, ViT


def classification_task(model: nn.Module, data: ImageData, context: Context, setting: Setting) -> Task:
    """A model on labeled images: one of transformers, whose result has `logits`, or one whose result they are."""
    measure, own = loss_of(setting), context.own()
    if setting.mixup and context.ranks > 1 and context.batch_size % (2 * context.ranks):
        raise UsageError(
            f"{context.batch_size} images at a time on {context.ranks} ranks: they are mixed in pairs; give a "
            f"--batch-size and --accumulate whose ratio is a multiple of {2 * context.ranks}"
        )
    noise = box_noise(setting, data.channels * data.size**2, context.device)

    def batches(position: int) -> Any:
        return data.batches(position), drawn(setting, context.batch_size, data.size, (context.seed, position), own)

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


def published(context: Context, model: Model) -> Task:
    """A model of the paper's tables, with options of the run in place of its own."""
    setting = replace(model.setting, **context.training)
    on_cifar = context.scale == "paper" and not model.imagenet
    data = cifar10(context, setting) if on_cifar else image_data(context, setting)
    network = BUILDERS[model.family](setting, context.sizes, data)
    task = classification_task(network, data, context, setting)
    task.max_grad_norm = setting.max_grad_norm
    task.groups = None if setting.decay_all else without_decay
    return task


def cifar_vit(context: Context) -> Task:
    data = image_data(context, SMOOTHED)
    model = ViT(context.sizes, data.size, data.channels, data.classes)
    if context.init is not None:
        begin(model, context)
    task = classification_task(model, data, context, SMOOTHED)
    task.max_grad_norm, task.groups = 1.0, without_decay
    return task


def begin(model: ViT, context: Context) -> None:
    """Load the weights of another run of this model, or an autoencoder's encoder, to which the head is new."""
    weights, prefix = context.weights(), "encoder."
    encoder = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    own = {name: value for name, value in model.state_dict().items() if name.startswith("head.")}
    wrong = "these are not the weights of this ViT ({}); name a run of cifar-mae or cifar-vit at the same scale"
    context.load(model, {**own, **encoder} if encoder else weights, wrong)


def cifar_convnext(context: Context) -> Task:
    data = image_data(context, SMOOTHED)
    task = classification_task(SmallConvNeXt(context.sizes, data.channels, data.classes), data, context, SMOOTHED)
    task.groups = without_decay
    return task


def digits_resnet(context: Context) -> Task:
    data = digits(context)
    return classification_task(resnet([16, 32, 64], [1, 1, 1], data), data, context, PLAIN)


def digits_vit(context: Context) -> Task:
    data, sizes = digits(context), ImageSizes(48, (3,), patch=2, window=0, head=12, deviation=0.02)
    shape = {**vit_sizes(sizes, data), "intermediate_size": 96, "layer_norm_eps": 1e-12}
    config = transformers.ViTConfig(num_labels=data.classes, **shape)
    return classification_task(transformers.ViTForImageClassification(config), data, context, PLAIN)
