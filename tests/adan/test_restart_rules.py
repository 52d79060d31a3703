"""`Adan(restart=…)`: rules, checkpoints, skipped steps, and what does not go together with it."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from support.parity import same_bits
from support.restarts import FORMATS, run

from adan import Adan, Restart


@pytest.mark.parametrize("how", ["state dict", "deepcopy", "pickle"])
def test_a_run_that_goes_on_is_the_uninterrupted_one(how):
    rule = Restart(radius=1.0)

    def new():
        params = [torch.randn(30, generator=torch.Generator().manual_seed(i)).requires_grad_() for i in range(2)]
        return params, Adan([{"params": [p], "lr": 0.02 * (i + 1)} for i, p in enumerate(params)], restart=rule)

    params, opt = new()
    run(params, opt, 15)
    assert opt.restarts > 0
    assert opt.restart_progress.k > 0, "this must stop in the middle of a cycle"
    if how == "state dict":
        file = io.BytesIO()
        torch.save([opt.state_dict(), params], file)
        file.seek(0)
        saved, values = torch.load(file, weights_only=True)
        twins, twin = new()
        twin.load_state_dict(saved)
        for p, value in zip(twins, values, strict=True):
            p.data.copy_(value)
        assert "restart_state" not in twin.param_groups[0]
    else:
        twin = copy.deepcopy(opt) if how == "deepcopy" else pickle.loads(pickle.dumps(opt))
        twins = [p for group in twin.param_groups for p in group["params"]]
    assert twin.restart_progress == opt.restart_progress
    for group in (*opt.param_groups, *twin.param_groups):
        group["lr"] *= 1.5  # so that the rate of the last step matters
    run(params, opt, 15, first=15)
    run(twins, twin, 15, first=15)
    assert twin.restarts == opt.restarts
    assert twin.restart_progress == opt.restart_progress
    assert all(map(torch.equal, params, twins))


def test_a_checkpoint_goes_into_and_out_of_restarts():
    """From there on it measures what an optimizer with `restart` from the start does."""
    params, twins = ([torch.ones(3, requires_grad=True)] for _ in range(2))
    plain, measured, always = Adan(params), Adan(params, restart=Restart.probe()), Adan(twins, restart=Restart.probe())
    run(params, plain, 3)
    run(twins, always, 3)
    before = always.restart_progress.sum
    measured.load_state_dict(plain.state_dict())
    assert measured.restart_progress == (-1, 0.0)
    run(params, measured, 3, first=3)
    run(twins, always, 3, first=3)
    assert measured.restart_progress.sum == pytest.approx(always.restart_progress.sum - before)
    plain.load_state_dict(measured.state_dict())
    assert plain.restarts == 0


def test_a_checkpoint_of_groups_that_have_made_no_step():
    p, q = (torch.ones(3, requires_grad=True) for _ in range(2))
    opt, other = (Adan([p], restart=Restart.probe()) for _ in range(2))
    other.load_state_dict(opt.state_dict())
    run([p], opt, 3)
    for x in (opt, other):
        x.add_param_group({"params": [q]})
    other.load_state_dict(opt.state_dict())
    assert other.restart_progress == opt.restart_progress


@pytest.mark.parametrize("past_us", [False, True], ids=["load_state_dict", "as ZeroRedundancyOptimizer loads"])
@pytest.mark.parametrize("options", FORMATS, ids=str)
def test_a_checkpoint_taken_right_after_a_restart_has_no_past(options, past_us):
    """Also where it is loaded without `restart`, so that no step looks at counts of 0."""
    p = torch.nn.Parameter(torch.ones(4100))
    opt = Adan([p], restart=Restart(every=3), **options)
    run([p], opt, 3)
    assert opt.state[p]["step"] == 0
    loaded, new = Adan([p], **options), Adan([p], **options)
    if past_us:
        loaded.state[p] = copy.deepcopy(opt.state_dict()["state"][0])
    else:
        loaded.load_state_dict(opt.state_dict())
    after = []
    for x in (loaded, new):
        p.data.fill_(1.0)
        run([p], x, 2, first=3)
        after.append(p.detach().clone())
    assert same_bits(*after)


def test_every_so_many_steps(engine):
    p = torch.zeros(3, requires_grad=True)
    opt = Adan([p], restart=Restart(every=3, after=5), **engine)
    counts = []
    for k in range(12):
        run([p], opt, 1, first=k)
        counts.append(int(opt.state[p]["step"]))
    assert counts == [1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 0, 1]
    assert opt.restarts == 3


@pytest.mark.parametrize("options", [{}, {"skip_nonfinite": True}])
@pytest.mark.parametrize("rule", [Restart(every=3), Restart(radius=1e-12, min_interval=3)], ids=str)
def test_a_skipped_step_does_not_count(engine, options, rule):
    p = torch.zeros(3, requires_grad=True)
    opt = Adan([p], restart=rule, **engine, **options)
    for k in range(8):
        bad = k in (1, 2, 5)
        p.grad = torch.full_like(p, torch.nan if bad else 1.0)
        if not options:
            opt.found_inf = torch.tensor(float(bad), device=p.device)
        opt.step()
        assert opt.restarts == [0, 0, 0, 0, 1, 1, 1, 1][k]
        assert torch.isfinite(p).all()
    assert opt.restart_progress.k == 1


@pytest.mark.parametrize("options", [{}, {"skip_nonfinite": True}])
def test_the_rate_of_a_skipped_step_is_not_that_of_the_last_step(engine, options):
    sums = []
    for bad in ((), (1, 3, 4)):
        p = torch.zeros(3, requires_grad=True)
        opt = Adan([p], restart=Restart.probe(), **engine, **options)
        gradients = iter((1.0, -2.0, 0.5, 3.0))
        for k in range(4 + len(bad)):
            opt.param_groups[0]["lr"] = 7.0 if k in bad else 1e-3
            p.grad = torch.full_like(p, torch.nan if k in bad else next(gradients))
            if not options:
                opt.found_inf = torch.tensor(float(k in bad), device=p.device)
            opt.step()
        sums.append(opt.restart_progress.sum)
    assert sums[1] == pytest.approx(sums[0], rel=1e-6)


def test_a_restart_by_hand_starts_a_cycle(engine):
    p = torch.zeros(3, requires_grad=True)
    opt = Adan([p], restart=Restart.probe(), **engine)
    run([p], opt, 3)
    opt.restart_opt()  # the authors' name of restart()
    assert opt.restart_progress == (-1, 0.0)
    assert opt.restarts == 0


def test_the_radius_of_a_probe_makes_cycles_of_its_length(engine):
    def new(rule):
        p = torch.zeros(50, requires_grad=True)
        return [p], Adan([p], lr=0.01, restart=rule, **engine)

    params, probe = new(Restart.probe())
    run(params, probe, 20)
    radius = probe.restart_progress.radius
    params, opt = new(Restart(radius=0.999 * radius))
    run(params, opt, 20)
    assert (opt.restarts, opt.restart_progress.k) == (1, -1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "either radius or every"),
        ({"radius": 1.0, "every": 3}, "either radius or every"),
        ({"radius": 0.0}, "radius must be finite and above 0, got 0.0"),
        ({"radius": float("nan")}, "radius must be"),
        ({"radius": "1"}, "radius must be"),
        ({"every": 0}, "every must be at least 1, got 0"),
        ({"every": 1.5}, "every must be"),
        ({"every": 3, "after": 0}, "after must be"),
        ({"radius": 1.0, "after": 3}, "after=3 needs every, which is not given"),
        ({"every": 3, "min_interval": 3}, "min_interval=3 needs radius, which is not given"),
    ],
)
def test_what_is_no_rule(options, words):
    with pytest.raises((TypeError, ValueError), match=words):
        Restart(**options)


def test_numbers_of_numpy_are_numbers():
    rules = Restart(every=np.int64(3), after=np.int64(2)), Restart(radius=np.float32(3), min_interval=np.int64(1))
    assert rules == (Restart(every=3, after=2), Restart(radius=3.0, min_interval=1))
    assert "np." not in repr(rules)


def test_a_radius_whose_square_overflows_is_never_reached(engine):
    p = torch.zeros(3, requires_grad=True)
    opt = Adan([p], restart=Restart(radius=1e200), **engine)
    run([p], opt, 3)
    assert opt.restarts == 0


def test_a_checkpoint_of_a_run_that_met_nan_can_be_loaded():
    p = torch.ones(3, requires_grad=True)
    opt, twin = (Adan([p], restart=Restart(radius=1.0)) for _ in range(2))
    for value in (torch.nan, 1.0):
        p.grad = torch.full((3,), value)
        opt.step()
    assert np.isnan(opt.restart_progress.sum)
    twin.load_state_dict(opt.state_dict())
    assert np.isnan(twin.restart_progress.sum)


def test_a_group_that_is_deleted_takes_its_rate_along(engine):
    """The last rate of each group is part of the displacement."""
    sums = []
    for rates in ([1e-3], [1.0, 1e-3]):
        params = [torch.zeros(50, requires_grad=True) for _ in rates]
        groups = [{"params": [p], "lr": lr} for p, lr in zip(params, rates, strict=True)]
        opt = Adan(groups, restart=Restart.probe(), **engine)
        for k in range(3):
            for p in params:
                p.grad = torch.linspace(-1, 1 + k, 50).to(p)
            opt.step()
        if len(rates) > 1:
            del opt.param_groups[0], opt.state[params[0]]
        before = opt.restart_progress.sum
        params[-1].grad = torch.ones_like(params[-1])
        opt.step()
        sums.append(opt.restart_progress.sum - before)
    assert sums[1] == pytest.approx(sums[0], rel=1e-4)


def test_what_does_not_go_together():
    model = torch.nn.Linear(2, 1)
    rule = Restart(every=3)
    with pytest.raises(TypeError, match=r"restart must be None or an adan.Restart\(...\), got 0.5"):
        Adan(model.parameters(), restart=0.5)
    with pytest.raises(ValueError, match="differentiable=True"):
        Adan(model.parameters(), restart=rule, differentiable=True)
    with pytest.raises(ValueError, match=r"restart=Restart.*pass it to Adan"):
        Adan([{"params": model.parameters(), "restart": rule}])
    with pytest.raises(RuntimeError, match="nothing is measured"):
        _ = Adan(model.parameters()).restart_progress


def test_torch_compile_leaves_a_restarting_step_to_python():
    p = torch.zeros(3, requires_grad=True)
    opt = Adan([p], restart=Restart(every=2))
    step = torch.compile(opt.step, backend="eager")
    for _ in range(3):
        p.grad = torch.ones(3)
        step()
    assert opt.restarts == 1
