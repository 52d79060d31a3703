"""Runs of more than 2²⁴ steps, where an fp32 count ends."""

import copy

import pytest
import torch

from adan import Adan

END = 2**24


def make(engine, **options):
    p = torch.ones(257, dtype=torch.bfloat16).requires_grad_()
    opt = Adan([p], lr=1e-3, betas=(0.9, 0.8, 0.95), stochastic_rounding=True, **engine, **options)
    p.grad = torch.ones_like(p)
    opt.step()
    return p, opt


@pytest.mark.parametrize("options", [{}, {"capturable": True}], ids=str)
def test_the_count_goes_on(engine, options):
    """The count of a long run froze, and checkpoints said 16,777,216 from there on."""
    p, opt = make(engine, **options)
    opt.state[p]["step"].fill_(END - 1)
    for k in range(4):
        assert opt.state[p]["step"].item() == END - 1 + k
        opt.step()
    saved = copy.deepcopy(opt.state_dict())
    other = Adan([p], **engine, **options)
    other.load_state_dict(saved)
    assert other.state[p]["step"].item() == END + 3


def test_random_bits_go_on(engine):
    """Stochastic rounding drew the same bits at every step from there on, so that its errors added up."""
    p, opt = make(engine)
    # What a long run of the same gradient comes to: every step is the same but for its random bits.
    for name, value in (("exp_avg", 1), ("exp_avg_diff", 0), ("exp_avg_sq", 1), ("prev_grad", 1), ("step", END)):
        opt.state[p][name].fill_(value)
    patterns = []
    for _ in range(4):
        p.data.fill_(1.0)  # where the next smaller number is 0.9961: of a step of 1e-3 a quarter is rounded to it
        opt.step()
        patterns.append((p < 1).tolist())
        assert 20 < sum(patterns[-1]) < 120
    assert all(a != b for i, a in enumerate(patterns) for b in patterns[:i])
