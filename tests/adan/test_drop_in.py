"""Calls of projects that use the authors' class, or a copy of it, and of code that works on an optimizer's state.

Each test makes the project's own call, as its repository had it in 2026.
"""

from __future__ import annotations

import io
from collections import UserList

import pytest
import torch

import adan
from adan import Adan, plan

FUSED = plan.fused_engine(torch.zeros(1))[0]
fused = pytest.mark.skipif(FUSED is None, reason="no C compiler")


def engines(opt):
    return {plan.choose(group, p).name for group in opt.param_groups for p in group["params"]}


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))


def train(net, opt, steps=3):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        opt.zero_grad()
        net(torch.randn(8, 6, generator=generator)).square().mean().backward()
        opt.step()


@fused
@pytest.mark.parametrize(
    ("foreach", "fused", "engine"),
    [
        (None, None, "cpu"), (False, None, "cpu"), (True, None, "foreach"),
        (None, True, "cpu"), (False, True, "cpu"), (True, True, "cpu"),
        (None, False, "foreach"), (False, False, "loop"), (True, False, "foreach"),
    ],
)  # fmt: skip
def test_every_pair_of_flags_names_an_engine(foreach, fused, engine):
    p = torch.nn.Parameter(torch.zeros(3))
    opt = Adan([p], foreach=foreach, fused=fused)
    assert engines(opt) == {engine}
    p.grad = torch.ones(3)
    opt.step()
    assert p[0] < 0


def test_without_a_fused_engine_foreach_says_which_of_the_others(monkeypatch):
    monkeypatch.setattr(plan, "ENGINES", [])
    p = torch.nn.Parameter(torch.zeros(3))
    assert engines(Adan([p])) == {"foreach"}
    assert engines(Adan([p], foreach=False)) == {"loop"}
    assert "loop for 1 parameter (not fused: there are" in repr(Adan([p], foreach=False))
    with pytest.raises(RuntimeError, match="fused=True cannot serve"):
        engines(Adan([p], foreach=True, fused=True))


def parts(net, lr, **names):
    """A group of each layer, which threestudio gives a name."""
    named = [{key: f"{value}.{i}" for key, value in names.items()} for i in (0, 2)]
    return [{"params": net[i].parameters(), "lr": lr, **name} for i, name in zip((0, 2), named, strict=True)]


def by_decay(net):
    """Groups as transformers makes them."""
    decayed, others = ([p for p in net.parameters() if (p.ndim > 1) == many] for many in (True, False))
    return [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.01}]


#: Each project's call. Of threestudio, options come from a YAML file by OmegaConf, whose lists are sequences but not
#: lists; LMFlow's betas from the command line; nnU-Net's class is that of adan-pytorch, whose default betas are ours in
#: the paper's notation; Megatron's call has all flags of the authors' fused mode.
PROJECTS = {
    "stable-dreamfusion": lambda net: Adan(
        parts(net, 5e-2), eps=1e-8, weight_decay=2e-5, max_grad_norm=5.0, foreach=False
    ),
    "threestudio": lambda net: Adan(
        parts(net, 0.01, name="geometry"),
        betas=UserList([0.98, 0.92, 0.99]),
        eps=1e-15,
        weight_decay=2e-5,
        max_grad_norm=5.0,
        foreach=False,
    ),
    "NeMo": lambda net: Adan(net.parameters(), lr=2e-3, betas=[0.98, 0.92, 0.99], weight_decay=0.02),
    "LMFlow": lambda net: Adan(by_decay(net), lr=1e-3, betas=(0.9, 0.95, 0.99), weight_decay=0.01),
    "nnU-Net": lambda net: Adan(net.parameters(), lr=1e-2, weight_decay=3e-5),
    "Megatron-LM": lambda net: Adan(
        net.parameters(),
        lr=1e-3,
        weight_decay=0.02,
        betas=(0.98, 0.92, 0.99),
        eps=1e-8,
        no_prox=False,
        foreach=True,
        fused=FUSED is not None,
    ),
}


@pytest.mark.parametrize("project", PROJECTS)
def test_a_project_s_call_trains_as_ours_does(project, tmp_path):
    """And its checkpoint, in which groups have names, can be loaded."""
    ours, theirs = model(), model()
    opt = PROJECTS[project](theirs)
    assert FUSED is None or engines(opt) == {"cpu"}
    known = {name: opt.param_groups[0][name] for name in ("lr", "betas", "eps", "weight_decay", "max_grad_norm")}
    train(ours, Adan(ours.parameters(), **known))
    train(theirs, opt)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(q, p, rtol=1e-5, atol=1e-7)
    torch.save(opt.state_dict(), tmp_path / "optimizer.pt")
    new = PROJECTS[project](theirs)
    new.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    names = ["geometry.0", "geometry.2"] if project == "threestudio" else [None] * len(opt.param_groups)
    assert [group.get("name") for group in new.param_groups] == names


# ---- code that works on states


def points(n=6, width=3, **options):
    p = torch.nn.Parameter(torch.arange(n * width, dtype=torch.float32).reshape(n, width))
    opt = Adan([{"params": [p], "name": "means"}], lr=0.1, **options)
    for k in (1.0, 3.0):
        p.grad = k * (1 + torch.arange(n, dtype=torch.float32)).reshape(n, 1).expand(n, width).clone()
        opt.step()
    return p, opt


def steps_on(opt, p):
    before = p.detach().clone()
    p.grad = torch.ones_like(p)
    opt.step()
    return bool((p != before).all() and p.isfinite().all())


@pytest.mark.parametrize("options", [{}, {"state_format": "bf16"}, {"betas": (0.9, 0.9, 0.99)}], ids=str)
def test_gsplat(options):
    """Which indexes every state but `step`, and appends zeros of 32 bits."""
    p, opt = points(2000, **options)
    chosen = torch.tensor([0, 2, 3])
    for edit in (lambda v: v[chosen], lambda v: torch.cat([v, torch.zeros((2, *v.shape[1:]))])):
        new = torch.nn.Parameter(edit(p.detach()))
        state = opt.state[p]
        del opt.state[p]
        for key in state:
            if key != "step":
                state[key] = edit(state[key])
        opt.param_groups[0]["params"] = [new]
        opt.state[new] = state
        assert steps_on(opt, new)
        p = new


def test_gaussian_splatting_resizes_two_states():
    """The reference implementation indexes Adam's two: an error names the others, and `resize_state` does them all."""
    p, opt = points()
    mask = torch.tensor([True, False, True, True, False, True])
    state = dict(opt.state[p])
    state["exp_avg"], state["exp_avg_sq"] = state["exp_avg"][mask], state["exp_avg_sq"][mask]
    new = torch.nn.Parameter(p[mask].detach())
    opt.param_groups[0]["params"][0] = new
    opt.state[new] = state
    new.grad = torch.ones_like(new)
    with pytest.raises(RuntimeError, match=r"its exp_avg_diff has shape \(6, 3\): .*adan.resize_state"):
        opt.step()
    p, opt = points()
    assert steps_on(opt, adan.resize_state(opt, p, mask))


@pytest.mark.parametrize(
    "options",
    [{}, {"state_format": "bf16"}, {"state_format": "8bit"}, {"state_format": "4bit"}, {"fused": False}],
    ids=str,
)
def test_resize_state_takes_the_rows_of_every_state(options):
    p, opt = points(2000, **options)
    index = torch.cat([torch.arange(1, 2000), torch.tensor([7, -1])])
    old = adan.states.plain(opt.state[p]) if options else {k: v.clone() for k, v in opt.state[p].items() if v.dim()}
    new = adan.resize_state(opt, p, index)
    assert opt.param_groups[0]["params"] == [new]
    assert p not in opt.state
    assert torch.equal(new[:1999], p[1:])
    state = opt.state[new]
    assert state["step"] == 2
    for name, x in old.items():
        assert torch.equal(state[name][:1999], x[1:]), name
        assert torch.equal(state[name][1999], x[7])
        assert not state[name][2000].any()
    assert steps_on(opt, new)


def test_resize_state_by_bytes_resizes_entries_of_wrappers_too():
    """Bytes were taken for a mask, as PyTorch takes a uint8 index: the rows were wrong, and nothing said so."""
    p, opt = points()
    opt.state[p]["slow_buffer"] = p.detach() + 1
    rows = p[[1, 1, 0]]
    new = adan.resize_state(opt, p, torch.tensor([1, 1, 0], dtype=torch.uint8))
    assert torch.equal(new, rows)
    assert torch.equal(opt.state[new]["slow_buffer"], rows + 1)


def test_resize_state_to_no_rows():
    p, opt = points()
    new = adan.resize_state(opt, p, torch.zeros(6, dtype=torch.bool))
    assert {x.shape for x in (new, *opt.state[new].values()) if x.dim()} == {(0, 3)}
    assert steps_on(opt, new)


def test_resize_state_with_values_and_without_a_state():
    p = torch.nn.Parameter(torch.ones(2, 2))
    opt = Adan([p], lr=0.1)
    new = adan.resize_state(opt, p, torch.tensor([1, -1, -1]), torch.full((3, 2), 5.0))
    assert torch.equal(new, torch.full((3, 2), 5.0))
    assert steps_on(opt, new)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"index": torch.tensor([6])}, "index must be from -1 to 5, got 6 to 6"),
        ({"index": torch.tensor([True])}, r"row numbers or a mask of 6 rows, got torch.bool of shape \(1,\)"),
        ({"index": torch.tensor(2)}, "row numbers or a mask of 6 rows, got torch.int64"),
        ({"index": torch.tensor([1j])}, "row numbers or a mask of 6 rows, got torch.complex64"),
        ({"index": [0, 1]}, r"row numbers or a mask of 6 rows, got \[0, 1\]"),
        ({"param": torch.zeros(2)}, r"param of shape \(2,\) is not one of the optimizer's"),
        ({"value": torch.zeros(3, 3)}, r"value must have shape \(1, 3\), got \(3, 3\)"),
    ],
    ids=str,
)
def test_resize_state_refuses(arguments, message):
    p, opt = points()
    before = {name: x.clone() for name, x in opt.state[p].items()}
    error = TypeError if isinstance(arguments.get("index"), list) else ValueError
    with pytest.raises(error, match=message):
        adan.resize_state(opt, **{"param": p, "index": torch.tensor([0]), **arguments})
    assert opt.param_groups[0]["params"][0] is p
    assert all(torch.equal(x, before[name]) for name, x in opt.state[p].items())


def test_resize_state_of_a_scalar_or_while_gradients_are_released_is_an_error():
    scalar, layer = torch.nn.Parameter(torch.ones(())), torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"must have rows on this process, got a Parameter of shape \(\)"):
        adan.resize_state(Adan([scalar]), scalar, torch.tensor([0]))
    opt = Adan(layer.parameters())
    with adan.release_gradients(layer, opt), pytest.raises(ValueError, match=r"remove\(\) the release first"):
        adan.resize_state(opt, layer.weight, torch.tensor([0]))


def test_schedule_free_wrapper_with_stochastic_rounding_and_a_checkpoint():
    schedulefree = pytest.importorskip("schedulefree")

    def make():
        torch.manual_seed(0)
        net = torch.nn.Linear(64, 64).bfloat16()
        base = Adan(net.parameters(), lr=1e-3, stochastic_rounding=True)
        opt = schedulefree.ScheduleFreeWrapper(base, momentum=0.9, weight_decay_at_y=0.1)
        opt.train()
        return net, opt

    def train(net, opt, steps):
        for k in range(*steps):
            opt.zero_grad()
            generator = torch.Generator().manual_seed(k)
            net(torch.randn(4, 64, generator=generator).bfloat16()).square().mean().backward()
            opt.step()

    net, opt = make()
    train(net, opt, (0, 3))
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "opt": opt.state_dict()}, file)
    file.seek(0)
    train(net, opt, (3, 6))
    resumed, other = make()
    saved = torch.load(file, weights_only=True)
    resumed.load_state_dict(saved["net"])
    other.load_state_dict(saved["opt"])
    train(resumed, other, (3, 6))
    assert all(map(torch.equal, net.parameters(), resumed.parameters()))
    opt.eval()
    assert all(p.isfinite().all() for p in net.parameters())
