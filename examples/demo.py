"""Train a small vision transformer on scikit-learn's handwritten digits with Adan, AdamW and SGD: `make demo`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

import adan

STEPS, BATCH, SEEDS = 600, 64, (0, 1)
Make = Callable[[nn.Module], torch.optim.Optimizer]

#: Learning rates of the usual size for each; nothing here was tuned to this task.
OPTIMIZERS: dict[str, Make] = {
    "Adan": lambda model: adan.Adan(adan.parameter_groups(model, 0.02), lr=3e-3, betas=(0.9, 0.92, 0.99)),
    "AdamW": lambda model: torch.optim.AdamW(adan.parameter_groups(model, 0.05), lr=1e-3),
    "SGD": lambda model: torch.optim.SGD(adan.parameter_groups(model, 1e-4), lr=3e-2, momentum=0.9),
}


class DigitTransformer(nn.Module):
    """A vision transformer over the sixteen 2×2 patches of an 8×8 digit."""

    def __init__(self, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, width, kernel_size=2, stride=2)
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 16, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 10))

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.embed(images).flatten(2).transpose(1, 2) + self.pos_embed
        return self.head(self.layers(tokens).mean(1))


def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    digits = load_digits()
    images = torch.tensor(digits.images / 8 - 1, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]
    return images[train], labels[train], images[test], labels[test]


def train(make: Make, seed: int, tick: Callable[[float], None]) -> tuple[list[tuple[int, float, float]], float]:
    images, labels, test_images, test_labels = data()
    torch.manual_seed(seed)
    model = DigitTransformer()
    optimizer = make(model)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=STEPS // 20)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS - STEPS // 20)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], [STEPS // 20])
    curve, loss_sum, clock = [], 0.0, 0.0
    for step in range(1, STEPS + 1):
        batch = torch.randint(len(labels), (BATCH,))
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        schedule.step()
        clock += time.perf_counter() - begin
        loss_sum += loss.item()
        tick(loss.item())
        if step % 25 == 0:
            model.eval()
            with torch.no_grad():
                accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
            model.train()
            curve.append((step, loss_sum / 25, accuracy))
            loss_sum = 0.0
    return curve, clock


def main() -> None:
    console = Console()
    curves: dict[str, list[list[tuple[int, float, float]]]] = {name: [] for name in OPTIMIZERS}
    seconds = dict.fromkeys(OPTIMIZERS, 0.0)
    text = TextColumn("{task.description}")
    with Progress(text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console) as progress:
        for name, make in OPTIMIZERS.items():
            task = progress.add_task(name, total=STEPS * len(SEEDS))
            for seed in SEEDS:
                tick = lambda loss, name=name, task=task: progress.update(  # noqa: E731
                    task, advance=1, description=f"{name:5} loss {loss:6.3f}"
                )
                curve, clock = train(make, seed, tick)
                curves[name].append(curve)
                seconds[name] += clock

    table = Table(title=f"Vision transformer on digits, {STEPS} steps of {BATCH}, mean of n = {len(SEEDS)} seeds")
    for column in ("optimizer", "accuracy at a quarter", "at the end", "training loss at the end", "ms a step"):
        table.add_column(column, justify="left" if column == "optimizer" else "right")
    for name, runs in curves.items():
        quarter = sum(run[len(run) // 4 - 1][2] for run in runs) / len(runs)
        end = sum(run[-1][2] for run in runs) / len(runs)
        loss = sum(run[-1][1] for run in runs) / len(runs)
        ms = 1000 * seconds[name] / (STEPS * len(SEEDS))
        table.add_row(name, f"{quarter:.1%}", f"{end:.1%}", f"{loss:.4f}", f"{ms:.1f}")
    console.print(table)

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for name, colour in zip(curves, ("#D55E00", "#0072B2", "#009E73"), strict=True):
        for i, run in enumerate(curves[name]):
            steps, losses, accuracies = zip(*run, strict=True)
            left.semilogy(steps, losses, color=colour, label=name if i == 0 else None)
            right.plot(steps, [1 - x for x in accuracies], color=colour, label=name if i == 0 else None)
    left.set(title="training loss", xlabel="step")
    right.set(title="test error", xlabel="step", yscale="log")
    left.legend()
    path = Path("runs/demo.png")
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=150)
    console.print(f"The curves, one line a seed: {path}")


if __name__ == "__main__":
    main()
