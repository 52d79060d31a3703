"""A training loop with accelerate and Adan: gradient accumulation, clipping, and resuming from a saved state.

$ python examples/accelerate_loop.py
$ torchrun --nproc-per-node 2 examples/accelerate_loop.py
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from adan import Adan

try:
    from accelerate import Accelerator
    from sklearn.datasets import load_digits
except ModuleNotFoundError as error:
    raise SystemExit(f"{error.name} is missing; run: pip install '.[examples]'") from None


class Run:
    def __init__(self) -> None:
        torch.manual_seed(0)
        images, labels = load_digits(return_X_y=True)
        data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
        model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10))
        optimizer = Adan(model.parameters(), lr=1e-2, betas=(0.9, 0.92, 0.99), weight_decay=0.02)
        self.accelerator = Accelerator(gradient_accumulation_steps=2, cpu=not torch.cuda.is_available())
        self.model, self.optimizer, self.batches = self.accelerator.prepare(
            model, optimizer, DataLoader(data, batch_size=16)
        )

    def epochs(self, count: int) -> float:
        for _ in range(count):
            correct = []
            for images, labels in self.batches:
                with self.accelerator.accumulate(self.model):
                    output = self.model(images)
                    self.accelerator.backward(nn.functional.cross_entropy(output, labels))
                    if self.accelerator.sync_gradients:
                        self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                correct.append((output.argmax(1) == labels).float().mean())
        return torch.stack(correct).mean().item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--out", default="runs/accelerate")
    args = parser.parse_args()
    first, second = Run(), Run()
    first.epochs(args.epochs)
    first.accelerator.save_state(args.out)
    first.accelerator.wait_for_everyone()
    second.accelerator.load_state(args.out)
    accuracy = first.epochs(args.epochs)
    second.epochs(args.epochs)
    a, b = (nn.utils.parameters_to_vector(run.model.parameters()) for run in (first, second))
    name, kind = type(first.optimizer.optimizer).__name__, first.accelerator.distributed_type.value
    first.accelerator.print(f"{name}, {kind}: accuracy {accuracy:.3f}, resumed differs by {(a - b).abs().max()}")
