"""`torch.compile(opt.step)`, and proof that a step on a device never reads anything back."""

import re
from pathlib import Path

import pytest
import torch
import torch._dynamo
from support.parity import ROW, gradients
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

import adan
from adan import Adan, Restart, lowbit, scalars, sharding
from adan.columns import Columns
from adan.scalars import Signals

SHAPES = [(5, 7), (3,), ()]


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("fast betas", "eager"),
        ("everything", "aot_eager"),
        ("to the letter, decayed", "eager"),
        ("skipping", "aot_eager"),
    ],
)
def test_a_compiled_step_is_the_step(name, backend):
    start = [torch.randn(shape) for shape in SHAPES]
    eager, compiled = ([x.clone().requires_grad_() for x in start] for _ in range(2))
    a, b = (ROW[name].optimizer(params, 0.02) for params in (eager, compiled))
    step = torch.compile(b.step, backend=backend)
    for k, arrays in enumerate(gradients(12, SHAPES)):
        for p, q, x in zip(eager, compiled, arrays, strict=True):
            p.grad, q.grad = (torch.tensor(x, dtype=torch.float32) for _ in range(2))
        if name == "skipping" and k == 4:
            compiled[0].grad[0, 0] = eager[0].grad[0, 0] = float("nan")
        a.step()
        step()
    for p, q in zip(eager, compiled, strict=True):
        torch.testing.assert_close(q, p, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"capturable": True, "max_grad_norm": 1.0},
        {"state_format": "8bit", "lr": torch.tensor(1e-3)},
        {"state_format": "4bit"},
    ],
    ids=str,
)
def test_a_compiled_step_is_one_graph_and_is_compiled_once(options):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    params = [torch.randn(70, 70, requires_grad=True), torch.randn(3, requires_grad=True)]
    opt = Adan(params, **options)
    step = torch.compile(opt.step, backend=counter)
    for _ in range(4):
        for p in params:
            p.grad = torch.randn_like(p)
        step()
    assert counter.frame_count == 1


def test_nothing_that_an_older_torch_cannot_trace():
    """Here the tests run on one version. torch 2.8 breaks the graph at `_replace`, 2.10 at a NamedTuple's property."""
    sources = list(Path(adan.__file__).parent.rglob("*.py"))
    assert len(sources) > 10
    assert not [path.name for path in sources if "._replace(" in path.read_text(encoding="utf-8")]
    kinds = [Columns, Signals, scalars.Scalars, lowbit.Code, lowbit.RandomBits]
    assert not [kind for kind in kinds for value in vars(kind).values() if isinstance(value, property)]


def run_on_a_pretended_gpu(tensors=(), **options):
    """Under fake tensors nothing has a value: whatever asks for one on the host raises."""
    with FakeTensorMode():
        params = [torch.empty(shape, device="cuda", requires_grad=True) for shape in SHAPES]
        opt = Adan(params, lr=0.1, weight_decay=0.1, foreach=True, **options)
        opt.param_groups[0].update({name: torch.empty((), device="cuda") for name in tensors})
        opt.found_inf, opt.grad_scale = torch.empty((), device="cuda"), torch.empty((), device="cuda")
        for _ in range(3):
            for p in params:
                p.grad = torch.empty_like(p)
            opt.step()
        assert all(state["step"].device.type == "cuda" for state in opt.state.values())


@pytest.mark.parametrize("skip_nonfinite", [True, False])
@pytest.mark.parametrize("norm_group", [None, "world"])
@pytest.mark.parametrize(
    "options",
    [
        {"capturable": True},
        {"capturable": True, "bias_correction": False},
        {"capturable": True, "max_grad_norm": 1.0},
        {"capturable": True, "max_grad_norm": 1.0, "bias_correction": False},
        {"restart": Restart(radius=1.0, min_interval=2)},
        {"restart": Restart(every=2, after=1)},
    ],
    ids=str,
)
def test_a_step_never_synchronizes(options, norm_group, skip_nonfinite, monkeypatch):
    monkeypatch.setattr(sharding, "sum_over", lambda sums, mesh, norm_group=None: sums)
    run_on_a_pretended_gpu(**options, norm_group=norm_group, skip_nonfinite=skip_nonfinite)


@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.device_count() < 2, reason="there is one GPU, not two")
@pytest.mark.parametrize("options", [{}, {"restart": Restart.probe()}], ids=str)
def test_a_learning_rate_on_one_gpu_is_that_of_parameters_on_two(options):
    with FakeTensorMode():
        params = [torch.empty(3, device=f"cuda:{i}", requires_grad=True) for i in range(2)]
        lr = torch.empty((), device="cuda:0")
        opt = Adan(params, lr=lr, foreach=True, capturable=True, **options)
        for p in params:
            p.grad = torch.empty_like(p)
        opt.step()
        assert opt.param_groups[0]["lr"] is lr


def test_options_that_are_tensors_are_not_read():
    run_on_a_pretended_gpu(tensors=("lr", "eps", "weight_decay"), capturable=True)


def test_the_pretended_gpu_notices_a_synchronization(monkeypatch):
    monkeypatch.setattr(scalars.host_readable, "__code__", (lambda number: True).__code__)
    with pytest.raises(DataDependentOutputException):
        run_on_a_pretended_gpu(capturable=True)


def test_other_betas_than_those_of_a_coupled_state_are_an_error_when_compiled_too():
    p = torch.ones(3, requires_grad=True)
    opt = Adan([p], betas=(0.9, 0.9, 0.99))
    compiled = torch.compile(opt.step, backend="eager")
    p.grad = torch.ones(3)
    compiled()
    compiled()
    opt.param_groups[0]["betas"] = (0.5, 0.9, 0.99)
    with pytest.raises(Exception, match="its state is coupled"):
        compiled()


def test_states_of_another_form_are_converted_or_an_error_when_compiled():
    """A traced step must not ignore the option. It cannot convert states; some versions of torch make them untraced."""
    p = torch.nn.Parameter(torch.ones(4100))
    opt = Adan([p], lr=0.1, foreach=True)
    p.grad = torch.ones_like(p)
    opt.step()
    opt.param_groups[0]["state_format"] = "8bit"
    message = ""
    try:
        torch.compile(opt.step, backend="eager")()
    except Exception as error:
        message = str(error)
        opt.step()
    assert not message or re.search(
        r"does not have the form .* call optimizer.step\(\) once outside torch.compile", message
    )
    assert opt.state[p]["exp_avg"].dtype == torch.uint8


def test_a_compiled_loop_counts_its_steps():
    """A graph would drop what is written into a 0-dim fp64 tensor on the CPU: the count, or such a parameter."""
    start = [torch.randn(3), torch.randn((), dtype=torch.float64)]
    results = []
    for compiles in (False, True):
        params = [x.clone().requires_grad_() for x in start]
        opt = Adan(params, lr=0.1, foreach=False, fused=False)
        step = torch.compile(opt.step, backend="aot_eager") if compiles else opt.step
        for k in range(3):
            for p in params:
                p.grad = torch.full_like(p, 1.0 + k)
            step()
        assert [int(opt.state[p]["step"]) for p in params] == [3, 3]
        results.append([p.detach().clone() for p in params])
    assert all(map(torch.equal, *results))


def test_a_compiled_step_ends_the_steps_inside_backward():
    """Also where it was compiled before gradients were released."""
    model = torch.nn.Linear(4, 1)
    opt = Adan(model.parameters())
    step = torch.compile(opt.step, backend="eager")
    for k in range(4):
        model(torch.ones(2, 4)).sum().backward()
        step()
        if k == 0:
            opt.zero_grad()
            handle = adan.release_gradients(model, opt)
    handle.remove()
    assert opt.state[model.weight]["step"] == 4


def test_a_compiled_step_refuses_what_fsdp1_cannot_do():
    p = torch.nn.Parameter(torch.ones(4))
    p._fsdp_flattened = True
    p.grad = torch.ones(4)
    with pytest.raises(RuntimeError, match="max_grad_norm needs all gradients"):
        torch.compile(Adan([p], max_grad_norm=1.0).step, backend="eager")()
