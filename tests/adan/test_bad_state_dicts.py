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


def make(dtype=torch.float32, **options):
    """Of two parameters: the second is large enough for few bits, and when it is read the first has been."""
    params = [torch.linspace(-1, 1, n).to(dtype).requires_grad_() for n in (6, 4900)]
    params[1].data = params[1].data.view(70, 70)
    opt = Adan(params, lr=0.1, **options)
    for k in range(2):
        for p in params:
            p.grad = torch.linspace(0, 1, p.numel()).view(p.shape).to(dtype) + k
        opt.step()
    return opt


def state(change):
    return lambda saved: change(saved["state"][1])


def set_state(**values):
    return state(lambda s: s.update(values))


def set_group(**values):
    return lambda saved: saved["param_groups"][0].update(values)


def cast(name, change):
    return state(lambda s: s.update({name: change(s[name])}))


def cut(name):
    return state(lambda s: s.update({key: x[:-1] for key, x in s.items() if key.startswith(name)}))


def of(kind, **options):
    def replace(saved):
        params = [torch.ones(shape, requires_grad=True) for shape in ((6,), (70, 70))]
        other = kind(params, lr=0.3, **options)
        for p in params:
            p.grad = torch.ones_like(p)
        other.step()
        saved.clear()
        saved.update(other.state_dict())

    return replace


def cut_restart_state(saved):
    for group in saved["param_groups"]:
        group["restart_state"] = group["restart_state"][:2]


RESTART = {"restart": Restart(every=3)}
COUPLED = {"betas": (0.9, 0.9, 0.95)}
KAHAN = {"kahan_sum": True, "dtype": torch.bfloat16}
SHAPE = (70, 70)
LAYOUT = torch.tensor([SHAPE, (70, 1)])
BAD = {
    "a step of two elements": (set_state(step=torch.tensor([1.0, 2.0])), "step", {}),
    "a negative step": (set_state(step=torch.tensor(-5.0)), "step.*-5", {}),
    "a step that is no number": (set_state(step=torch.tensor(NAN)), "step.*nan", {}),
    "a step that is no count": (set_state(step=torch.tensor(1.5)), r"step.*1\.5", {}),
    "a step in words": (set_state(step="three"), "step.*three", {}),
    "a sparse state": (cast("exp_avg", torch.Tensor.to_sparse), "exp_avg.*sparse", {}),
    "a list for a state": (set_state(exp_avg=[1.0, 2.0]), "exp_avg", {}),
    "a complex state of a real parameter": (cast("exp_avg", torch.Tensor.cfloat), "exp_avg.*complex", {}),
    "a state of whole numbers": (cast("exp_avg", torch.Tensor.long), "exp_avg.*int64", {}),
    "a count without data": (set_state(step=torch.zeros((), device="meta")), "step.*meta", {}),
    "a state without data": (set_state(exp_avg=torch.zeros(SHAPE, device="meta")), "exp_avg.*meta", {}),
    "a state of another shape": (
        set_state(exp_avg=torch.zeros(7)),
        r"exp_avg of parameter 1 .* must have .* got \(7,\)",
        {},
    ),
    "a state that lacks a tensor": (
        state(lambda s: s.pop("prev_grad")),
        r"parameter 1 of group 0.* lacks prev_grad",
        {},
    ),
    "a state that lacks its count": (
        lambda saved: saved["state"].update({1: {"exp_avg": torch.zeros(SHAPE)}}),
        "lacks step.*exp_avg",
        {},
    ),
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
    "another group": (lambda saved: saved["param_groups"].append({"params": [9]}), "groups of", {}),
    "a parameter less": (lambda saved: saved["param_groups"][0]["params"].pop(), "same groups", {}),
    "a negative rate": (set_group(lr=-1.0), "lr must be finite", {}),
    "a rate in words": (set_group(lr="fast"), "lr must be a number", {}),
    "betas apart for one average": (set_group(betas=(0.9, 0.8, 0.95)), r"coupled=0\.9 needs equal", COUPLED),
    "nothing": (dict.clear, "not an optimizer's state dict", {}),
    "SGD's": (of(torch.optim.SGD), "betas|Adan", {}),
    "SGD's with momentum": (of(torch.optim.SGD, momentum=0.9), "betas|Adan", {}),
    "AdamW's": (of(torch.optim.AdamW), "group 0 has two betas.*AdamW", {}),
    "a short compensation": (cut("compensation"), "compensation", KAHAN),
}
BAD_CODES = {
    "all cast": (state(lambda s: s.update({k: x.float() for k, x in s.items()})), "layout must be the sizes"),
    "codes cast": (cast("exp_avg_codes", torch.Tensor.float), "exp_avg_codes .* must be torch.uint8"),
    "exponents cast": (cast("exponents", torch.Tensor.half), r"exponents .* must be torch\.uint8"),
    "short codes": (cut("exp_avg"), "exp_avg"),
    "short exponents": (cut("exponents"), "exponents"),
    "overlapping": (set_state(layout=LAYOUT * torch.tensor([[1], [0]])), "layout must be"),
    "too large": (set_state(layout=LAYOUT * torch.tensor([[1], [3]])), "layout must be"),
    "on meta": (state(lambda s: s.update({k: x.to("meta") for k, x in s.items()})), "layout must be"),
    "without a layout": (state(lambda s: s.pop("layout")), "layout must be .* got None"),
    "sparse": (cast("exp_avg_codes", torch.Tensor.to_sparse), "exp_avg_codes is torch.sparse_coo"),
    "sparse count": (set_state(step=torch.tensor([2.0]).to_sparse()), "step of .* must be one number"),
}
CODED = {
    f"{name}, {form}": (spoil, message, {"state_format": form})
    for name, (spoil, message) in BAD_CODES.items()
    for form in ("8bit", "4bit")
}


@pytest.mark.parametrize("name", [*BAD, *CODED])
def test_a_bad_state_dict_is_refused_and_nothing_changes(name):
    """A user who loaded the wrong or a broken file was left with half of it, or crashed at the next step."""
    spoil, message, options = {**BAD, **CODED}[name]
    opt = make(**options)
    saved = copy.deepcopy(opt.state_dict())
    spoil(saved)
    # Another state than the saved one, so that a part that was loaded is seen.
    for group in opt.param_groups:
        group["lr"] = 0.2
    opt.step()
    before = snapshot(opt)
    with pytest.raises(ValueError, match=message) as error:
        opt.load_state_dict(saved)
    assert name in BAD or "parameter 1 of group 0" in str(error.value)
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
