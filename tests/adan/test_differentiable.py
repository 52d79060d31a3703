"""Gradients of a step itself: with respect to the learning rate, in every form of weight decay."""

import pytest
import torch

from adan import Adan

OPTIONS = [
    {"weight_decay": 0.3},
    {"weight_decay": 0.3, "no_prox": True},
    {"no_prox": True, "max_grad_norm": 0.5},
    {"weight_decay": 0.3, "no_prox": True, "bias_correction": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_gradient_of_the_learning_rate(options):
    """A user who learns the rate by `differentiable=True, no_prox=True` got an error from autograd in backward."""

    def loss(lr):
        p = torch.linspace(-1, 1, 5, dtype=torch.float64).requires_grad_().clone()
        opt = Adan([p], lr=lr, betas=(0.9, 0.8, 0.95), differentiable=True, **options)
        for k in range(3):
            p.grad = torch.linspace(0, 1, 5, dtype=torch.float64) + k
            opt.step()
        return p.square().sum()

    assert torch.autograd.gradcheck(loss, torch.tensor(0.1, dtype=torch.float64, requires_grad=True))
