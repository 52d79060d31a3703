"""Loss scaling and skipped steps: gradients are never written to, and a skipped step changes no bit."""

import copy

import pytest
import torch
from reference import ReferenceAdan
from support.cpu_engine import ENGINES
from support.parity import BETAS, count_as_on_a_device, same_bits

from adan import Adan


def snapshot(opt):
    return [p.detach().clone() for g in opt.param_groups for p in g["params"]], copy.deepcopy(opt.state_dict()["state"])


def assert_unchanged(opt, before):
    params, states = before
    now, now_states = snapshot(opt)
    assert all(same_bits(a, b) for a, b in zip(now, params, strict=True))
    assert all(same_bits(now_states[i][k], states[i][k]) for i in states for k in states[i])


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("bad", ["found_inf", "found_inf beside skip_nonfinite", float("nan"), float("inf")])
def test_a_skipped_step_leaves_everything_as_it_was(bad, engine, on_device, monkeypatch):
    """found_inf is 2 where each of two devices has found one: `GradScaler` adds up."""
    if on_device:
        count_as_on_a_device(monkeypatch)
    params = [torch.randn(4, 3, requires_grad=True), torch.randn(5, requires_grad=True)]
    groups = [{"params": params[:1], "max_grad_norm": 1.0, "weight_decay": 0.5}, {"params": params[1:]}]
    opt = Adan(groups, lr=0.1, eps=0.0, skip_nonfinite=bad != "found_inf", **engine)
    for k in range(5):
        skipped = k in (0, 2, 3)  # the first divides by a root of 0
        for p in params:
            p.grad = torch.randn_like(p)
        if isinstance(bad, str):
            opt.found_inf, opt.grad_scale = torch.tensor(2.0 * skipped), torch.tensor(8.0)
        elif skipped:
            params[1].grad[2] = bad
        before = snapshot(opt)
        opt.step()
        if skipped:
            assert_unchanged(opt, before)
        assert k or not any(x.any() for state in opt.state.values() for x in state.values())
    assert all(state["step"].item() == 2 for state in opt.state.values())


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # of Triton's interpreter
def test_a_large_finite_gradient_is_not_skipped(engine):
    p = torch.zeros(4, requires_grad=True)
    opt = Adan([p], lr=0.1, skip_nonfinite=True, **engine)
    p.grad = torch.full((4,), 1e30)  # its square is inf in fp32
    opt.step()
    assert opt.state[p]["step"] == 1


@pytest.mark.parametrize("unscale_first", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_under_gradscaler_the_step_is_that_of_the_unscaled_loss(engine, unscale_first):
    start = torch.randn(6, dtype=torch.float64)
    p = start.clone().requires_grad_()
    opt = Adan([p], lr=0.02, betas=BETAS, max_grad_norm=1.0, **engine)
    oracle = ReferenceAdan([start.numpy()], 0.02, tuple(1 - b for b in BETAS), clip=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    for k in range(8):
        opt.zero_grad()
        loss = (p - k).square().sum() * (float("inf") if k == 3 else 1.0)
        scaler.scale(loss).backward()
        if unscale_first:
            scaler.unscale_(opt)
        written = p.grad.clone()
        theta = p.detach().clone()
        scaler.step(opt)
        scaler.update()
        assert same_bits(p.grad, written)
        if k != 3:
            oracle.step([2 * (theta.numpy() - k)])
    assert torch.allclose(p.detach(), torch.tensor(oracle.theta[0]), atol=1e-10)
    assert opt.state[p]["step"] == 7
