"""`torch.compile` down to machine code, by inductor: what eager backends do not show."""

import copy

import pytest
import torch

from adan import Adan

BETAS = (0.9, 0.8, 0.95)
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))


def test_compilation_to_machine_code():
    """Three steps, as they are and compiled: 8-bit and 4-bit states of 4,900 elements, no multiple of 32, Kahan
    summation of a bf16 parameter, and fp32 states. In one compilation, because it takes ten seconds.

    Users who compiled lost the weights of an 8-bit step (1e30 or NaN after one or two), and what kahan_sum had kept.
    """
    torch._dynamo.reset()
    torch.manual_seed(0)
    twins = []
    start = [torch.randn(70, 70), torch.ones(70, dtype=torch.bfloat16), torch.randn(70, 70), torch.randn(64)]
    for _ in range(2):
        params = [torch.nn.Parameter(x.clone()) for x in start]
        groups = [
            {"params": params[:2], "state_format": "8bit", "betas": (0.9, 0.9, 0.95)},
            {"params": params[2:3], "state_format": "4bit", "betas": (0.9, 0.9, 0.95)},
            {"params": params[3:], "lr": 0.02, "weight_decay": 0.3, "max_grad_norm": 1.0},
        ]
        twins.append((params, Adan(groups, lr=1e-3, kahan_sum=True, foreach=True)))
    steps = [twins[0][1].step, torch.compile(twins[1][1].step)]
    for _ in range(3):
        grads = [torch.ones_like(x) if x.dtype == torch.bfloat16 else torch.randn_like(x) for x in start]
        for (params, _), step in zip(twins, steps, strict=True):
            for p, grad in zip(params, grads, strict=True):
                p.grad = grad.clone()
            step()
    (eager, opt), (params, compiled_opt) = twins
    torch.testing.assert_close(params[3], eager[3], rtol=1e-5, atol=1e-6)
    for i in (0, 2):
        assert params[i].isfinite().all()
        # A last bit that differs may tip the rounding of a state.
        assert (params[i] - eager[i]).abs().max() < 1e-4
    kept = [o.state[p[1]]["compensation"] for o, p in ((opt, eager), (compiled_opt, params))]
    assert kept[0].any()
    torch.testing.assert_close(kept[1], kept[0], rtol=0.02, atol=0)
    assert torch.equal(params[1], eager[1])


def loop(param, opt, absent):
    """Steps of which some have no gradient."""
    for k in range(4):
        param.grad = None if k == absent else torch.full_like(param, 1.0 + k)
        opt.step()
    return param


@pytest.mark.skipif((2, 9) <= TORCH < (2, 12), reason="Dynamo of torch 2.9 to 2.11 cannot construct an optimizer")
def test_an_optimizer_that_is_constructed_inside():
    """A user who compiles a whole training function got AttributeError: no attribute '_norm_group'."""

    def train(param):
        return loop(param, Adan([param], lr=0.1, betas=BETAS), absent=2)

    torch._dynamo.reset()
    a, b = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    torch.testing.assert_close(torch.compile(train, backend="eager")(a), train(b))


@pytest.mark.parametrize("options", [{}, {"capturable": True, "max_grad_norm": 1.0}], ids=str)
def test_gradients_that_come_and_go(options):
    """A compiled step must look each time which gradients are there, or it steps with those of the time before."""
    torch._dynamo.reset()
    params = [torch.nn.Parameter(torch.ones(n)) for n in (3, 5)]
    twins = copy.deepcopy(params)
    opt, other = (Adan(x, lr=0.1, betas=BETAS, **options) for x in (params, twins))
    step = torch.compile(opt.step, backend="eager")
    for present in ((1, 1), (1, 0), (0, 0), (0, 1), (1, 1)):
        for group, run in ((params, step), (twins, other.step)):
            for i, (p, there) in enumerate(zip(group, present, strict=True)):
                p.grad = torch.full_like(p, 1.0 + i) if there else None
            run()
        torch.testing.assert_close(params, twins)
        assert [opt.state[p]["step"].item() if p in opt.state else 0 for p in params] == [
            other.state[p]["step"].item() if p in other.state else 0 for p in twins
        ]
