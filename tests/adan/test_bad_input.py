"""Bad input gets an error that names what is wrong and how to mend it, and changes nothing."""

import copy

import numpy as np
import pytest
import torch

from adan import Adan

NAN, INF = float("nan"), float("inf")
NUMBERS = ("lr", "eps", "weight_decay", "max_grad_norm")
FLAGS = ("no_prox", "bias_correction", "maximize", "capturable", "differentiable", "skip_nonfinite", "foreach")
SEED = "rounding_seed must be an int from 0 to 2³² − 1, got"
TWO, THREE, LINEAR = torch.zeros(2), torch.zeros(3), torch.nn.Linear(2, 2)
CONJUGATED = torch.ones(2, dtype=torch.complex64).conj()
NO_LIST = r"Adan: params must be an iterable such as model\.parameters\(\), got"
LAZY = r"parameter 0 of shape \(2,\) is a lazily conjugated or negated view"
DICT = r"params is a dict.*\[\{'params'.*\.items\(\)"

#: Options, the error, and what it says.
BAD_OPTIONS = [
    *(
        ({name: value}, ValueError, rf"Adan: {name} must be finite and at least 0, got {value!r}")
        for name in NUMBERS
        for value in (-1e-3, NAN, INF)
    ),
    *(
        ({name: value}, TypeError, f"{name} must be a number")
        for name in NUMBERS
        for value in ("0.1", None, True, [0.1])
    ),
    ({"max_grad_norm": None}, TypeError, "max_grad_norm must be a number, got None.*; 0 turns clipping off"),
    *(({name: "yes"}, TypeError, f"{name} must be .*True or False, got 'yes'") for name in FLAGS),
    *(
        ({name: 0}, TypeError, rf"{name} must be None \(automatic\), True or False, got 0")  # zero is not False
        for name in ("foreach", "fused")
    ),
    ({"betas": (0.9, 0.999)}, ValueError, "three numbers.*suggest_from_adamw"),
    ({"betas": 0.9}, ValueError, "three numbers"),
    ({"betas": (0.9, 0.9, 1.0)}, ValueError, r"betas\[2\] must be below 1, got 1.0"),
    ({"betas": (-0.1, 0.9, 0.9)}, ValueError, r"betas\[0\] must be finite and at least 0, got -0.1"),
    ({"betas": (0.9, NAN, 0.9)}, ValueError, r"betas\[1\]"),
    ({"betas": (0.9, "x", 0.9)}, TypeError, r"betas\[1\] must be a number"),
    ({"betas": (0, 0, 0)}, ValueError, r"betas\[2\] must be above 0, got 0"),
    ({"coupled": True}, ValueError, r"coupled=True needs equal .*got betas=\(0\.98, 0\.92, 0\.99\)"),
    ({"betas": (0.9, 0.9, 0.99), "coupled": 0.5}, ValueError, "coupled=0.5 needs equal .*; leave it at None"),
    ({"coupled": "yes"}, TypeError, r"coupled must be None .* got 'yes'"),
    *(({"rounding_seed": seed}, ValueError, f"{SEED} {seed!r}") for seed in (-1, 2**32, True, 0.5)),
    *(({"lr": torch.tensor(lr)}, ValueError, "lr") for lr in ([0.1, 0.2], 1, -0.1, NAN)),
    ({"state_format": "int8"}, ValueError, "state_format must be one of 'fp32', 'bf16', '8bit', '4bit', got 'int8'"),
    ({"state_format": ["8bit"]}, ValueError, r"state_format must be one of .*, got \['8bit'\]"),
    ({"stochastic_rounding": True, "kahan_sum": True}, ValueError, "choose one"),
    ({"differentiable": True, "state_format": "8bit"}, ValueError, "not support rounding; do not set state_format"),
    ({"differentiable": True, "foreach": True}, ValueError, "differentiable=True needs the plain engine"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD_OPTIONS, ids=str)
def test_options(options, error, message):
    with pytest.raises(error, match=message):
        Adan([TWO], **options)


#: As `params`.
BAD_PARAMETERS = [
    ([], ValueError, "params is empty"),
    (iter(()), ValueError, "params is empty"),
    (TWO, TypeError, "iterable such as model.parameters"),
    (LINEAR, TypeError, "model.parameters.*got Linear"),
    (None, TypeError, NO_LIST),
    (3, TypeError, NO_LIST),
    ({"params": list(LINEAR.parameters())}, TypeError, DICT),
    (dict(LINEAR.named_parameters()), TypeError, DICT),
    ([TWO, "w"], TypeError, "parameter 1 must be a tensor, got str"),
    ([("a", TWO, 3)], TypeError, r"parameter 0 must be a tensor or a pair \(name, tensor\)"),
    ([torch.zeros(2, dtype=torch.long)], TypeError, r"parameter 0 of shape \(2,\) is torch.int64"),
    ([{"params": {TWO}}], TypeError, "parameter group 0: params is a set"),
    ([{"lr": 0.1}], TypeError, r"key 'params', got the keys \['lr'\]"),
    ([{"params": [TWO], "lr": -1.0}], ValueError, "parameter group 0: lr"),
    ([{"params": [TWO], "skip_nonfinite": True}], ValueError, "applies to all groups"),
    ([THREE, THREE], ValueError, r"parameter 1 of shape \(3,\) is listed twice"),
    ([("w1", THREE), ("w2", THREE)], ValueError, r"w2 of shape \(3,\) is listed twice"),
    # An update in place would go into a copy, or have the wrong sign.
    ([CONJUGATED.detach().requires_grad_()], ValueError, LAZY),
    ([CONJUGATED.imag.detach().requires_grad_()], ValueError, LAZY),
]


@pytest.mark.parametrize(("params", "error", "message"), BAD_PARAMETERS)
def test_parameters(params, error, message):
    with pytest.raises(error, match=message):
        Adan(params)


def test_what_is_taken_instead_of_a_dict():
    assert len(Adan(dict(LINEAR.named_parameters()).items()).param_groups[0]["params"]) == 2


def test_betas_of_the_papers_convention_are_pointed_out_once():
    with pytest.warns(UserWarning, match=r"pass betas=\(0.98, 0.92, 0.99\)") as caught:
        Adan([{"params": [torch.zeros(2)]} for _ in range(2)], betas=(0.02, 0.08, 0.01))
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.filterwarnings("error")  # numpy warns where its integers overflow
def test_a_seed_of_numpy_is_a_seed():
    results = []
    for seed in (3, np.int64(3)):
        p = torch.full((600,), 1.5, dtype=torch.bfloat16, requires_grad=True)
        p.grad = torch.ones_like(p)
        Adan([p], lr=1e-2, stochastic_rounding=True, rounding_seed=seed).step()
        results.append(p.detach())
    assert torch.equal(*results)


def test_half_precision_that_cannot_be_rounded_stochastically():
    with pytest.raises(ValueError, match=r"parameter 1 of shape \(3,\) is torch.float16, .* kahan_sum=True"):
        Adan([torch.zeros(2), torch.zeros(3, dtype=torch.float16)], stochastic_rounding=True)


def test_a_bad_group_is_not_added():
    opt = Adan([torch.zeros(2)])
    for bad in ({"params": [torch.zeros(2)], "betas": (0.9, 0.9)}, {"params": [3]}, [torch.zeros(2)]):
        with pytest.raises((ValueError, TypeError), match="parameter group 1"):
            opt.add_param_group(bad)
    with pytest.raises(ValueError, match="more than one parameter group"):
        opt.add_param_group({"params": opt.param_groups[0]["params"]})
    assert len(opt.param_groups) == 1


def test_a_sparse_gradient_is_refused_by_name_and_nothing_moves(engine):
    model = torch.nn.ModuleDict({"head": torch.nn.Linear(3, 2), "words": torch.nn.Embedding(5, 3, sparse=True)})
    loss = model["head"](model["words"](torch.tensor([1, 2]))).sum()
    loss.backward()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match=r"'words.weight' of shape \(5, 3\).*sparse_coo.*sparse=False"):
        Adan(model.named_parameters(), **engine).step()
    opt = Adan(model.parameters(), **engine)
    opt.param_groups[0]["eps"] = torch.tensor(1e-8)  # is not what is wrong
    with pytest.raises(RuntimeError, match=r"parameter 2 of group 0, of shape \(5, 3\)"):
        opt.step()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
