"""The program of docs/algorithm.md: decay that shrinks by 1 − μ at every step, and the mean of the iterates."""

import re
from pathlib import Path

import pytest
import torch

import adan

PAGE = Path(__file__).parents[2] / "docs" / "algorithm.md"
STEPS, MU, LR, DECAY, EPS = 12, 0.3, 1e-3, 0.02, 1e-8
B1, B2, B3 = 0.98, 0.92, 0.99


def gradient(theta: torch.Tensor, k: int) -> torch.Tensor:
    return theta - torch.linspace(-1.0, 1.0, theta.numel(), dtype=theta.dtype) * (k + 1)


def oracle(theta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The last iterate and the mean of all, with the decay's schedule written out."""
    m = v = n = torch.zeros_like(theta)
    iterates, before = [], None
    for k in range(STEPS):
        g = gradient(theta, k)
        d = torch.zeros_like(g) if before is None else g - before
        m, v = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * d
        n = B3 * n + (1 - B3) * (g + B2 * d) ** 2
        t, decay = k + 1, 1000 * DECAY * (1 - MU) ** k
        u = m / (1 - B1**t) + B2 * v / (1 - B2**t)
        theta = (theta - LR * u / ((n / (1 - B3**t)).sqrt() + EPS)) / (1 + LR * decay)
        iterates.append(theta)
        before = g
    return theta, torch.stack(iterates).mean(0)


def test_the_program_of_the_page() -> None:
    program = re.search(
        r"## The rest of Algorithm 1.*?```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    assert program is not None
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 1, bias=False, dtype=torch.float64)
    last, mean = oracle(model.weight.detach()[0].clone())

    def loss(model: torch.nn.Module, k: int) -> torch.Tensor:
        weight = model.weight[0]
        return (weight * gradient(weight.detach(), k)).sum()

    # A decay of 0.02 would change nothing that a test can see: 1,000 times as much.
    text = program[1].replace("weight_decay=0.02", f"weight_decay={1000 * DECAY}")
    names = {"adan": adan, "model": model, "batches": range(STEPS), "loss": loss, "mu": MU}
    exec(text, names)
    torch.testing.assert_close(model.weight.detach()[0], last, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(names["average"].module.weight.detach()[0], mean, rtol=1e-12, atol=1e-14)
    assert names["optimizer"].param_groups[0]["weight_decay"] == pytest.approx(1000 * DECAY * (1 - MU) ** STEPS)
