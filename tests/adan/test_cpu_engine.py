"""The C engine: the parity table, the same bits as the loop engine, and all that raw pointers could get wrong."""

import os
import platform
import shutil
import signal
import subprocess
import sysconfig
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from support.parity import LAYOUTS, ROWS, assert_parity, count_as_on_a_device, same_bits

from adan import Adan, plan
from adan.engines import cpu
from adan.grad_norm import measure

SOURCE = Path(cpu.__file__).with_name("cpu.c")
COMPILER = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) or shutil.which("cc")
FLAGS = ["-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC"]
ROW = {row.name: row for row in ROWS}
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
TAILS = [0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 65, 1000]

without_library = pytest.mark.skipif(
    cpu.Cpu().unsupported_reason(torch.zeros(1)) is not None, reason="adan was installed without a C compiler"
)
without_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler")


@pytest.fixture
def threads():
    """A setter of PyTorch's number of threads, undone at the end."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def problem(dtype, sizes, seed=0, relay=lambda x: x):
    generator = torch.Generator().manual_seed(seed)
    return [relay(torch.randn(size, generator=generator).to(dtype)).requires_grad_() for size in sizes]


def train(params, steps=5, seed=1, grads=None, **options):
    """Some steps on given gradients; a clip that acts now and then, so that the scale changes."""
    generator = torch.Generator().manual_seed(seed)
    opt = Adan(params, **{"lr": 0.02, "betas": (0.9, 0.8, 0.95), "weight_decay": 0.1, **options})
    for k in range(steps):
        for i, p in enumerate(params):
            grad = torch.randn(p.shape, generator=generator).to(p.dtype) * (k + 1)
            p.grad = grad if grads is None else grads(k, i, grad)
        opt.step()
    return opt


def states(opt):
    values = [value for state in opt.state.values() for _, value in sorted(state.items())]
    return [torch.view_as_real(value) if value.is_complex() else value for value in values]


def assert_same_bits(a, b):
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert torch.equal(x, y) if x.dtype == torch.uint8 else same_bits(x.detach(), y.detach())


def assert_alike(ours, loops):
    """States to the bit; parameters to some units in the last place: MKL's square root, PyTorch's on x86, is not exact.

    Each is (parameters, optimizer).
    """
    assert_same_bits(states(ours[1]), states(loops[1]))
    for p, q in zip(ours[0], loops[0], strict=True):
        unit = torch.finfo(p.dtype).eps
        torch.testing.assert_close(p, q, rtol=4 * unit if unit < 1e-5 else unit, atol=unit / 4)


# ---- against the oracle


@without_library
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_parity_with_the_oracle(row, dtype):
    assert_parity(row, dtype, fused=True)


@without_library
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_parity_where_the_dispatcher_reads_no_counter(row, monkeypatch):
    count_as_on_a_device(monkeypatch)
    assert_parity(row, fused=True)


@without_library
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "parameter strided"])
def test_parity_in_every_layout(layout):
    assert_parity(ROW["everything"], layout=layout, steps=50, fused=True)


@without_library
def test_a_parameter_with_gaps_is_left_to_another_engine():
    assert_parity(ROW["everything"], layout="parameter strided", steps=50)
    with pytest.raises(RuntimeError, match="side by side"):
        assert_parity(ROW["everything"], layout="parameter strided", steps=1, fused=True)


# ---- as the loop engine, whose order of operations it follows


@pytest.fixture
def same_norm(monkeypatch):
    """The norm as other engines take it: added up in another order it may differ in the last bit."""
    monkeypatch.setattr(cpu, "_measured", lambda columns, signals: measure(columns.grad, columns.clips(), signals))


@without_library
@pytest.mark.usefixtures("same_norm")
@pytest.mark.parametrize("consume", [False, True], ids=["kept", "consumed"])
@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 20.0, "maximize": True}, {"no_prox": True, "eps": 1e-3},
                                     {"bias_correction": False}], ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_same_states_as_the_loop(dtype, options, consume):
    results = []
    for engine in ({"fused": True}, {"foreach": False}):
        params = problem(dtype, TAILS)
        opt = train(params, consume_grad=consume, **options, **engine)
        results.append((params, opt))
    assert_alike(*results)


@without_library
@pytest.mark.parametrize("consume", [False, True], ids=["kept", "consumed"])
def test_complex_parameters(consume):
    results = []
    for engine in ({"fused": True}, {"foreach": False}):
        params = problem(torch.complex64, [(5,), (2, 3), ()]) + problem(torch.complex128, [(7,)])
        opt = train(params, consume_grad=consume, **engine)
        results.append(([torch.view_as_real(p.detach()) for p in params], opt))
    assert_alike(*results)


@without_library
@pytest.mark.usefixtures("same_norm")
def test_types_may_be_mixed_and_groups_may_differ():
    results = []
    for engine in ({"fused": True}, {"foreach": False}):
        params = [p for dtype in DTYPES for p in problem(dtype, [(3, 5), (17,)])]
        groups = [{"params": params[::2], "lr": 0.1}, {"params": params[1::2], "betas": (0.5, 0.6, 0.7)}]
        opt = Adan(groups, max_grad_norm=1.0, **engine)
        for k in range(4):
            for i, p in enumerate(params):
                p.grad = None if (i + k) % 3 == 0 else torch.full_like(p, k + 1.0)  # counts drift apart
            opt.step()
        results.append((params, opt))
    assert_alike(*results)


@without_library
@pytest.mark.usefixtures("same_norm")
@pytest.mark.parametrize("consume", [False, True], ids=["kept", "consumed"])
def test_states_go_from_engine_to_engine(consume):
    results = []
    for engines in ([{"fused": True}, {"foreach": False}, {"fused": True}], [{"foreach": False}] * 3):
        params, saved = problem(torch.bfloat16, [(33,), (2, 3)]), None
        for i, engine in enumerate(engines):
            opt = Adan(params, lr=0.1, consume_grad=consume, max_grad_norm=1.0, **engine)
            if saved is not None:
                opt.load_state_dict(saved)
            for k in range(3):
                for p in params:
                    p.grad = torch.full_like(p, 0.1 + i + k)
                opt.step()
            saved = opt.state_dict()
        results.append((params, opt))
    assert_alike(*results)


# ---- states in 8 and 16 bits, the coupled form, weights that do not stall: the same bits as the plain version

COUPLED = {"betas": (0.9, 0.9, 0.95)}
FORMS = {
    "8 bit": {"state_format": "8bit"},
    "8 bit, coupled": {"state_format": "8bit", **COUPLED},
    "8 bit, stochastic": {"state_format": "8bit", "stochastic_rounding": True},
    "4 bit": {"state_format": "4bit"},
    "4 bit, coupled, Kahan": {"state_format": "4bit", "kahan_sum": True, **COUPLED},
    "4 bit, stochastic": {"state_format": "4bit", "stochastic_rounding": True},
    "bf16": {"state_format": "bf16"},
    "bf16, coupled, Kahan": {"state_format": "bf16", "kahan_sum": True, **COUPLED},
    "coupled": COUPLED,
    "stochastic": {"stochastic_rounding": True},
    "Kahan": {"kahan_sum": True},
}
#: Blocks of 32 that are not full, more than one chunk, and at the end, so that norms are added up in the same order as
#: without parting them, tensors that are too small to be coded.
CODED_SIZES = [4096 + 3, 5000, (70, 71), (2, 40, 9, 11), 70_001, 7, ()]


@pytest.fixture
def exact_sqrt(monkeypatch):
    """Square roots that are rounded as IEEE asks for, which MKL's, PyTorch's on x86, are not."""

    def sqrt(x):
        return torch.empty_like(x).copy_(torch.as_tensor(np.sqrt(x.detach().numpy())))

    monkeypatch.setattr(torch.Tensor, "sqrt", sqrt)


def channels_last(x):
    return x.to(memory_format=torch.channels_last) if x.dim() == 4 else x


def train_coded(dtype, sizes=CODED_SIZES, steps=4, **options):
    """Gradients of many magnitudes: exponents differ, and elements lie far below the largest of their block."""
    params = problem(dtype, sizes, relay=channels_last)
    opt = train(params, steps=steps, grads=lambda k, i, grad: grad * grad.abs() ** 2, **options)
    return params + states(opt)


@without_library
@pytest.mark.usefixtures("same_norm", "exact_sqrt")
@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 20.0, "maximize": True, "consume_grad": True},
                                     {"no_prox": True, "bias_correction": False}], ids=str)  # fmt: skip
@pytest.mark.parametrize(
    ("form", "dtype"),
    [(form, dtype) for form in FORMS for dtype in DTYPES if not ("stochastic" in form and dtype == torch.float16)],
    ids=str,
)
def test_coded_states_are_the_same_bits(form, dtype, options, threads):
    expected = train_coded(dtype, **FORMS[form], **options, foreach=False)
    for count in (1, 2):
        threads(count)
        assert_same_bits(train_coded(dtype, **FORMS[form], **options, fused=True), expected)


@without_library
@pytest.mark.parametrize("how", ["found_inf", "skip_nonfinite"])
@pytest.mark.parametrize("form", FORMS)
def test_a_skipped_step_leaves_coded_states_as_they_were(form, how):
    params = problem(torch.bfloat16, [5000, 7])
    opt = train(params, fused=True, skip_nonfinite=how == "skip_nonfinite", **FORMS[form])
    before = [x.detach().clone() for x in params + states(opt)]
    if how == "found_inf":
        opt.found_inf = torch.ones(())
    else:
        params[1].grad[3] = float("inf")
    opt.step()
    assert_same_bits(params + states(opt), before)


@without_library
def test_what_is_not_finite_stays_in_its_block_and_leaves_with_its_gradient():
    results = []
    for engine in ({"fused": True}, {"foreach": False}):
        params = problem(torch.float32, [4096 + 3])

        def grads(k, i, grad):
            grad[[70, 4097]] = torch.tensor([float("inf"), float("nan")]) if k == 1 else torch.ones(2)
            return grad

        opt = train(params, steps=3, grads=grads, state_format="8bit", **engine)
        results.append((params[0].detach(), opt.state[params[0]]))
    (p, ours), (q, loops) = results
    bad = (~p.isfinite()).nonzero().flatten().tolist()
    assert bad == (~q.isfinite()).nonzero().flatten().tolist() == [*range(64, 96), *range(4096, 4099)]
    assert_same_bits([ours["exponents"], ours["prev_grad"]], [loops["exponents"], loops["prev_grad"]])
    assert ours["exponents"][[2, 128], 0].tolist() == [255, 255]


@without_library
@pytest.mark.parametrize("form", ["8 bit", "bf16, coupled, Kahan"])
def test_nothing_outside_a_coded_state_is_touched(form):
    margin = 512
    params = problem(torch.bfloat16, [4096 + 3])
    opt = train(params, fused=True, **FORMS[form])
    state, guarded = opt.state[params[0]], {}
    for name in state.keys() - {"step"}:
        guarded[name] = torch.full((state[name].numel() + 2 * margin,), 77, dtype=state[name].dtype)
        state[name] = guarded[name][margin:-margin].view(state[name].shape).copy_(state[name])
    opt.step()
    for name, whole in guarded.items():
        assert state[name].data_ptr() == whole[margin:].data_ptr(), name
        assert (whole[:margin] == 77).all(), name
        assert (whole[-margin:] == 77).all(), name


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
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_gradient_is_never_written(dtype):
    params, seen = problem(dtype, [(33, 3), (5,)]), []

    def grads(k, i, grad):
        grad = grad.t().contiguous().t() if grad.dim() > 1 else grad
        seen.append((grad, grad.clone()))
        return grad

    train(params, grads=grads, fused=True, maximize=True, max_grad_norm=0.1)
    assert all(same_bits(grad, copy) for grad, copy in seen)


@without_library
def test_a_previous_gradient_that_was_consumed_is_never_written():
    p = torch.zeros(100, requires_grad=True)
    opt = Adan([p], lr=0.1, fused=True, consume_grad=True, max_grad_norm=1.0)
    for _ in range(3):
        grad = torch.randn(100)
        copy = grad.clone()
        p.grad = grad
        opt.step()
        p.grad = torch.randn(100)
        opt.step()
        assert same_bits(grad, copy)


@without_library
def test_a_state_laid_out_otherwise_is_understood():
    results = []
    for engine in ({"fused": True}, {"foreach": False}):
        params = problem(torch.float32, [(2, 3, 4, 5)])
        opt = train(params, steps=2, **engine)
        params[0].data = params[0].data.to(memory_format=torch.channels_last)
        for _ in range(2):
            params[0].grad = torch.arange(120.0).view(2, 3, 4, 5)
            opt.step()
        results.append((params, opt))
    assert_alike(*results)


@without_library
@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="this PyTorch has no grad_dtype")
@pytest.mark.usefixtures("exact_sqrt")
@pytest.mark.parametrize("options", [{}, {"consume_grad": True}, *FORMS.values()], ids=str)
def test_a_gradient_of_a_wider_type(options):
    results = []
    for engine in ({"fused": True}, {"foreach": False}):
        params = problem(torch.bfloat16, [33, 4099])
        for p in params:
            p.grad_dtype = torch.float32
        opt = train(params, grads=lambda k, i, grad: torch.linspace(0, k + 1, grad.numel()), **options, **engine)
        results.append(params + states(opt))
    assert_same_bits(*results)


@without_library
def test_a_lazily_negated_gradient_is_read_as_what_it_means():
    p = torch.zeros(3, requires_grad=True)
    p.grad = torch._neg_view(torch.ones(3))
    Adan([p], lr=0.1, fused=True).step()
    torch.testing.assert_close(p.detach(), torch.full((3,), 0.1))


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
        for engine in ({"fused": True}, {"foreach": False}):
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


@without_library
def test_half_precision_is_computed_in_fp32_and_rounded_once():
    p = torch.full((100,), 256.0, dtype=torch.bfloat16, requires_grad=True)
    opt = Adan([p], lr=0.3, fused=True)  # one unit of bf16 at 256 is 2 above and 1 below
    p.grad = torch.ones_like(p)
    opt.step()
    assert (p == 256).all()
    assert opt.state[p]["exp_avg"].dtype == torch.float32


# ---- threads and processes


@without_library
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_number_of_threads_gives_the_same_bits(dtype, threads):
    results = []
    for count in (1, 2, 3, 5, 2):
        threads(count)
        params = problem(dtype, [*TAILS, 1_000_003, 40_000])
        opt = train(params, steps=3, fused=True)
        results.append(params + states(opt))
    for other in results[1:]:
        assert_same_bits(results[0], other)


@without_library
def test_many_small_tensors(threads):
    threads(3)
    results = []
    for engine in ({"fused": True}, {"foreach": False}):
        params = problem(torch.float32, [i % 70 for i in range(2000)])
        opt = train(params, steps=2, **engine)
        results.append((params, opt))
    assert_alike(*results)


@without_library
def test_two_optimizers_in_two_python_threads(threads):
    threads(2)
    expected, twins = problem(torch.float32, [300_000]), [problem(torch.float32, [300_000]) for _ in range(3)]
    train(expected, steps=20, fused=True)
    workers = [threading.Thread(target=train, args=(params,), kwargs={"steps": 20, "fused": True}) for params in twins]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for params in twins:
        assert_same_bits(params, expected)


@without_library
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork()")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_can_step(threads):
    threads(3)
    params = problem(torch.float32, [500_000])
    opt = train(params, steps=1, fused=True)  # the threads are there, and the child will not have them
    done = torch.zeros(1).share_memory_()
    child = os.fork()
    if child == 0:
        code = 1
        try:  # nothing but the step: PyTorch's own operations hang in a child once its OpenMP threads were used
            opt.step()
            opt.step()
            done[0] = opt.state[params[0]]["step"]
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + 30
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    if ended == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended == (child, 0), "the child hung or failed"
    assert done[0] == 3
    opt.step()
    assert opt.state[params[0]]["step"] == 2


# ---- what it refuses


@without_library
def test_what_it_refuses():
    served = [torch.zeros(3, dtype=dtype) for dtype in (*DTYPES, torch.complex64, torch.complex128)]
    served += [torch.zeros(()), torch.zeros(0), torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)]
    served += [torch.zeros(3, 4).t(), torch.zeros(3, 1, 4).permute(2, 1, 0), torch.zeros(6)[2:]]
    assert [cpu.Cpu().unsupported_reason(p) for p in served] == [None] * len(served)
    assert "float32" in cpu.Cpu().unsupported_reason(torch.zeros(3, dtype=torch.float8_e4m3fn))
    assert "side by side" in cpu.Cpu().unsupported_reason(torch.zeros(6)[::2])
    assert "side by side" in cpu.Cpu().unsupported_reason(torch.zeros(1).expand(3))

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


@without_compiler
def test_a_library_of_another_version_is_refused(monkeypatch, tmp_path):
    use_mutant("X(double, w_m) X(double, w_v)", "X(double, w_v) X(double, w_m)", monkeypatch, tmp_path, ["-O0"])
    assert "built from another version of adan" in cpu.Cpu().unsupported_reason(torch.zeros(1))


# ---- the norm


@without_library
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sum_of_squares(dtype, threads):
    grads = [torch.randn(size).to(dtype) for size in [*TAILS, 100_000]]
    grads += [torch.randn(4, 6).to(dtype).t(), torch.randn(20).to(dtype)[::2], torch.randn(()).to(dtype)]
    expected = sum(x.double().square().sum().item() for x in grads)
    sums = []
    for count in (1, 2, 5):
        threads(count)
        sums.append(cpu.sum_of_squares(grads))
    assert sums[0] == pytest.approx(expected, rel=1e-12)
    assert len(set(sums)) == 1


# ---- a mistake in the C must not survive, for every instruction set

#: (what stands there, the mistake, a row that must notice it)
MUTATIONS = [
    ("g + lookahead * d;", "g;", "fast betas"),
    ("g + lookahead * d;", "g + (1 - lookahead) * d;", "fast betas"),
    ("(root_n * root_##C(n_) + eps)", "root_##C(root_n * root_n * n_ + eps)", "large eps"),
    ("shrink * (keep * load_##T(param[k])", "(keep * load_##T(param[k])", "proximal decay"),
    ("shrink * (keep * load_##T(param[k])", "shrink * (load_##T(param[k])", "AdamW's decay"),
    ("has_prev * (g - before)", "(g - before)", "fast betas"),
    ("prev[k] = g;", "prev[k] = load_##T(grad[k]);", "clipped now and then"),
    ("w_v * (d - v[k])", "w_m * (d - v[k])", "fast betas"),
    ("n[k] = n_;", ";", "fast betas"),
    ("step_m * m_ + step_v * v_", "step_m * m_ + step_v * v[k]", "fast betas"),
    ("*tensors[i].step += 1;", ";", "fast betas"),
    ("&job->scalars[x->scalars]", "&job->scalars[0]", "fast betas"),
    ("for (; i < size; i++) {                                                                            \\\n",
     "for (; i < size - 1; i++) {                                                                        \\\n",
     "fast betas"),
]  # fmt: skip


def use_mutant(right, wrong, monkeypatch, tmp_path, flags=()):
    text = SOURCE.read_text()
    assert text.count(right) == 1, f"cpu.c has {text.count(right)} places that say: {right}"
    source, library = tmp_path / "mutant.c", tmp_path / "mutant.so"
    source.write_text(text.replace(right, wrong))
    subprocess.run([COMPILER, *FLAGS, *flags, source, "-o", library, "-pthread", "-lm"], check=True)
    monkeypatch.setattr(cpu, "LIBRARY", str(library))


@without_compiler
@pytest.mark.parametrize(("right", "wrong", "row"), MUTATIONS, ids=lambda text: text[:30])
def test_a_seeded_mistake_is_noticed(right, wrong, row, monkeypatch, tmp_path):
    use_mutant(right, wrong, monkeypatch, tmp_path, ["-O0"])
    with pytest.raises(AssertionError, match=r"off by|nan"):
        assert_parity(ROW[row], steps=40, fused=True)


#: The same, where numbers are coded and rounded.
CODED_MUTATIONS = [
    ("word << 8 * state |", "word << 4 * state |", "8 bit"),
    (">> 23) + 1;", ">> 23) + 2;", "8 bit"),
    ("code < 1 && values[k] > 0 ? 1 : code", "code", "8 bit"),
    ("mix(key + (uint32_t)k)", "mix(key)", "bf16"),
    (" + (uint32_t)start;", ";", "8 bit"),
    ("* 0x9e3779b1", "", "stochastic"),
    ("theta[k] += rest[k]", "theta[k] += 0", "Kahan"),
    ("m_ + w_d * d", "m_ + w_v * d", "coupled"),
]


@without_compiler
@pytest.mark.usefixtures("exact_sqrt")
@pytest.mark.parametrize(("right", "wrong", "form"), CODED_MUTATIONS, ids=lambda text: text[:30])
def test_a_seeded_mistake_in_coding_is_noticed(right, wrong, form, monkeypatch, tmp_path):
    use_mutant(right, wrong, monkeypatch, tmp_path, ["-O0"])
    ours, loops = (
        train_coded(torch.bfloat16, [5000], **FORMS[form], **engine) for engine in ({"fused": True}, {"foreach": False})
    )
    with pytest.raises(AssertionError):
        assert_same_bits(ours, loops)


@without_library
@without_compiler
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="there is one to choose from")
@pytest.mark.parametrize("best", ["avx2", "baseline"])
def test_every_instruction_set_gives_the_same_bits(best, monkeypatch, tmp_path):
    if best == "avx2" and not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        pytest.skip("this processor has no AVX2")
    installed = every_kernel()
    head = "static const struct kernels *chosen(void) {"
    use_mutant(head, f"{head} return &{best};", monkeypatch, tmp_path)
    assert_same_bits(installed, every_kernel())


def every_kernel():
    results = []
    for dtype in DTYPES:
        coded = [form for form in FORMS.values() if dtype != torch.float16 or "stochastic_rounding" not in form]
        for form in ({}, {"consume_grad": True}, {"consume_grad": True, **COUPLED}, *coded):
            params = problem(dtype, [*TAILS, 4099])
            opt = train(params, max_grad_norm=20.0, fused=True, **form)
            results += params + states(opt)
    return results
