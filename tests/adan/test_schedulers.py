"""Schedulers that change betas from step to step: exact at every step, also where b1 meets b2."""

import numpy as np
import pytest
import torch
from support.parity import TOLERANCE, Row, gradients
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR

from adan import Adan

SHAPES = [(5, 7), (3,)]
#: b1 starts apart from b2, meets it, stays, parts, crosses it, and meets it at the end.
SCHEDULE = [0.9, 0.9, 0.85, 0.8, 0.8, 0.8, 0.75, 0.7, 0.85, 0.9, 0.8, 0.8]


def assert_exact(opt, params, oracle, steps, dtype, before_step, after_step=lambda k: None):
    """The oracle takes the gradients, the betas and the learning rate of each step."""
    for k, arrays in enumerate(gradients(steps, SHAPES)):
        before_step(k)
        group = opt.param_groups[0]
        oracle.beta, oracle.eta = tuple(1 - b for b in group["betas"]), float(group["lr"])
        grads = [torch.tensor(x, device="cpu").to(dtype) for x in arrays]
        for p, grad in zip(params, grads, strict=True):
            p.grad = grad.to(p.device, copy=True)
        opt.step()
        after_step(k)
        oracle.step([grad.double().numpy() for grad in grads])
        for p, theta in zip(params, oracle.theta, strict=True):
            error = np.abs(p.detach().double().cpu().numpy() - theta).max()
            assert error <= TOLERANCE[dtype], f"step {k}: off by {error:.2e}"


def problem(engine, dtype=torch.float64, **options):
    rng = np.random.default_rng(0)
    start = [rng.standard_normal(shape) for shape in SHAPES]
    params = [torch.tensor(x, dtype=dtype, device=torch.get_default_device()).requires_grad_() for x in start]
    row = Row("scheduled", {"weight_decay": 0.1, **options})
    return row.optimizer(params, 0.02, **engine), params, row.oracle(start, 0.02)


@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 5.0}, {"bias_correction": False}], ids=str)
def test_b1_passes_through_b2(engine, options):
    """A user whose schedule crosses b2 got "cannot be parted" in the middle of a run."""
    opt, params, oracle = problem(engine, betas=(0.9, 0.8, 0.95), **options)

    def before_step(k):
        opt.param_groups[0]["betas"] = (SCHEDULE[k], 0.8, 0.95)

    assert_exact(opt, params, oracle, len(SCHEDULE), torch.float64, before_step)


def one_cycle(opt):
    return OneCycleLR(opt, max_lr=0.05, total_steps=14, base_momentum=0.7, max_momentum=0.8)


def cyclic(opt):
    return CyclicLR(opt, 0.01, 0.05, step_size_up=4, base_momentum=0.7, max_momentum=0.8)


@pytest.mark.parametrize("schedule", [one_cycle, cyclic])
def test_torch_s_own_cycles_that_start_where_b1_is_b2(engine, schedule):
    """OneCycleLR and CyclicLR start at `max_momentum`; where that was b2, the second step raised."""
    opt, params, oracle = problem(engine, torch.float32, betas=(0.9, 0.8, 0.95))
    scheduler = schedule(opt)
    assert opt.param_groups[0]["betas"][0] == 0.8
    assert_exact(opt, params, oracle, 12, torch.float32, lambda k: None, lambda k: scheduler.step())


def test_equal_betas_that_change_together_are_exact_or_refused(engine):
    """One average for two holds for one b2: a user who lowered both betas got another algorithm, silently."""
    opt, params, oracle = problem(engine, betas=(0.9, 0.9, 0.95))

    def before_step(k):
        opt.param_groups[0]["betas"] = (0.9, 0.9, 0.95) if k < 4 else (0.6, 0.6, 0.95)

    try:
        assert_exact(opt, params, oracle, 8, torch.float64, before_step)
    except RuntimeError as error:
        assert "betas" in str(error)  # noqa: PT017
        assert all(opt.state[p]["step"] == 4 for p in params)


@pytest.mark.parametrize("schedule", [OneCycleLR, CyclicLR])
def test_a_schedule_that_cycles_b1_by_default_is_told_once(schedule):
    def made(**options):
        p = torch.nn.Parameter(torch.zeros(3))
        opt = Adan([p], lr=0.1)
        length = {"total_steps": 8} if schedule is OneCycleLR else {"base_lr": 0.1}
        schedule(opt, max_lr=0.2, **length, **options)
        p.grad = torch.ones(3)
        return opt

    opt = made()
    with pytest.warns(UserWarning, match=r"cycles betas\[0\] between 0.8.* and 0.9.*; pass cycle_momentum=False"):
        opt.step()
    opt.step()  # a warning is an error
    for options in ({"cycle_momentum": False}, {"base_momentum": 0.7, "max_momentum": 0.8}):
        opt = made(**options)
        opt.step()
