"""The C engine: the same bits as the loop engine, and all that raw pointers could get wrong."""

import pytest
import torch
from support.cpu_engine import DTYPES, TAILS, assert_alike, problem, train, without_library
from support.parity import same_bits

from adan import Adan, plan, scalars
from adan.engines import cpu

# ---- as the loop engine, whose order of operations it follows


@without_library
@pytest.mark.usefixtures("same_norm")
@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 20.0, "maximize": True}, {"no_prox": True, "eps": 1e-3},
                                     {"bias_correction": False}], ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_same_states_as_the_loop(dtype, options):
    results = []
    for engine in ({"fused": True}, {"foreach": False, "fused": False}):
        params = problem(dtype, TAILS)
        opt = train(params, **options, **engine)
        results.append((params, opt))
    assert_alike(*results)


# ---- memory


@without_library
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nothing_outside_a_tensor_is_touched(dtype):
    for size in TAILS:
        margin = 64
        whole = torch.full((size + 2 * margin,), 3.0, dtype=dtype)
        p = whole[margin : margin + size].requires_grad_()
        opt = Adan([p], lr=0.1, fused=True)
        p.grad = torch.ones_like(p)
        opt.step()
        assert (whole[:margin] == 3).all()
        assert (whole[margin + size :] == 3).all()
        assert (p != 3).all()


@without_library
def test_autograd_learns_of_the_change():
    p = torch.ones(3, requires_grad=True)
    loss = (p * p).sum()
    p.grad = torch.ones(3)
    Adan([p], fused=True).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# ---- half precision


@without_library
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_half_precision_number_is_read_and_rounded_as_pytorch_does(dtype):
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    # b = 0, eps = 1, and a root of n that is zero: the step is the gradient itself, and no state comes between.
    for scale in (0.0, 1e-3, 1.0):
        results = []
        for engine in ({"fused": True}, {"foreach": False, "fused": False}):
            p = every.clone().requires_grad_()
            opt = Adan([p], lr=1.0, eps=1.0, weight_decay=scale, **engine)
            p.grad = every.flip(0)
            opt.step()
            results.append(p.detach())
        ours, theirs = results
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert same_bits(ours.nan_to_num(0.0), theirs.nan_to_num(0.0))


@without_library
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_inf_and_nan_come_through(dtype):
    p = torch.ones(40, dtype=dtype, requires_grad=True)
    opt = Adan([p], lr=0.1, fused=True)
    p.grad = torch.ones_like(p)
    p.grad[3], p.grad[37] = float("nan"), float("inf")
    opt.step()
    bad = ~torch.isfinite(p.detach())
    assert bad.nonzero().flatten().tolist() == [3, 37]
    assert opt.state[p]["exp_avg"][3].isnan()
    assert opt.state[p]["exp_avg"][37].isinf()


# ---- what it refuses


@without_library
def test_what_it_refuses():
    served = [torch.zeros(3, dtype=dtype) for dtype in (*DTYPES, torch.complex64, torch.complex128)]
    served += [torch.zeros(()), torch.zeros(0), torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)]
    served += [torch.zeros(3, 4).t(), torch.zeros(3, 1, 4).permute(2, 1, 0), torch.zeros(6)[2:]]
    assert [cpu.Cpu().unsupported_reason(p) for p in served] == [None] * len(served)
    assert "float32" in cpu.Cpu().unsupported_reason(torch.zeros(3, dtype=torch.float8_e4m3fn))
    assert "not dense" in cpu.Cpu().unsupported_reason(torch.zeros(6)[::2])
    assert "not dense" in cpu.Cpu().unsupported_reason(torch.zeros(1).expand(3))

    class Wrapped(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            raise NotImplementedError

    assert "Wrapped" in plan.fused_engine(torch.Tensor._make_wrapper_subclass(Wrapped, (3,)))[1]


def test_without_the_library_another_engine_serves(monkeypatch, tmp_path):
    monkeypatch.setattr(cpu, "LIBRARY", str(tmp_path / "_cpu.so"))
    params = problem(torch.float32, [(5,)])
    train(params)
    assert (params[0] != problem(torch.float32, [(5,)])[0]).all()
    with pytest.raises(RuntimeError, match="install a C compiler and reinstall"):
        train(params, fused=True)


# ---- the norm


@without_library
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_norm(dtype, threads, monkeypatch):
    """Of gradients in any layout, and for any number of threads the same."""
    grads = [torch.randn(size).to(dtype) for size in [*TAILS, 100_000]]
    grads += [torch.randn(4, 6).to(dtype).t(), torch.randn(20).to(dtype)[::2], torch.randn(()).to(dtype)]
    expected = sum(x.double().square().sum().item() for x in grads) ** 0.5
    norms = []

    def step_scalars(options, signals, t):
        norms.append(signals.norm.item())
        return scalars.step_scalars(options, signals, t)

    monkeypatch.setattr(cpu, "step_scalars", step_scalars)
    for count in (1, 2, 5):
        threads(count)
        params = [torch.zeros(x.shape, dtype=dtype, requires_grad=True) for x in grads]
        for p, grad in zip(params, grads, strict=True):
            p.grad = grad
        Adan(params, max_grad_norm=1.0, fused=True).step()
    assert norms[0] == pytest.approx(expected, rel=1e-12)
    assert len(set(norms)) == 1
