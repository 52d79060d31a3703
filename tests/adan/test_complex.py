"""Complex parameters are pairs of real ones, in memory with gaps and through every conversion of a state."""

import pytest
import torch

from adan import Adan

OPTIONS = {"lr": 0.05, "betas": (0.9, 0.8, 0.95), "weight_decay": 0.1}


def start(n=6):
    return torch.complex(torch.linspace(-1, 1, n), torch.linspace(2, 1, n))


def grad(k, n=6):
    return torch.complex(torch.linspace(0, 1, n) - k, torch.linspace(-3, 1, n) * (k + 1))


def steps(opt, p, ks):
    for k in ks:
        p.grad = grad(k)
        opt.step()


@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 1.0, "foreach": False, "fused": False}], ids=str)
def test_a_complex_parameter_with_gaps(options):
    """A user with a sliced complex parameter lost the imaginary part of every average at every step."""
    dense = start().requires_grad_()
    sliced = torch.zeros(12, dtype=torch.complex64)[::2].copy_(dense.detach()).requires_grad_()
    opts = [Adan([p], **OPTIONS, **options) for p in (dense, sliced)]
    for opt, p in zip(opts, (dense, sliced), strict=True):
        steps(opt, p, range(4))
    torch.testing.assert_close(sliced, dense)
    for name, value in opts[0].state[dense].items():
        torch.testing.assert_close(opts[1].state[sliced][name], value)


def test_a_checkpoint_of_the_authors_becomes_coupled():
    """The one average of equal betas is that of complex numbers, too."""
    p = start().requires_grad_()
    opt = Adan([p], **OPTIONS)
    steps(opt, p, range(3))
    m, v = (opt.state[p][name].clone() for name in ("exp_avg", "exp_avg_diff"))
    saved = opt.state_dict()
    del saved["param_groups"][0]["coupled"]
    saved["param_groups"][0]["betas"] = (0.9, 0.9, 0.95)
    saved["state"][0]["neg_pre_grad"] = -saved["state"][0].pop("prev_grad")
    opt = Adan([p], **{**OPTIONS, "betas": (0.9, 0.9, 0.95)})
    opt.load_state_dict(saved)
    torch.testing.assert_close(opt.state[p]["exp_avg"], m + 0.9 * v)


def test_a_complex_parameter_becomes_double(engine):
    """`model.to(torch.complex128)` in mid-run keeps both parts of the states."""
    p = start().requires_grad_()
    opt = Adan([p], **OPTIONS, **engine)
    steps(opt, p, range(3))
    before = opt.state[p]["exp_avg"].clone()
    p.data = p.data.to(torch.complex128)
    p.grad = torch.zeros_like(p)
    opt.step()
    torch.testing.assert_close(opt.state[p]["exp_avg"], 0.9 * before.to(torch.complex128))
