"""CIFAR-10: a ViT, its masked autoencoder, ConvNeXt and ResNet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evidence import models
from evidence.data import VALIDATION, array
from evidence.problems.problem import EVAL_BATCH, Problem, Setup, begin, shuffle, without_cudnn_attention


def vit(
    setup: Setup,
    batch_size: int = 256,
    width: int = 256,
    layers: int = 6,
    heads: int = 4,
    start: str | None = None,
) -> Problem:
    """start: the key of a run of `mae` whose encoder is fine-tuned."""
    without_cudnn_attention()
    model = models.ViT(width, layers, heads)
    begin(model, setup, start, own="head")
    problem = _cifar(setup, model, batch_size, smoothing=0.1, cutout=8)
    problem.max_grad_norm = 1.0
    return problem


def mae(setup: Setup, batch_size: int = 256, width: int = 256, layers: int = 6, heads: int = 4) -> Problem:
    """The ViT pre-trained by drawing three quarters of the patches from the others."""
    without_cudnn_attention()
    encoder = models.ViT(width, layers, heads)
    model = models.MAE(encoder)
    data = Cifar(setup, batch_size, torch.contiguous_format)
    count = len(encoder.pos_embed)
    noise = torch.rand(len(data.held_out), count, generator=torch.Generator().manual_seed(0)).to(setup.device)

    def loss(step: Tensor) -> Tensor:
        images, _ = data.batch(step, cutout=0)
        return model(images, torch.rand(batch_size, count, device=setup.device))

    def evaluate() -> Mapping[str, float]:
        parts = zip(data.held_out.split(EVAL_BATCH), noise.split(EVAL_BATCH), strict=True)
        total = torch.stack([model(data.normal(pixels), order) * len(pixels) for pixels, order in parts]).sum()
        return {"loss": total.item() / len(data.held_out)}

    return Problem(
        model,
        loss,
        evaluate,
        "loss",
        False,
        data.per_epoch,
        data.note(0),
        data.begin_epoch,
        max_grad_norm=1.0,
        handed_over=encoder,
    )


def convnext(setup: Setup, batch_size: int = 256, width: int = 64, depths: tuple[int, ...] = (2, 2, 6, 2)) -> Problem:
    problem = _cifar(setup, models.ConvNeXt(tuple(depths), width), batch_size, smoothing=0.1, cutout=8)
    problem.channels_last = True
    return problem


def resnet34(
    setup: Setup,
    batch_size: int = 128,
    width: int = 64,
    depths: tuple[int, ...] = (3, 4, 6, 3),
    schedule: str = "cosine",
    warmup: float = 0.05,
) -> Problem:
    problem = _cifar(setup, models.ResNet(tuple(depths), width), batch_size, smoothing=0.0, cutout=0)
    return replace(problem, schedule=schedule, warmup=warmup, decay_all=True, channels_last=True)


class Cifar:
    """CIFAR-10 on the device: batches by step, their images shifted by up to 4 pixels and flipped; what is held out."""

    def __init__(self, setup: Setup, batch_size: int, memory_format: torch.memory_format) -> None:
        device = setup.device
        images, labels = (array(setup.cache, f"cifar-train-{part}", device) for part in ("images", "labels"))
        if setup.tuning:
            cut = max(len(images) - VALIDATION, len(images) // 2)
            self.held_out, self.answers, images, labels = images[cut:], labels[cut:], images[:cut], labels[:cut]
        else:
            self.held_out, self.answers = (
                array(setup.cache, f"cifar-test-{part}", device) for part in ("images", "labels")
            )
        self.setup, self.batch_size, self.memory_format = setup, batch_size, memory_format
        self.images, self.labels = images, labels
        self.per_epoch = len(images) // batch_size
        self.order = torch.zeros(len(images), dtype=torch.int64, device=device)
        self.within = torch.arange(batch_size, device=device)
        self.mean, self.std = (
            torch.tensor(values, device=device).view(1, 3, 1, 1)
            for values in ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
        )

    def normal(self, pixels: Tensor) -> Tensor:
        return (pixels.float() / 255 - self.mean) / self.std

    def begin_epoch(self, epoch: int) -> None:
        shuffle(self.order, self.setup.seed, epoch)

    def batch(self, step: Tensor, cutout: int) -> tuple[Tensor, Tensor]:
        chosen = self.order.index_select(0, step % self.per_epoch * self.batch_size + self.within)
        x = augmented(self.normal(self.images.index_select(0, chosen)), 4, cutout)
        return x.contiguous(memory_format=self.memory_format), self.labels.index_select(0, chosen)

    def note(self, cutout: int) -> str:
        return (
            f"CIFAR-10, JPEG copy: {len(self.images):,} images to train, shifted by up to 4 pixels, flipped"
            f"{f', a square of {cutout} pixels cut out' if cutout else ''}; {len(self.held_out):,} held out"
            f"{' of the training split' if self.setup.tuning else ', the test split'}"
        )


def _cifar(setup: Setup, model: nn.Module, batch_size: int, smoothing: float, cutout: int) -> Problem:
    """An image classifier on CIFAR-10. cutout: the side of a square that each image loses."""
    data = Cifar(setup, batch_size, torch.contiguous_format if isinstance(model, models.ViT) else torch.channels_last)

    def loss(step: Tensor) -> Tensor:
        images, labels = data.batch(step, cutout)
        return F.cross_entropy(model(images).float(), labels, label_smoothing=smoothing)

    def evaluate() -> Mapping[str, float]:
        right, total = torch.zeros((), device=setup.device), torch.zeros((), device=setup.device)
        for pixels, answer in zip(data.held_out.split(EVAL_BATCH), data.answers.split(EVAL_BATCH), strict=True):
            logits = model(data.normal(pixels).contiguous(memory_format=data.memory_format)).float()
            right += (logits.argmax(1) == answer).sum()
            total += F.cross_entropy(logits, answer, reduction="sum")
        return {"accuracy": right.item() / len(data.answers), "loss": total.item() / len(data.answers)}

    note = data.note(cutout) + (f"; label smoothing {smoothing}" if smoothing else "")
    return Problem(model, loss, evaluate, "accuracy", True, data.per_epoch, note, data.begin_epoch)


def augmented(images: Tensor, shift: int, cutout: int) -> Tensor:
    """Each image shifted by up to `shift` pixels over zeros, flipped by a fair coin, with a square of zeros."""
    count, channels, height, width = images.shape
    device = images.device
    rows, columns = torch.arange(height, device=device), torch.arange(width, device=device)
    dy, dx = torch.randint(0, 2 * shift + 1, (2, count, 1), device=device)
    flip = torch.randint(0, 2, (count, 1), device=device)
    y = rows + dy
    x = torch.where(flip == 1, width - 1 - columns, columns) + dx
    places = (y.unsqueeze(2) * (width + 2 * shift) + x.unsqueeze(1)).view(count, 1, -1).expand(-1, channels, -1)
    out = F.pad(images, [shift] * 4).flatten(2).gather(2, places).view_as(images)
    if cutout:
        cy, cx = torch.randint(0, height, (2, count, 1), device=device)
        inside_y, inside_x = (
            ((at - c) >= -(cutout // 2)) & ((at - c) < cutout // 2) for at, c in ((rows, cy), (columns, cx))
        )
        out = out.masked_fill((inside_y.unsqueeze(2) & inside_x.unsqueeze(1)).unsqueeze(1), 0.0)
    return out
