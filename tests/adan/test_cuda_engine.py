"""The Triton engine: on a GPU where there is one, else the same kernels in Triton's interpreter on the CPU."""

import pytest
import torch
from support.engines import GPU, device_of, divides_zero_by_zero, serving

from adan import Adan, Restart

DEVICE = device_of("cuda")

#: After the fourth step.
RESTART = Restart(radius=1e-6, min_interval=4)

#: A unit in the last place of bf16 is 2⁻⁸. The interpreter, unlike a GPU, drops the bits instead of rounding.
HALF = 2**-8 if GPU else 3e-2

pytestmark = divides_zero_by_zero


@pytest.fixture(autouse=True)
def _serve_by_triton():
    with serving("cuda"):
        yield


def test_addresses_may_be_unaligned_and_types_mixed():
    sizes = [1, 5, 63, 64, 65, 200]
    types = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
    torch.manual_seed(0)
    for shift in (0, 1, 3):
        params, twins = [], []
        for i, size in enumerate(sizes):
            flat = torch.randn(size + 8).to(DEVICE, types[i % 4])
            params.append(flat[shift : shift + size].requires_grad_())
            twins.append(params[-1].detach().clone().requires_grad_())
        ours = Adan(params, lr=0.05, weight_decay=0.3, max_grad_norm=1.0, fused=True)
        theirs = Adan(twins, lr=0.05, weight_decay=0.3, max_grad_norm=1.0, foreach=False, fused=False)
        for _ in range(3):
            for p, q in zip(params, twins, strict=True):
                p.grad = torch.randn(p.numel() + 8).to(p)[shift : shift + p.numel()]
                q.grad = p.grad.clone()
            ours.step()
            theirs.step()
        for p, q in zip(params, twins, strict=True):
            torch.testing.assert_close(
                p.detach(), q.detach(), rtol={2: HALF, 4: 1e-5, 8: 1e-12}[p.element_size()], atol=1e-3
            )


@pytest.mark.parametrize("state_format", ["8bit", "4bit"])
def test_quantized_states_may_be_unaligned(state_format):
    torch.manual_seed(0)
    start = torch.randn(4099, device=DEVICE)
    grads = [torch.randn(4099, device=DEVICE) for _ in range(3)]
    results = []
    for shift in (0, 1):
        p = start.clone().requires_grad_()
        options = {"lr": 0.05, "betas": (0.9, 0.8, 0.95), "state_format": state_format}
        opt, other = (
            Adan([p], **options, **engine) for engine in ({"foreach": False, "fused": False}, {"fused": True})
        )
        p.grad = grads[0]
        opt.step()
        codes = {name: x for name, x in opt.state[p].items() if x.dtype == torch.uint8 and name != "exponents"}
        for name, x in codes.items():
            opt.state[p][name] = torch.empty(x.numel() + 16, dtype=x.dtype, device=DEVICE)[shift:][: x.numel()].view(
                x.shape
            )
            opt.state[p][name].copy_(x)
        other.state[p] = opt.state[p]
        for grad in grads[1:]:
            p.grad = grad
            other.step()
        assert (other.state[p]["prev_grad"].data_ptr() % 4 != 0) == bool(shift)
        results.append([p.detach(), *(other.state[p][name].clone() for name in codes)])
    for aligned, unaligned in zip(*results, strict=True):
        if aligned.is_floating_point():  # a GPU's compiler fuses other additions in the other kernel
            torch.testing.assert_close(aligned, unaligned, rtol=1e-5 if GPU else 0, atol=1e-6 if GPU else 0)
        else:
            assert (aligned != unaligned).double().mean() <= (0.01 if GPU else 0)


def test_groups_counts_and_loss_scale():
    a, b, late = (torch.randn(n, device=DEVICE, requires_grad=True) for n in (70, 3, 5))
    twins = [p.detach().clone().requires_grad_() for p in (a, b, late)]
    results = []
    for params, engine in (((a, b, late), {"fused": True}), (twins, {"foreach": False, "fused": False})):
        groups = [
            {"params": params[:1], "lr": 0.1, "max_grad_norm": 0.5, "weight_decay": 0.2},
            {"params": params[1:], "betas": (0.5, 0.0, 0.7), "bias_correction": False, "no_prox": True},
        ]
        opt = Adan(groups, lr=torch.tensor(0.03, device=DEVICE), weight_decay=0.4, **engine)
        generator = torch.Generator().manual_seed(0)
        for k in range(6):
            for p in params[: 3 if k >= 3 else 2]:
                p.grad = torch.randn(p.shape, generator=generator).to(DEVICE) * 64
            opt.grad_scale = torch.tensor(64.0, device=DEVICE)
            opt.found_inf = torch.tensor(float(k == 4), device=DEVICE)
            opt.step()
        results.append([p.detach() for p in params])
        assert [opt.state[p]["step"].item() for p in params] == [5, 5, 2]
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


gpu_only = pytest.mark.skipif(not GPU, reason="needs a GPU; the same kernels run above in Triton's interpreter")


@gpu_only
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_grad_norm": 1.0},
        {"skip_nonfinite": True},
        {"restart": RESTART},
        {"state_format": "8bit"},
        {"state_format": "4bit", "max_grad_norm": 1.0},
    ],
    ids=str,
)
def test_a_captured_step_is_the_step(options):
    shapes = [(300, 300), (7,), (64, 3, 3, 3)]
    start = [torch.randn(shape, device="cuda") for shape in shapes]
    eager, captured = ([x.clone().requires_grad_() for x in start] for _ in range(2))
    rate = torch.tensor(0.05, device="cuda")
    a, b = (Adan(x, lr=rate, weight_decay=0.1, capturable=True, **options) for x in (eager, captured))
    feeds = [[torch.randn(shape, device="cuda") for shape in shapes] for _ in range(6)]
    for p in captured:
        p.grad = torch.empty_like(p)

    def feed(params, grads):
        for p, g in zip(params, grads, strict=True):
            if p.grad is None:
                p.grad = torch.empty_like(p)
            p.grad.copy_(g)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        feed(captured, feeds[0])
        b.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        b.step()
    feed(eager, feeds[0])
    a.step()
    for k in range(1, 6):
        rate.fill_(0.05 / k)
        feed(eager, feeds[k])
        a.step()
        feed(captured, feeds[k])
        graph.replay()
    torch.testing.assert_close(captured, eager, rtol=1e-6, atol=1e-7)
    assert b.state[captured[0]]["step"].item() == (2 if "restart" in options else 6)
    assert b.restarts == ("restart" in options)


@gpu_only
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")
def test_capture_without_capturable_is_refused():
    p = torch.zeros(4, device="cuda", requires_grad=True)
    p.grad = torch.ones_like(p)
    opt = Adan([p])
    opt.step()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="capturable=True"), torch.cuda.graph(graph):
        opt.step()


@gpu_only
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@pytest.mark.parametrize("engine", [{"fused": True}, {"foreach": True, "capturable": True}], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_grad_norm": 1.0},
        {"skip_nonfinite": True, "max_grad_norm": 1.0},
        {"restart": RESTART},
        {"restart": RESTART, "skip_nonfinite": True, "state_format": "8bit"},
        {"restart": RESTART, "skip_nonfinite": True, "state_format": "4bit"},
        {"restart": Restart(every=2)},
    ],
    ids=str,
)
def test_a_step_never_synchronizes(options, engine):
    params = [torch.randn(n, device="cuda", requires_grad=True) for n in (1000, 7)]
    opt = Adan(params, lr=0.1, **options, **engine)
    for p in params:
        p.grad = torch.randn_like(p)
    opt.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            opt.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@gpu_only
def test_under_gradscaler_on_the_gpu():
    model = torch.nn.Linear(64, 64).cuda()
    twin = torch.nn.Linear(64, 64).cuda()
    twin.load_state_dict(model.state_dict())
    a, b = (
        Adan(m.parameters(), lr=1e-2, max_grad_norm=1.0, **e)
        for m, e in ((model, {"fused": True}), (twin, {"foreach": True}))
    )
    for m, opt in ((model, a), (twin, b)):
        torch.manual_seed(0)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**16)
        for k in range(5):
            opt.zero_grad()
            x = torch.randn(32, 64, device="cuda") * (1e30 if k == 2 else 1)
            with torch.autocast("cuda", torch.float16):
                loss = m(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        assert opt.state[m.weight]["step"].item() == 4
    torch.testing.assert_close(model.weight, twin.weight, rtol=1e-4, atol=1e-5)


@gpu_only
def test_two_streams():
    params = [torch.randn(1_000_000, device="cuda", requires_grad=True) for _ in range(2)]
    twins = [p.detach().clone().requires_grad_() for p in params]
    opts = [Adan([p], lr=0.1, fused=True) for p in params]
    plain = [Adan([p], lr=0.1, foreach=False, fused=False) for p in twins]
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    for k in range(20):
        for p, q, opt, other, stream in zip(params, twins, opts, plain, streams, strict=True):
            with torch.cuda.stream(stream):
                p.grad = torch.full_like(p, 1.0 + k)
                opt.step()
                q.grad = torch.full_like(q, 1.0 + k)
                other.step()
    torch.cuda.synchronize()
    torch.testing.assert_close(params, twins, rtol=1e-5, atol=1e-5)


@gpu_only
def test_more_elements_than_32_bits_can_count():
    n = 2**31 + 4097
    p = torch.ones(n, dtype=torch.bfloat16, device="cuda").requires_grad_()
    p.grad = torch.full((n,), 0.5, dtype=torch.bfloat16, device="cuda")
    opt = Adan([p], lr=0.5, fused=True, max_grad_norm=1.0)
    opt.step()
    assert (p.detach() == 0.5).all()
    clipped = 0.5 / (0.5 * n**0.5 + 1e-6)
    torch.testing.assert_close(opt.state[p]["prev_grad"][-5:].cpu(), torch.full((5,), clipped), rtol=1e-5, atol=0)


@gpu_only
@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")
def test_a_step_is_two_launches():
    params = [torch.randn(n, device="cuda", requires_grad=True) for n in (1000, 7, 64, 300)]
    for options, launches in (({}, 2), ({"max_grad_norm": 1.0}, 3)):
        opt = Adan([{"params": params[:2]}, {"params": params[2:], "weight_decay": 0.1}], fused=True, **options)
        for p in params:
            p.grad = torch.randn_like(p)
        opt.step()
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            opt.step()
            torch.cuda.synchronize()
        kernels = [
            e
            for e in profile.events()
            if e.device_type == torch.autograd.DeviceType.CUDA and "mem" not in e.name.lower()
        ]
        assert len(kernels) == launches, [e.name for e in kernels]
