"""Combinations that each work alone: mixed scalars under consume and clip, lazy modules, no parameters at all."""

import numpy as np
import pytest
import torch
from support.parity import Row

from adan import Adan


def test_scalars_of_two_types_consumed_and_clipped(engine):
    """A user with an fp64 temperature beside an fp32 scale got "expected dtype float for `end`" from foreach."""
    row = Row("scalars", {"consume_grad": True, "max_grad_norm": 0.5})
    params = [torch.tensor(1.0, requires_grad=True), torch.tensor(2.0, dtype=torch.float64, requires_grad=True)]
    opt, oracle = row.optimizer(params, 0.05, **engine), row.oracle([np.ones(()), 2 * np.ones(())], 0.05)
    for k in range(5):
        for p in params:
            p.grad = torch.full_like(p, 1.0 - k)
        opt.step()
        oracle.step([np.full((), 1.0 - k)] * 2)
    for p, theta in zip(params, oracle.theta, strict=True):
        assert p.item() == pytest.approx(float(theta), abs=1e-5)


def test_lazy_parameters_can_be_shown_and_trained():
    """A user who printed an optimizer of a lazy module before its first batch got an error about is_contiguous."""
    model = torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.Linear(3, 1))
    opt = Adan(model.parameters())
    text = repr(opt)
    assert "Engines:" in text
    assert "States:" in text
    model(torch.ones(2, 4)).sum().backward()
    opt.step()
    assert opt.state[model[0].weight]["step"] == 1
    assert "uninitialized" not in repr(opt)


@pytest.mark.parametrize("params", [None, 3], ids=str)
def test_what_is_no_list_of_parameters(params):
    """`Adan(None)` said that NoneType is not iterable, and not what to pass."""
    with pytest.raises(TypeError, match=r"Adan: params must be an iterable such as model\.parameters\(\), got"):
        Adan(params)
