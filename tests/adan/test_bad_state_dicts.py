"""`load_state_dict` of what does not fit: ValueError, by name, and nothing has changed."""

import copy

import pytest
import torch
from support.parity import same_bits

from adan import Adan, Restart

NAN = float("nan")


def snapshot(opt):
    params = [p.detach().clone() for group in opt.param_groups for p in group["params"]]
    states = [{name: x.clone() for name, x in opt.state[p].items()} for g in opt.param_groups for p in g["params"]]
    groups = [{key: value for key, value in group.items() if key != "params"} for group in opt.param_groups]
    return params, states, copy.deepcopy(groups), repr(opt.restart_progress) if opt.restart_rule else None


def assert_same(opt, before):
    params, states, groups, progress = snapshot(opt)
    assert all(map(same_bits, params, before[0]))
    for state, earlier in zip(states, before[1], strict=True):
        assert list(state) == list(earlier)
        assert all(same_bits(state[name], earlier[name]) for name in state)
    assert groups == before[2]
    assert progress == before[3]


def make(**options):
    params = [torch.linspace(-1, 1, 6).requires_grad_(), torch.ones(2, 3, requires_grad=True)]
    opt = Adan(params, lr=0.1, **options)
    for k in range(2):
        for p in params:
            p.grad = torch.linspace(0, 1, 6).view(p.shape) + k
        opt.step()
    return opt


def set_state(**values):
    """Of the second parameter, so that the first has been looked at by then."""
    return lambda saved: saved["state"][1].update(values)


def set_group(**values):
    return lambda saved: saved["param_groups"][0].update(values)


def to_sparse(saved):
    saved["state"][1]["exp_avg"] = saved["state"][1]["exp_avg"].to_sparse()


def of_sgd(momentum):
    def replace(saved):
        sgd = torch.optim.SGD([torch.ones(6, requires_grad=True), torch.ones(2, 3, requires_grad=True)], 0.3, momentum)
        for p in sgd.param_groups[0]["params"]:
            p.grad = torch.ones_like(p)
        sgd.step()
        saved.clear()
        saved.update(sgd.state_dict())

    return replace


def cut_restart_state(saved):
    for group in saved["param_groups"]:
        group["restart_state"] = group["restart_state"][:2]


RESTART = {"restart": Restart(every=3)}
BAD = {
    "a step of two elements": (set_state(step=torch.tensor([1.0, 2.0])), "step", {}),
    "a negative step": (set_state(step=torch.tensor(-5.0)), "step.*-5", {}),
    "a step that is no number": (set_state(step=torch.tensor(NAN)), "step.*nan", {}),
    "a step that is no count": (set_state(step=torch.tensor(1.5)), r"step.*1\.5", {}),
    "a step in words": (set_state(step="three"), "step.*three", {}),
    "a sparse state": (to_sparse, "exp_avg.*sparse", {}),
    "a list for a state": (set_state(exp_avg=[1.0, 2.0]), "exp_avg", {}),
    "a complex state of a real parameter": (set_state(exp_avg=torch.zeros(2, 3).cfloat()), "exp_avg.*complex", {}),
    "a state of whole numbers": (set_state(exp_avg=torch.zeros(2, 3, dtype=torch.int64)), "exp_avg.*int64", {}),
    "a count without data": (set_state(step=torch.zeros((), device="meta")), "step.*meta", {}),
    "a state without data": (set_state(exp_avg=torch.zeros(2, 3, device="meta")), "exp_avg.*meta", {}),
    "a short restart state": (cut_restart_state, "restart", RESTART),
    "a restart state of two rows": (set_group(restart_state=torch.ones(2, 2)), "restart", RESTART),
    "a restart state in words": (set_group(restart_state="x"), "restart", RESTART),
    "states that are no dict": (lambda saved: saved.update(state=torch.zeros(2, 2)), "state", {}),
    "a state that is no dict": (lambda saved: saved["state"].update({1: (0.9, 0.9)}), "state of parameter 1", {}),
    "a layout of two numbers": (set_state(layout=torch.ones(2)), "layout", {}),
    "codes that are a number": (set_state(exp_avg_codes=-1), "layout", {}),
    "parameters that are a number": (set_group(params=-1), "params", {}),
    "groups that are None": (lambda saved: saved.update(param_groups=None), "param_groups", {}),
    "a group without parameters": (lambda saved: saved["param_groups"][0].pop("params"), "params", {}),
    "SGD's": (of_sgd(0.0), "betas|Adan", {}),
    "SGD's with momentum": (of_sgd(0.9), "betas|Adan", {}),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_state_dict_is_refused_and_nothing_changes(name):
    """A user who loaded the wrong or a broken file was left with half of it, or crashed at the next step."""
    spoil, message, options = BAD[name]
    opt = make(**options)
    saved = copy.deepcopy(opt.state_dict())
    spoil(saved)
    # Another state than the saved one, so that a part that was loaded is seen.
    for group in opt.param_groups:
        group["lr"] = 0.2
    opt.step()
    before = snapshot(opt)
    with pytest.raises(ValueError, match=message):
        opt.load_state_dict(saved)
    assert_same(opt, before)
    for p in opt.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    opt.step()


@pytest.mark.parametrize("options", [{}, RESTART], ids=str)
def test_a_default_device_does_not_matter(options):
    """A user who builds models under `torch.device("meta")` could not load an optimizer there."""
    opt = make(**options)
    saved = copy.deepcopy(opt.state_dict())
    before = snapshot(opt)
    opt.restart()
    with torch.device("meta"):
        opt.load_state_dict(saved)
    assert_same(opt, before)


def quantized(state_format):
    p = torch.linspace(-1, 1, 70 * 70).view(70, 70).requires_grad_()
    opt = Adan([p], lr=0.1, state_format=state_format)
    for _ in range(2):
        p.grad = torch.linspace(0, 1, 70 * 70).view(70, 70)
        opt.step()
    return opt


LAYOUT = torch.tensor([[70, 70], [70, 1]])
BAD_CODES = {
    "all cast": (lambda s: s.update({k: x.float() for k, x in s.items()}), r"layout must be the sizes and strides"),
    "codes cast": (
        lambda s: s.update(exp_avg_codes=s["exp_avg_codes"].float()),
        "exp_avg_codes .* must be torch.uint8",
    ),
    "exponents cast": (lambda s: s.update(exponents=s["exponents"].half()), r"exponents .* must be torch\.uint8"),
    "overlapping": (lambda s: s.update(layout=LAYOUT * torch.tensor([[1], [0]])), "layout must be"),
    "too large": (lambda s: s.update(layout=LAYOUT * torch.tensor([[1], [3]])), "layout must be"),
    "on meta": (lambda s: s.update({k: x.to("meta") for k, x in s.items()}), "layout must be"),
    "without a layout": (lambda s: s.pop("layout"), "layout must be .* got None"),
    "sparse": (lambda s: s.update(exp_avg_codes=s["exp_avg_codes"].to_sparse()), "exp_avg_codes is torch.sparse_coo"),
    "sparse count": (lambda s: s.update(step=torch.tensor([2.0]).to_sparse()), "step of .* must be one number"),
}


@pytest.mark.parametrize("state_format", ["8bit", "4bit"])
@pytest.mark.parametrize("name", BAD_CODES)
def test_codes_that_are_none_are_refused(name, state_format):
    change, message = BAD_CODES[name]
    opt = quantized(state_format)
    saved, before = opt.state_dict(), snapshot(opt)
    change(saved["state"][0])
    with pytest.raises(ValueError, match=message) as error:
        opt.load_state_dict(saved)
    assert "parameter 0 of group 0" in str(error.value)
    assert_same(opt, before)
