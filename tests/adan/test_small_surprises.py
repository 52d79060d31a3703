"""Combinations that each work alone: mixed scalars that are clipped, lazy modules, no parameters at all."""

import numpy as np
import pytest
import torch
from support.parity import Row

from adan import Adan


def test_scalars_of_two_types_clipped(engine):
    """A user with an fp64 temperature beside an fp32 scale got "expected dtype float for `end`" from foreach."""
    row = Row("scalars", {"max_grad_norm": 0.5})
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


def test_a_group_is_named_as_the_others_are():
    """Lightning's BackboneFinetuning adds bare parameters to an optimizer whose groups have names."""
    layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(3))
    named = Adan(layers[0].named_parameters())
    named.add_param_group({"params": layers[1].parameters()})
    assert named.param_groups[1]["param_names"] == ["group1.0", "group1.1"]
    bare = Adan(layers[0].parameters())
    bare.add_param_group({"params": layers[2].named_parameters()})
    assert bare.param_groups[1]["params"] == list(layers[2].parameters())
    assert "param_names" not in bare.param_groups[1]


def test_the_same_names_in_another_order_are_refused():
    """A user who swapped two layers of one shape loaded each one's moments into the other."""
    a, b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    opt = Adan(torch.nn.ModuleDict({"a": a, "b": b}).named_parameters())
    a.weight.grad = torch.ones(2, 2)
    opt.step()
    other = Adan(torch.nn.ModuleDict({"b": b, "a": a}).named_parameters())
    with pytest.raises(ValueError, match=r"another order, 'a.weight' at place 0 where the optimizer has 'b.weight'"):
        other.load_state_dict(opt.state_dict())
    assert not other.state
    wrapped = Adan([(f"module.{name}", p) for name, p in torch.nn.ModuleDict({"a": a, "b": b}).named_parameters()])
    wrapped.load_state_dict(opt.state_dict())
    assert wrapped.param_groups[0]["param_names"][0] == "module.a.weight"
    assert wrapped.state[a.weight]["step"] == 1


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("betas", (0.9, 0.999), r"group 1: betas .*\(0\.9, 0\.999\)"),
        ("betas", (0.9, 0.92, 1.0), r"group 1: betas\[2\] must be below 1, got 1.0"),
        ("state_format", "int8", r"group 1: state_format .*'int8'"),
        ("lr", "1e-3", r"group 1: lr .*'1e-3'"),
        ("lr", -1.0, r"group 1: lr must be finite and at least 0, got -1.0"),
        ("lr", torch.tensor(float("nan")), r"group 1: lr must be finite and at least 0, got nan"),
        ("eps", "one", r"group 1: eps .*'one'"),
        ("weight_decay", float("inf"), r"group 1: weight_decay must be finite and at least 0, got inf"),
        ("max_grad_norm", None, r"group 1: max_grad_norm .*None"),
    ],
)
@pytest.mark.parametrize("second", [{}, {"foreach": False, "fused": False}], ids=["one engine", "and the loop"])
def test_an_option_changed_to_a_wrong_value_is_named_by_the_step(engine, second, name, value, message):
    """A user got "not enough values to unpack", and where no fused engine served, after the first group had changed."""
    params = [torch.ones(5_000, requires_grad=True) for _ in range(2)]
    opt = Adan([{"params": [params[0]]}, {"params": [params[1]], **second}], weight_decay=1.0, **engine)
    for p in params:
        p.grad = torch.ones_like(p)
    opt.param_groups[1][name] = value
    with pytest.raises((TypeError, ValueError), match=message):
        opt.step()
    assert all(torch.equal(p, torch.ones_like(p)) for p in params)
