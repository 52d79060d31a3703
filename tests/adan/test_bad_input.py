"""Bad input gets an error that names what is wrong and how to mend it, and changes nothing."""

import copy

import numpy as np
import pytest
import torch

from adan import Adan

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("name", ["lr", "eps", "weight_decay", "max_grad_norm"])
@pytest.mark.parametrize("value", [-1e-3, NAN, INF])
def test_numbers_must_be_finite_and_not_negative(name, value):
    with pytest.raises(ValueError, match=rf"Adan: {name} must be finite and at least 0, got {value!r}"):
        Adan([torch.zeros(2)], **{name: value})


@pytest.mark.parametrize("name", ["lr", "eps", "weight_decay", "max_grad_norm"])
@pytest.mark.parametrize("value", ["0.1", None, True, [0.1]])
def test_numbers_must_be_numbers(name, value):
    with pytest.raises(TypeError, match=f"{name} must be a number"):
        Adan([torch.zeros(2)], **{name: value})


@pytest.mark.parametrize("name", ["no_prox", "bias_correction", "maximize", "capturable", "differentiable",
                                  "skip_nonfinite", "foreach"])  # fmt: skip
def test_flags_must_be_flags(name):
    with pytest.raises(TypeError, match=f"{name} must be .*True or False, got 'yes'"):
        Adan([torch.zeros(2)], **{name: "yes"})


@pytest.mark.parametrize(
    ("betas", "error", "message"),
    [
        ((0.9, 0.999), ValueError, "three numbers.*suggest_from_adamw"),
        (0.9, ValueError, "three numbers"),
        ((0.9, 0.9, 1.0), ValueError, r"betas\[2\] must be below 1, got 1.0"),
        ((-0.1, 0.9, 0.9), ValueError, r"betas\[0\] must be finite and at least 0, got -0.1"),
        ((0.9, NAN, 0.9), ValueError, r"betas\[1\]"),
        ((0.9, "x", 0.9), TypeError, r"betas\[1\] must be a number"),
    ],
)
def test_betas(betas, error, message):
    with pytest.raises(error, match=message):
        Adan([torch.zeros(2)], betas=betas)


def test_betas_of_the_papers_convention_are_pointed_out_once():
    with pytest.warns(UserWarning, match=r"pass betas=\(0.98, 0.92, 0.99\)") as caught:
        Adan([{"params": [torch.zeros(2)]} for _ in range(2)], betas=(0.02, 0.08, 0.01))
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("seed", [-1, 2**32, True, 0.5])
def test_seeds_of_rounding(seed):
    with pytest.raises(ValueError, match=f"rounding_seed must be an int from 0 to 2³² − 1, got {seed!r}"):
        Adan([torch.zeros(2)], rounding_seed=seed)


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


@pytest.mark.parametrize("lr", [torch.tensor([0.1, 0.2]), torch.tensor(1), torch.tensor(-0.1), torch.tensor(NAN)])
def test_tensor_learning_rates(lr):
    with pytest.raises(ValueError, match="lr"):
        Adan([torch.zeros(2)], lr=lr)


def test_differentiable_and_foreach_exclude_each_other():
    with pytest.raises(ValueError, match="differentiable=True needs the plain engine"):
        Adan([torch.zeros(2)], differentiable=True, foreach=True)


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ([], ValueError, "params is empty"),
        (iter(()), ValueError, "params is empty"),
        (torch.zeros(2), TypeError, "iterable such as model.parameters"),
        (torch.nn.Linear(2, 2), TypeError, "model.parameters.*got Linear"),
        ([torch.zeros(2), "w"], TypeError, "parameter 1 must be a tensor, got str"),
        ([torch.zeros(2, dtype=torch.long)], TypeError, r"parameter 0 of shape \(2,\) is torch.int64"),
        ([{"lr": 0.1}], TypeError, r"key 'params', got the keys \['lr'\]"),
        ([{"params": [torch.zeros(2)], "lr": -1.0}], ValueError, "parameter group 0: lr"),
        ([{"params": [torch.zeros(2)], "skip_nonfinite": True}], ValueError, "applies to all groups"),
    ],
)
def test_parameters(params, error, message):
    with pytest.raises(error, match=message):
        Adan(params)


def test_a_parameter_listed_twice():
    p = torch.zeros(3)
    with pytest.raises(ValueError, match=r"parameter 1 of shape \(3,\) is listed twice"):
        Adan([p, p])
    with pytest.raises(ValueError, match=r"w2 of shape \(3,\) is listed twice"):
        Adan([("w1", p), ("w2", p)])
    opt = Adan([p])
    with pytest.raises(ValueError, match="more than one parameter group"):
        opt.add_param_group({"params": [p]})
    assert len(opt.param_groups) == 1


def test_a_bad_group_is_not_added():
    opt = Adan([torch.zeros(2)])
    for bad in ({"params": [torch.zeros(2)], "betas": (0.9, 0.9)}, {"params": [3]}, [torch.zeros(2)]):
        with pytest.raises((ValueError, TypeError), match="parameter group 1"):
            opt.add_param_group(bad)
    assert len(opt.param_groups) == 1


def test_a_sparse_gradient_is_refused_by_name_and_nothing_moves(engine):
    model = torch.nn.ModuleDict({"head": torch.nn.Linear(3, 2), "words": torch.nn.Embedding(5, 3, sparse=True)})
    loss = model["head"](model["words"](torch.tensor([1, 2]))).sum()
    loss.backward()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match=r"'words.weight' of shape \(5, 3\).*sparse_coo.*sparse=False"):
        Adan(model.named_parameters(), **engine).step()
    with pytest.raises(RuntimeError, match=r"parameter 2 of group 0, of shape \(5, 3\)"):
        Adan(model.parameters(), **engine).step()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    "view", [torch.ones(2, dtype=torch.complex64).conj(), torch.ones(2, dtype=torch.complex64).conj().imag]
)
def test_lazy_views_are_refused(view):
    """An update in place would go into a copy, or have the wrong sign."""
    with pytest.raises(ValueError, match=r"parameter 0 of shape \(2,\) is a lazily conjugated or negated view"):
        Adan([view.requires_grad_()])


def test_a_last_beta_of_zero_is_refused():
    with pytest.raises(ValueError, match=r"betas\[2\] must be above 0, got 0"):
        Adan([torch.ones(2, requires_grad=True)], betas=(0, 0, 0))


def test_what_is_no_pair_and_what_is_no_format():
    with pytest.raises(TypeError, match=r"parameter 0 must be a tensor or a pair \(name, tensor\)"):
        Adan([("a", torch.ones(2), 3)])
    with pytest.raises(ValueError, match=r"state_format must be one of .*, got \['8bit'\]"):
        Adan([torch.ones(2, requires_grad=True)], state_format=["8bit"])
