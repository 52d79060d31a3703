"""Forward, backward and Adan's step compiled as one function by torch.compile, compared with eager training.

$ python examples/compiled_step.py
"""

import argparse
from collections.abc import Callable

import torch
from torch import nn

from adan import Adan

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def train(steps: int, compiler: Callable[..., Callable[..., torch.Tensor]]) -> tuple[torch.Tensor, float]:
    """All parameters after training, and the last loss."""
    torch.manual_seed(0)
    inputs = torch.randn(steps, 128, 64, device=DEVICE)
    labels = (inputs @ torch.randn(64, 10, device=DEVICE)).argmax(2)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10)).to(DEVICE)
    # A learning rate that is a number would be compiled in as a constant; a tensor can change at every step.
    rate = torch.zeros((), device=DEVICE)
    optimizer = Adan(model.parameters(), lr=rate, betas=(0.9, 0.92, 0.99), weight_decay=0.02, capturable=True)

    @compiler
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    for k in range(steps):
        rate.fill_(1e-2 * min(1, (k + 1) / 10))
        loss = step(inputs[k], labels[k])
    return nn.utils.parameters_to_vector(model.parameters()), loss.item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    eager, _ = train(args.steps, lambda step: step)
    compiled, loss = train(args.steps, torch.compile)
    print(f"loss {loss:.3f}, compiled differs by {(eager - compiled).abs().max():.1e}")
