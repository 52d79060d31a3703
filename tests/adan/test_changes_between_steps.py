"""What a program may do to parameters, states and groups between two steps, and what then must hold."""

import gc
import math
import weakref

import pytest
import torch

from adan import Adan, guard


@pytest.fixture
def engine(engine):
    """By default rather than by demand: a parameter may change into what a fused engine does not serve."""
    return {name: value for name, value in engine.items() if name != "fused"}


def step(opt, p, value):
    p.grad = torch.full_like(p, value) + torch.arange(p.numel(), dtype=p.dtype).view(p.shape) / 10
    opt.step()


def data(change):
    """Of the second twin: its data is changed, and its gradient is not that of before."""

    def change_data(ours, p, is_second):
        if is_second:
            p.data = change(p.data)
            p.grad = None

    return change_data


def turned_where_it_lies(x):
    return x.reshape(-1).as_strided(x.shape, (1, len(x))).copy_(x.clone())


def view_of_a_state(opt, p, is_second):
    """At the same address: its identity alone tells."""
    average = opt.state[p]["exp_avg"].t()
    opt.state[p]["exp_avg"] = average if is_second else average.contiguous()


#: What happens to one of two twins, or to both in two ways that mean the same.
CHANGES = {
    "channels_last": data(lambda x: x.to(memory_format=torch.channels_last)),
    "turned where it lies": data(turned_where_it_lies),
    "other memory": data(torch.clone),
    "another type": data(torch.Tensor.double),
    "gaps": data(lambda x: torch.zeros(2 * x.numel())[::2].view(x.shape).copy_(x)),
    "a state that is a view of itself": view_of_a_state,
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_means_the_same_takes_the_same_steps(engine, name):
    shape = (2, 3, 4, 4) if name == "channels_last" else (4, 4)
    twins = [torch.arange(float(math.prod(shape))).view(shape).requires_grad_() for _ in range(2)]
    opts = [Adan([p], lr=0.1, betas=(0.9, 0.8, 0.95), **engine) for p in twins]
    for k in range(4):
        for i, (opt, p) in enumerate(zip(opts, twins, strict=True)):
            if k == 2:
                CHANGES[name](opt, p, i == 1)
            step(opt, p, 1.0 - k)
    torch.testing.assert_close(*(p.detach().float().contiguous() for p in twins), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("in_c", [True, False])
def test_parameters_and_states_change_places(engine, in_c, monkeypatch):
    """The same tensors, of the same shapes, in another order. in_c: as the C library sees it, or without one."""
    if not in_c:
        monkeypatch.setattr(guard, "_identity_check", lambda: None)
    a, b = ([torch.full((3,), float(i), requires_grad=True) for i in range(2)] for _ in range(2))
    opts = [Adan(list(params), lr=0.1, betas=(0.9, 0.8, 0.95), **engine) for params in (a, b)]
    for k in range(6):
        if k == 2:
            opts[1].param_groups[0]["params"].reverse()
        for opt, params in zip(opts, (a, b), strict=True):
            if k == 4:
                one, other = (opt.state[p] for p in params)
                swapped = other["exp_avg"], one["exp_avg"]
                one["exp_avg"], other["exp_avg"] = (x.clone() for x in swapped) if opt is opts[0] else swapped
            for i, p in enumerate(params):
                p.grad = torch.full_like(p, float(k + 10 * i))
            opt.step()
    torch.testing.assert_close(a, b)


def test_a_model_is_converted_by_swapping_its_parameters(engine, monkeypatch):
    """As `model.to` does with DTensors. It was refused after a step, because of weak references to parameters."""
    weights = []
    for swaps, options in ((False, {"foreach": False, "fused": False}), (True, engine)):
        monkeypatch.setattr(torch.__future__, "_swap_module_params_on_conversion", swaps)
        model = torch.nn.Linear(3, 2)
        torch.nn.init.ones_(model.weight)
        opt = Adan(model.parameters(), lr=0.1, betas=(0.9, 0.8, 0.95), **options)
        for k in range(4):
            if k == 2:
                model.zero_grad()
                model.to(torch.float64)
            for p in model.parameters():
                step(opt, p, 1.0 - k)
        assert all(x.dtype == torch.float64 for x in opt.state[model.weight].values())
        weights.append(model.weight.detach())
    torch.testing.assert_close(*weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("first", ["is skipped", "fails"])
def test_a_turned_gradient_after_a_first_step_that_changed_nothing(engine, first):
    """The C engine read it as if it lay like its parameter: the step that saw how it lies had not come to its table."""
    results = []
    for options in (engine, {"foreach": False, "fused": False}):
        p, q = torch.ones(3, 4, requires_grad=True), torch.ones(2, requires_grad=True)
        opt = Adan([p, q], lr=0.1, betas=(0.9, 0.8, 0.95), **options)
        eps = opt.param_groups[0].pop("eps") if first == "fails" else 1e-8
        for k in range(3):
            p.grad = None if k == 1 else torch.arange(12.0).view(4, 3).t() - 5 * k
            q.grad = torch.ones(2)
            opt.found_inf = torch.tensor(float(first == "is skipped" and k == 0))
            try:
                opt.step()
            except KeyError:
                opt.param_groups[0]["eps"] = eps
        results.append(p.detach())
    torch.testing.assert_close(*results)


def test_a_state_is_replaced_or_of_another_type(engine):
    p = torch.ones(10, requires_grad=True)
    opt = Adan([p], lr=0.1, betas=(0.9, 0.8, 0.95), **engine)
    step(opt, p, 1.0)
    opt.state[p]["exp_avg"] = torch.zeros(10, dtype=torch.float64)
    opt.state[p]["step"] = torch.tensor(0)
    step(opt, p, 1.0)
    assert opt.state[p]["step"] == 1
    assert opt.state[p]["step"].dtype == torch.float64
    torch.testing.assert_close(opt.state[p]["exp_avg"], 0.1 * p.grad)


def test_a_state_that_does_not_fit_is_an_error_once_there_is_a_gradient(engine):
    """As of a frozen layer that was given another size."""
    p, q = (torch.ones(3, requires_grad=True) for _ in range(2))
    opt = Adan([p, q], lr=0.1, **engine)
    q.grad = torch.ones(3)
    step(opt, p, 1.0)
    grad, q.grad, q.data = q.grad, None, torch.ones(5)
    step(opt, p, 1.0)
    q.grad = torch.ones(5)
    with pytest.raises(RuntimeError, match=r"its exp_avg has shape \(3,\)"):
        opt.step()
    q.grad, q.data = None, torch.ones(3)
    q.grad, q.data = grad, torch.ones(5)
    with pytest.raises(RuntimeError, match=r"its gradient has shape \(3,\): call zero_grad"):
        opt.step()
    assert opt.state[p]["step"] == 2


def test_a_tensor_lr_becomes_a_number(engine):
    p = torch.ones(4, requires_grad=True)
    opt = Adan([p], lr=torch.tensor(0.1), **engine)
    step(opt, p, 1.0)
    before = p.detach().clone()
    opt.param_groups[0]["lr"] = 0.0
    step(opt, p, 1.0)
    assert torch.equal(p, before)


@pytest.mark.parametrize(("name", "value"), [("eps", 0.5), ("weight_decay", 0.5), ("max_grad_norm", 0.25)])
def test_an_option_becomes_a_tensor(engine, name, value):
    """As a schedule may compute it. The CUDA engine made weights NaN, or did not clip; two engines refused it."""
    results = []
    for x in (value, torch.tensor(value)):
        p, q = (torch.ones(4, requires_grad=True) for _ in range(2))
        opt = Adan([{"params": [p]}, {"params": [q], "foreach": False, "fused": False}], lr=0.1, **engine)
        step(opt, p, 1.0)
        opt.param_groups[0][name] = x
        step(opt, p, 2.0)
        q.grad = torch.ones(4)
        step(opt, p, 3.0)
        results.append((p, q))
    torch.testing.assert_close(*results)
    opt.load_state_dict(opt.state_dict())
    assert opt.param_groups[0][name] == value


def test_a_negative_view_is_a_gradient_like_any_other(engine):
    params = [torch.ones(size, requires_grad=True) for size in (4, 1)]
    opt = Adan(params, lr=0.1, **engine)
    for _ in range(2):
        for p in params:
            p.grad = torch.full(p.shape, 1j).conj().imag
            assert p.grad.is_neg()
        opt.step()
    for p in params:
        torch.testing.assert_close(p.detach(), torch.full_like(p, 1.2))


@pytest.mark.parametrize("options", [{}, {"state_format": "8bit"}, {"foreach": True}], ids=str)
def test_no_gradient_outlives_its_step(options):
    params = [torch.randn(70, 70, requires_grad=True), torch.randn(3, requires_grad=True)]
    opt = Adan(params, **options)
    alive = []
    for _ in range(3):
        for p in params:
            p.grad = torch.randn_like(p)
        alive += [weakref.ref(p.grad.untyped_storage()) for p in params]
        opt.step()
        opt.zero_grad()
    gc.collect()
    assert not any(ref() for ref in alive)


def test_a_parameter_moves_to_another_group(engine):
    """Between neighbors the order of all parameters stays as it is."""
    a, b, c = (torch.ones(3, requires_grad=True) for _ in range(3))
    opt = Adan([{"params": [a, b]}, {"params": [c], "lr": 0.0}], lr=0.1, **engine)
    for p in (a, b, c):
        p.grad = torch.ones(3)
    opt.step()
    opt.param_groups[0]["params"], opt.param_groups[1]["params"] = [a], [b, c]
    before = b.detach().clone()
    opt.step()
    assert torch.equal(b, before)


def test_a_parameter_with_a_coupled_state_moves_to_a_new_group(engine):
    a, b = (torch.ones(3, requires_grad=True) for _ in range(2))
    opt = Adan([a, b], lr=0.1, betas=(0.9, 0.9, 0.99), **engine)
    for p in (a, b):
        p.grad = torch.ones(3)
    opt.step()
    opt.param_groups[0]["params"] = [a]
    opt.add_param_group({"params": [b]})
    opt.step()
    assert torch.equal(a, b)
    opt.param_groups[1]["betas"] = (0.8, 0.8, 0.99)
    before = [p.detach().clone() for p in (a, b)]
    with pytest.raises(
        RuntimeError,
        match=r"parameter 0 of group 1, .* its state is coupled.*betas=\(0\.8, 0\.8, 0\.99\).*coupled=False",
    ):
        opt.step()
    assert all(map(torch.equal, (a, b), before))


def test_skip_nonfinite_of_a_group_that_is_set_later(engine):
    p = torch.ones(3, requires_grad=True)
    opt = Adan([p], lr=0.1, **engine)
    opt.param_groups[0]["skip_nonfinite"] = True
    step(opt, p, float("nan"))
    assert (p == 1).all()
