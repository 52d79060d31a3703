"""Adan where torch.optim.AdamW would stand: groups, closures, hooks, late parameters, complex and half precision."""

import pytest
import torch
from reference import ReferenceAdan
from support.cpu_engine import ENGINES
from support.parity import BETAS, ROW

from adan import Adan
from adan.engines import cpu


def param(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("bias_correction", [True, False])
def test_a_late_first_gradient_moves_by_lr_like_any_first(engine, bias_correction):
    early, late = param(4), param(4, seed=1)
    opt = Adan([early, late], lr=0.1, bias_correction=bias_correction, **engine)
    for k in range(20):
        early.grad = torch.ones_like(early)
        if k == 19:
            before, late.grad = late.detach().clone(), torch.tensor([3.0, -0.2, 1e-3, -50.0], dtype=torch.float64)
        opt.step()
    moved = late.detach() - before
    torch.testing.assert_close(moved, -0.1 * late.grad.sign(), rtol=1e-4, atol=0)
    assert opt.state[late]["step"] == 1
    assert opt.state[early]["step"] == 20


@pytest.mark.parametrize("engine", ENGINES)
def test_groups_have_their_own_options_and_one_norm(engine):
    a, b = param(3), param(5, seed=1)
    groups = [
        {"params": [a], "lr": 0.05, "weight_decay": 0.4, "max_grad_norm": 1.0},
        {"params": [b], "betas": (0.5, 0.6, 0.7), "no_prox": True, "weight_decay": 0.3, "eps": 0.1},
    ]
    opt = Adan(groups, lr=0.02, betas=BETAS, **engine)
    theta_a, theta_b = a.detach().numpy().copy(), b.detach().numpy().copy()
    oracle_a = ReferenceAdan([theta_a], 0.05, tuple(1 - x for x in BETAS), lam=0.4)
    oracle_b = ReferenceAdan([theta_b], 0.02, (0.5, 0.4, 0.3), lam=0.3, proximal=False, eps=0.1)
    generator = torch.Generator().manual_seed(3)
    for _ in range(30):
        for p in (a, b):
            p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        norm = torch.cat([a.grad, b.grad]).norm().item()
        opt.step()
        oracle_a.step([a.grad.numpy() * min(1.0, 1.0 / (norm + 1e-6))])
        oracle_b.step([b.grad.numpy()])
    torch.testing.assert_close(a.detach(), torch.tensor(oracle_a.theta[0]), rtol=0, atol=1e-10)
    torch.testing.assert_close(b.detach(), torch.tensor(oracle_b.theta[0]), rtol=0, atol=1e-10)


def test_a_group_may_come_late_be_empty_or_have_no_gradient():
    a, b = param(3), param(3, seed=1)
    opt = Adan([{"params": [a]}, {"params": []}], lr=0.1)
    a.grad = torch.ones_like(a)
    opt.step()
    opt.add_param_group({"params": b, "lr": 0.5})
    opt.step()
    assert b not in opt.state
    b.grad = torch.ones_like(b)
    before = b.detach().clone()
    opt.step()
    torch.testing.assert_close(before - b.detach(), torch.full_like(b, 0.5))
    opt.zero_grad()
    assert a.grad is None
    opt.step()
    assert opt.state[a]["step"] == 3


def test_gradients_can_be_set_to_zero():
    p = param(3)
    p.grad = torch.ones_like(p)
    Adan([p]).zero_grad(set_to_none=False)
    assert torch.equal(p.grad, torch.zeros_like(p))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("dtype", "ulp"), [(torch.bfloat16, 2**-8), (torch.float16, 2**-11)])
def test_half_precision_is_computed_in_fp32_and_rounded_once(engine, dtype, ulp):
    p = param(64, dtype=dtype)
    row = ROW["proximal decay"]
    opt = row.optimizer([p], 0.02, **engine)
    oracle = row.oracle([p.detach().double().numpy()], 0.02)
    for k in range(50):
        p.grad = param(64, dtype=dtype, seed=k + 1).detach()
        opt.step()
        oracle.step([p.grad.double().numpy()])
        exact = torch.tensor(oracle.theta[0])
        # Half a unit in the last place, and the error of fp32 where that decides a tie.
        assert ((p.detach().double() - exact).abs() <= exact.abs() * ulp * 1.01 + 1e-7).all()
        oracle.theta[0] = p.detach().double().numpy().copy()


@pytest.mark.parametrize("engine", ENGINES)
def test_the_clip_norm_is_taken_over_all_types_in_fp32(engine):
    a, b = param(1000, dtype=torch.bfloat16), param(3)
    opt = Adan([a, b], lr=0.1, betas=BETAS, max_grad_norm=1.0, **engine)
    a.grad, b.grad = torch.full_like(a, 1 + 2**-7), torch.ones_like(b)
    opt.step()
    norm = (1000 * (1 + 2**-7) ** 2 + 3) ** 0.5  # in bf16 the sum of a thousand squares stops at 256
    torch.testing.assert_close(opt.state[b]["prev_grad"], b.grad / (norm + 1e-6), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "options",
    [
        {"weight_decay": 0.3, "max_grad_norm": 1.0},
        {"weight_decay": 0.3, "foreach": False, "fused": False},
        {"weight_decay": 0.3, "no_prox": True},
        {"no_prox": True, "max_grad_norm": 0.5},
        {"weight_decay": 0.3, "no_prox": True, "bias_correction": False},
    ],
    ids=str,
)
def test_autograd_goes_through_a_differentiable_step(options):
    """To the start and the learning rate: learning it with `no_prox=True` once raised an error in backward."""

    def trained(lr, start):
        p = start.clone()  # no leaf: a step may write to it
        opt = Adan([p], lr=lr, betas=BETAS, differentiable=True, **options)
        for k in range(3):
            p.grad = (p * (k + 1)).sin() + start
            opt.step()
        return p.square().sum()

    lr = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    start = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(trained, (lr, start))


@pytest.mark.parametrize("engine", ENGINES)
def test_expanded_and_overlapping_gradients_are_read_as_they_look(engine):
    p, q = param(4, 5), param(4, 5)
    opt = Adan([p, q], lr=0.1, **engine)
    p.grad = torch.arange(5, dtype=torch.float64).expand(4, 5)
    q.grad = p.grad.contiguous()
    opt.step()
    assert torch.equal(p, q)


def test_repr_says_which_engine_serves():
    contiguous, strided = param(4), torch.zeros(8)[::2].requires_grad_()
    assert "Engines: foreach for 2 parameters\n" in repr(Adan([contiguous, strided], fused=False))
    assert "Engines: loop for 1 parameter" in repr(Adan([contiguous], foreach=False, fused=False))
    if cpu.Cpu().unsupported_reason(contiguous) is None:
        assert "Engines: cpu for 1 parameter, foreach for 1 parameter" in repr(Adan([contiguous, strided]))
        assert "cpu for 1 parameter, none (see fused=True) for 1" in repr(Adan([contiguous, strided], fused=True))
