"""`Adan(restart=…)`: every engine restarts at the oracle's iterations, and from there it is a new optimizer."""

import functools
import itertools

import numpy as np
import pytest
import torch
from restart_reference import RestartingAdan
from support.engines import GPU, device_of, divides_zero_by_zero, serving
from support.engines import OPTIONS as ENGINES
from support.mistakes import seed_mistake
from support.parity import count_as_on_a_device, gradients, same_bits
from support.restarts import FORMATS, run

from adan import Adan, Restart
from adan.engines import foreach

SHAPES = [(5, 7), (3,), (), (2, 3, 4), (0,), (67,)]

#: Σ is of fp32 numbers in fp32; a radius is kept this far from what the oracle finds, relative to it.
MARGIN = {torch.float32: 1e-3, torch.float64: 1e-8}

pytestmark = divides_zero_by_zero


@pytest.fixture(params=ENGINES)
def engine(request):
    with serving(request.param):
        yield request.param


def random_options(seed):
    rng = np.random.default_rng(seed)
    b = rng.uniform(0.6, 0.95)
    return {
        "lr": float(rng.uniform(0.005, 0.05)),
        "betas": (b, b, 0.95) if seed % 5 == 4 else (b, 0.8, 0.95),
        "eps": [1e-8, 0.2, 0.0][seed % 3],
        "weight_decay": [0.0, 0.7, 0.7][seed % 3],
        "no_prox": seed % 3 == 2,
        "bias_correction": seed % 4 != 1,
        "max_grad_norm": 10.0 if seed % 7 == 3 else 0.0,
        "maximize": seed % 8 == 5,
    }


def oracle_of(theta, options, radius):
    return RestartingAdan(
        theta,
        options["lr"],
        radius,
        beta=tuple(1 - b for b in options["betas"]),
        eps=options["eps"],
        lam=options["weight_decay"],
        debias=options["bias_correction"],
        proximal=not options["no_prox"],
        clip=options["max_grad_norm"],
        ascend=options["maximize"],
    )


class Problem:
    """Given gradients, a schedule of the learning rate, and a radius that the oracle passes by a margin."""

    def __init__(self, seed, steps, dtype, uneven=False, cycle=8):
        self.options, self.dtype = random_options(seed), dtype
        rng = np.random.default_rng(seed)
        self.start = [torch.tensor(rng.standard_normal(shape)).to(dtype) for shape in SHAPES]
        self.grads = [[torch.tensor(x).to(dtype) for x in arrays] for arrays in gradients(steps, SHAPES, seed)]
        if uneven:  # then every step has the same learning rate: that of the last step is kept for each group
            for k in range(steps):
                self.grads[k][1] = None if k % 5 == 2 else self.grads[k][1]
                self.grads[k][3] = None if k < 3 else self.grads[k][3]
            self.grads[6] = [None] * len(SHAPES)
        self.rates = [self.options["lr"] * (1 if uneven else 1 + 0.5 * np.cos(k)) for k in range(steps)]
        self.radius = self.oracle(np.inf, cycle)[1][-1] ** 0.5
        while True:
            self.restarts, self.accumulated = self.oracle(self.radius, steps)
            if min(abs(x / self.radius**2 - 1) for x in self.accumulated if x) > MARGIN[dtype]:
                break
            self.radius *= 1.01

    def oracle(self, radius, steps):
        oracle = oracle_of([x.double().numpy() for x in self.start], self.options, radius)
        restarts, accumulated = [], []
        for k in range(steps):
            oracle.eta = self.rates[k]
            oracle.step([None if x is None else x.double().numpy() for x in self.grads[k]])
            accumulated.append(oracle.accumulated)
            if oracle.restarted:
                restarts.append(k)
        return restarts, accumulated

    def assert_agrees(self, engine, tolerance, **options):
        """The same restarts, and between them the same (k + 1)·Σ."""
        params = [x.to(device_of(engine), copy=True).requires_grad_() for x in self.start]
        opt = Adan(params, restart=Restart(radius=self.radius), **{**self.options, **ENGINES[engine], **options})
        found = []
        for k, grads in enumerate(self.grads):
            for p, grad in zip(params, grads, strict=True):
                p.grad = None if grad is None else grad.to(p.device, copy=True)
            opt.param_groups[0]["lr"] = self.rates[k]
            before = opt.restarts
            opt.step()
            if opt.restarts > before:
                found.append(k)
            else:
                error = opt.restart_progress.radius**2 / self.accumulated[k] - 1
                assert abs(error) < tolerance, f"step {k}: Σ is off by {error:.2e}"
        assert found == self.restarts, f"restarts at {found}, the oracle's at {self.restarts}"
        return found


#: The interpreter takes some 5 ms a program.
STEPS = {"loop": 40, "foreach": 40, "cpu": 40, "cuda": 40 if GPU else 12}
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
CASES = [
    (engine, seed, dtype)
    for engine in ENGINES
    for seed in range(8)
    for dtype in TOLERANCE
    if GPU or engine != "cuda" or (seed < 6 and dtype.itemsize == (8 if seed in (1, 2, 4) else 4))
]


@functools.cache
def random_problem(seed, steps, dtype):
    return Problem(seed, steps, dtype, uneven=seed % 2 == 1)


@pytest.mark.parametrize(("engine", "seed", "dtype"), CASES, indirect=["engine"], ids=str)
def test_restarts_are_the_oracle_s(engine, seed, dtype):
    problem = random_problem(seed, STEPS[engine], dtype)
    found = problem.assert_agrees(engine, TOLERANCE[dtype], capturable=seed % 6 == 5)
    assert len(found) >= STEPS[engine] // 20


@pytest.mark.parametrize("name", ["loop", "foreach"])
@pytest.mark.parametrize("seed", [0, 1, 4])
def test_restarts_that_only_the_device_knows(name, seed, monkeypatch):
    count_as_on_a_device(monkeypatch)
    Problem(seed, 40, torch.float64).assert_agrees(name, 1e-9)


def test_the_displacement_of_tensors_that_are_cut_into_pieces(monkeypatch):
    monkeypatch.setattr(foreach, "CPU_PIECE", 16)
    Problem(7, 40, torch.float64).assert_agrees("foreach", 1e-9)


@pytest.mark.parametrize("on_device", [False, True])
def test_elements_that_never_get_a_gradient_add_nothing(engine, on_device, monkeypatch):
    if on_device:
        count_as_on_a_device(monkeypatch)
    sums = []
    for size in (4, 9):
        p = torch.zeros(size, device=device_of(engine), requires_grad=True)
        opt = Adan([p], restart=Restart.probe(), **ENGINES[engine])
        for _ in range(5):
            p.grad = torch.arange(size, device=p.device, dtype=p.dtype) * (torch.arange(size, device=p.device) < 4)
            opt.step()
        sums.append(opt.restart_progress.sum)
    assert sums[1] == pytest.approx(sums[0], rel=1e-6)


#: What stands in `displacement_scalars`, and a mistake.
MISTAKES = [
    ("theta=-decay", "theta=decay"),
    ("step=(has_prev - shrink)", "step=(1 - shrink)"),
    ("grad=lr * (1 - b1)", "grad=lr * b1"),
    ("prev_m=last / debias_m", "prev_m=last"),
    ("prev_v=last * b2 / debias_v", "prev_v=last / debias_v"),
    ("prev_grad=last * (1 - b1)", "prev_grad=-last * (1 - b1)"),
    ("prev_root=debias_n**-0.5", "prev_root=debias_n"),
    ("prev_eps=options.eps + (1 - has_last)", "prev_eps=(1 - has_last)"),
    ("options.last_lr * has_last", "lr * has_last"),
    ("options.last_lr * has_last", "options.last_lr * has_prev"),
]


@pytest.mark.parametrize(("right", "wrong"), [("", ""), *MISTAKES])
def test_a_wrong_coefficient_of_the_displacement_is_noticed(right, wrong, monkeypatch):
    problem = Problem(7, 30, torch.float64)  # decayed, de-biased, eps = 0.2
    if not right:
        problem.assert_agrees("loop", 1e-9)
        return
    seed_mistake("adan.scalars", right, wrong, monkeypatch)
    with pytest.raises(AssertionError, match="off by"):
        problem.assert_agrees("loop", 1e-9)


def test_no_cycle_rounds_as_the_one_before(engine):
    """Else elements whose bits round them down in one cycle would never move. Every engine has the same bits."""

    def moved(which, cycles):
        p = torch.full((600,), 1.5, dtype=torch.bfloat16, device=device_of(which)).requires_grad_()
        opt = Adan([p], lr=1e-4, stochastic_rounding=True, restart=Restart(every=3), **ENGINES[which])
        for _ in range(3 * cycles):
            p.grad = torch.ones_like(p)
            opt.step()
        assert opt.restarts == cycles
        return p.detach().cpu()

    one, two = moved(engine, 1), moved(engine, 2)
    assert 10 < (one != 1.5).sum() < 60
    assert 10 < ((one == 1.5) & (two != 1.5)).sum() < 60
    assert torch.equal(two, moved("loop", 2))


@pytest.mark.parametrize("rule", [None, Restart.probe()], ids=str)
def test_a_manual_restart_takes_other_random_bits(rule):
    """By the number of restarts, which a checkpoint holds, and a plan does not: a step can be captured after it."""
    p = torch.nn.Parameter(torch.full((600,), 1.5, dtype=torch.bfloat16))
    opt = Adan([p], lr=1e-4, stochastic_rounding=True, restart=rule)
    values = []
    for i in range(3):
        for _ in range(3):
            p.grad = torch.ones_like(p)
            opt.step()
        values.append(p.detach().clone())
        opt.restart()
        assert opt._plan.guard.holds(opt.param_groups, [p], [p.grad], opt.state)
        if i == 1:
            saved, opt = opt.state_dict(), Adan([p], lr=1e-4, stochastic_rounding=True, restart=rule)
            opt.load_state_dict(saved)
    with pytest.raises(ValueError, match="manual_restarts must be a whole number of at least 0, got -1"):
        opt.load_state_dict({**saved, "param_groups": [{**saved["param_groups"][0], "manual_restarts": -1}]})
    for before, after in itertools.pairwise(values):
        assert 10 < ((before == 1.5) & (after != before)).sum() < 60


@pytest.mark.parametrize("options", FORMATS, ids=str)
def test_a_restarted_optimizer_is_a_new_one(engine, options):
    """To the bit, whatever is left in the states: setting the counters is all there is to it, but for random bits."""
    steps = 3 if engine == "cuda" and not GPU else 40
    size = 4100 if "state_format" in options else 70  # below 4,096 elements states are fp32
    start = torch.randn(size, generator=torch.Generator().manual_seed(0))
    p = start.to(device_of(engine), copy=True).requires_grad_()
    opt = Adan([p], lr=0.02, restart=Restart(every=30, after=4), **ENGINES[engine], **options)
    run([p], opt, 4)
    assert opt.restarts == 1
    for name in ("exp_avg", "exp_avg_diff", "exp_avg_sq", "prev_grad"):
        if name in opt.state[p]:
            opt.state[p][name].fill_(77 if options.get("state_format") in ("8bit", "4bit") else torch.nan)
    q = p.detach().clone().requires_grad_()
    new = Adan([q], lr=0.02, restart=Restart(every=30), **ENGINES[engine], **options)
    new._cycle.count.fill_(1)  # which random bits know
    run([p], opt, steps, first=4)
    run([q], new, steps, first=4)
    assert same_bits(p.detach(), q.detach())
    assert opt.restarts == new.restarts


@pytest.mark.parametrize("options", FORMATS[1:3], ids=str)
def test_quantized_states_restart_as_in_the_plain_engine(engine, options):
    rule = Restart(radius=1e-9, min_interval=3)
    curves = []
    for name in ("loop", engine):
        p = torch.randn(4100, generator=torch.Generator().manual_seed(0)).to(device_of(name)).requires_grad_()
        opt = Adan([p], lr=0.02, restart=rule, **ENGINES[name], **options)
        curve = []
        for k in range(8):
            run([p], opt, 1, first=k)
            curve.append((opt.restarts, opt.restart_progress.sum))
        curves.append(curve)
    torch.testing.assert_close(torch.tensor(curves[1]), torch.tensor(curves[0]), rtol=2e-3, atol=0)
    assert curves[0][-1][0] == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex64], ids=str)
def test_other_types_of_parameters(engine, dtype):
    results = []
    for name in ("loop", engine):
        p = torch.randn(70, generator=torch.Generator().manual_seed(0)).to(dtype).to(device_of(name)).requires_grad_()
        opt = Adan([p], lr=0.02, weight_decay=0.3, restart=Restart.probe(), **ENGINES[name])
        run([p], opt, 6)
        results.append(opt.restart_progress)
    assert results[0].k == results[1].k == 5
    assert results[1].sum == pytest.approx(results[0].sum, rel=3e-2 if dtype == torch.bfloat16 and not GPU else 1e-4)


def test_groups_with_learning_rates_of_their_own(engine):
    """One sum over all of them. The oracle knows one rate: two of them, whose sums meet."""
    shapes, radius = [(4, 3), (9,)], 0.55
    rng = np.random.default_rng(3)
    start = [rng.standard_normal(shape) for shape in shapes]
    options, rates = random_options(0), (0.01, 0.04)
    oracles = [oracle_of([x], {**options, "lr": lr}, np.inf) for x, lr in zip(start, rates, strict=True)]
    params = [torch.tensor(x, device=device_of(engine), requires_grad=True) for x in start]
    groups = [{"params": [p], "lr": lr} for p, lr in zip(params, rates, strict=True)]
    opt = Adan(groups, restart=Restart(radius=radius), **{**options, **ENGINES[engine]})
    count = 0
    for arrays in gradients(20, shapes):
        for p, x, oracle in zip(params, arrays, oracles, strict=True):
            p.grad = torch.tensor(x, device=p.device)
            oracle.step([x])
        opt.step()
        accumulated = oracles[0].cycle_k * (oracles[0].sum + oracles[1].sum)
        if accumulated > radius**2:
            count += 1
            for oracle in oracles:
                oracle.restart()
        else:
            assert opt.restart_progress.radius**2 == pytest.approx(accumulated, rel=1e-9)
        assert opt.restarts == count
    assert count > 1
