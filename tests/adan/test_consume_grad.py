"""consume_grad: the gradient's buffer becomes the state, and nothing else changes."""

import gc
import weakref

import pytest
import torch
from support.parity import count_as_on_a_device

from adan import Adan, Restart

ENGINES = {"loop": {"foreach": False}, "foreach": {"foreach": True}}


def run(consume, engine, dtype, options, bad_steps=(3,), steps=12):
    generator = torch.Generator().manual_seed(0)
    shapes = [(5, 7), (3,), (), (2, 3, 4, 4)]
    params = [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]
    params[3].data = params[3].data.to(memory_format=torch.channels_last)
    opt = Adan(params, lr=0.05, betas=(0.9, 0.8, 0.95), consume_grad=consume, **options, **engine)
    for k in range(steps):
        for i, p in enumerate(params):
            if (k + i) % 5:
                p.grad = torch.randn(p.shape, generator=generator).to(dtype) * (k + 1)
                if options.get("skip_nonfinite") and k in bad_steps and i == 0:
                    p.grad[0, 0] = float("nan")
        buffers = [p.grad for p in params]
        opt.step()
        if consume:
            assert all(p.grad is None for p in params)
            for p, buffer in zip(params, buffers, strict=True):
                if buffer is not None and buffer.stride() == p.stride():
                    assert opt.state[p]["prev_grad"].data_ptr() == buffer.data_ptr()
        opt.zero_grad()
    return opt, [p.detach().clone() for p in params]


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_grad_norm": 1.0, "maximize": True},
        {"skip_nonfinite": True, "max_grad_norm": 5.0},
        {"bias_correction": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_consumed_gradient_makes_the_same_step(engine, dtype, options, on_device, monkeypatch):
    if on_device:
        count_as_on_a_device(monkeypatch)
    for bad_steps in [(3,), (0, 1, 7)]:
        _, expected = run(False, ENGINES[engine], dtype, options, bad_steps)
        _, actual = run(True, ENGINES[engine], dtype, options, bad_steps)
        torch.testing.assert_close(actual, expected, rtol=1e-6 if dtype != torch.bfloat16 else 1e-2, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_checkpoints_move_between_consuming_and_not(engine):
    options = {"max_grad_norm": 1.0}
    for first in (True, False):
        opt, params = run(first, ENGINES[engine], torch.float32, options)
        twins = [[p.clone().requires_grad_() for p in params] for _ in range(2)]
        others = [Adan(twins[0], consume_grad=False, **ENGINES[engine]), Adan(twins[1], consume_grad=True)]
        for other, new in zip(others, twins, strict=True):
            other.load_state_dict(opt.state_dict())
            for k in range(3):
                for p in new:
                    p.grad = torch.full_like(p, k + 1.0)
                other.step()
        torch.testing.assert_close(twins[0], twins[1])


def test_a_gradient_that_shares_its_memory_is_copied():
    p = torch.zeros(4, requires_grad=True)
    bucket = torch.ones(8)
    opt = Adan([p], lr=0.1, consume_grad=True)
    p.grad = bucket[:4]
    opt.step()
    bucket.fill_(7.0)
    assert (opt.state[p]["prev_grad"] == 1).all()


def test_what_consuming_excludes():
    p = torch.zeros(2)
    with pytest.raises(ValueError, match="capturable"):
        Adan([p], consume_grad=True, capturable=True)
    with pytest.raises(ValueError, match="differentiable"):
        Adan([p], consume_grad=True, differentiable=True)


def test_torch_compile_leaves_a_consuming_step_to_python():
    p = torch.zeros(2, requires_grad=True)
    opt = Adan([p], lr=0.1, consume_grad=True)
    step = torch.compile(opt.step, backend="eager")
    for _ in range(3):
        p.grad = torch.ones(2)
        step()
        assert p.grad is None
    torch.testing.assert_close(p.detach(), torch.full((2,), -0.3))


@pytest.mark.parametrize("options", [{}, {"consume_grad": True}, {"state_format": "8bit"}, {"foreach": True}], ids=str)
def test_no_gradient_outlives_its_step(options):
    """Other than a consumed one, which is the state until the next step."""
    params = [torch.randn(70, 70, requires_grad=True), torch.randn(3, requires_grad=True)]
    opt = Adan(params, **options)
    alive = []
    for _ in range(3):
        for p in params:
            p.grad = torch.randn_like(p)
        alive.append([weakref.ref(p.grad.untyped_storage()) for p in params])
        opt.step()
        opt.zero_grad()
        gc.collect()
    last_is_kept = [name for name, state in enumerate(opt.state.values()) if "prev_scale" in state]
    assert not any(ref() for refs in alive[:-1] for ref in refs)
    assert not any(ref() for i, ref in enumerate(alive[-1]) if i not in last_is_kept)


@pytest.mark.parametrize("engine", [*ENGINES.values(), {}], ids=str)
def test_a_gradient_that_is_lazily_conjugated(engine):
    """Of `W.conj() @ y`: a skipped step must put the previous gradient back into the buffer that stays."""
    results = []
    for consume in (False, True):
        torch.manual_seed(0)
        weight = torch.randn(4, 4, dtype=torch.complex64, requires_grad=True)
        opt = Adan([weight], lr=0.05, consume_grad=consume, skip_nonfinite=True, **engine)
        for k in range(6):
            x = torch.randn(4, 1, dtype=torch.complex64) * (float("inf") if k == 3 else 1)
            (weight.conj() @ x).abs().sum().backward()
            assert weight.grad.is_conj()
            opt.step()
            opt.zero_grad()
        results.append(weight.detach().clone())
    assert torch.equal(*results)
    assert results[0].isfinite().all()


@pytest.mark.parametrize("engine", [*ENGINES.values(), {}], ids=str)
def test_a_gradient_in_the_parameter_s_own_memory(engine):
    results = []
    for consume in (False, True):
        p = torch.linspace(1, 2, 5).requires_grad_()
        opt = Adan([p], lr=0.1, consume_grad=consume, **engine)
        for _ in range(4):
            p.grad = p.detach()
            opt.step()
        results.append(p.detach().clone())
    assert torch.equal(*results)


def test_two_parameters_with_one_gradient():
    """After a skipped step each needs a buffer of its own, for its own previous gradient."""
    params = [torch.ones(3, requires_grad=True) for _ in range(2)]
    opt = Adan([*params, torch.ones(0, requires_grad=True)], consume_grad=True, skip_nonfinite=True)
    for i, p in enumerate(params):
        p.grad = torch.full((3,), 1.0 + i)
    opt.step()
    params[0].grad = params[1].grad = torch.full((3,), torch.inf)
    opt.step()
    assert [opt.state[p]["prev_grad"].tolist() for p in params] == [[1.0] * 3, [2.0] * 3]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_restart_that_only_the_device_knows_forgets_what_was_consumed(engine, monkeypatch):
    count_as_on_a_device(monkeypatch)
    p = torch.ones(3, requires_grad=True)
    opt = Adan([p], lr=0.1, consume_grad=True, restart=Restart(every=1), **ENGINES[engine])
    for value in (torch.nan, 1.0):
        p.data.fill_(1.0)
        p.grad = torch.full((3,), value)
        opt.step()
    torch.testing.assert_close(p.detach(), torch.full((3,), 0.9))
