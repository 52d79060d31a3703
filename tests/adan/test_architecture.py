"""What `docs/architecture.md` promises: one table of options, engines behind a protocol, slots that mean the same."""

import gc
import inspect
import itertools
import math
import os
import platform
import re
import sys
import weakref
from pathlib import Path

import pytest
import torch
from support import engines
from support.cpu_engine import COMPILER, without_library
from support.parity import ROW, assert_parity

from adan import Adan, plan, scalars
from adan.engines import cpu, cuda, loop, slots
from adan.options import OPTIONS

DEFAULTS = {name: p.default for name, p in inspect.signature(Adan).parameters.items() if name != "params"}


def test_the_constructor_is_the_table_of_options():
    assert list(DEFAULTS) == list(OPTIONS)
    opt = Adan([torch.ones(2, requires_grad=True)])
    assert set(opt.param_groups[0]) - {"params"} == set(OPTIONS) - {"restart", "norm_group"}


PINNED = re.search(r"^torch==(\S+)$", (Path(__file__).parents[2] / "requirements.txt").read_text("utf-8"), re.MULTILINE)


@pytest.mark.skipif(
    platform.system() != "Linux" or sys.version_info >= (3, 15) or torch.__version__.split("+")[0] != PINNED[1],
    reason="the setup is not that of requirements.txt",
)
@pytest.mark.parametrize("name", engines.OPTIONS)
def test_no_engine_is_missing_from_the_pinned_setup(name):
    """Tests of an engine are skipped where it cannot run, which must not hide that a build of ours lacks it."""
    if name == "cpu" and (COMPILER is None or os.environ.get("ADAN_PURE")):
        pytest.skip("without a C compiler, or with ADAN_PURE=1, adan is built without its C library")
    assert engines.unsupported_reason(name) is None


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_without_its_library_an_engine_s_tests_are_skipped(name, monkeypatch):
    """Rather than run by the next engine that takes `fused=True`."""
    monkeypatch.setattr(cpu, "LIBRARY", "/nowhere/_cpu.so")
    monkeypatch.setattr(cuda, "_has_triton", lambda: False)
    reason = {"cpu": "without its C library /nowhere", "cuda": "Triton is not installed"}[name]
    with pytest.raises(pytest.skip.Exception, match=reason), engines.selected(name):
        pass


@pytest.mark.parametrize("name", [name for name, x in DEFAULTS.items() if isinstance(x, bool)])
def test_an_option_is_taken_from_a_checkpoint_if_the_table_says_so(name):
    p = torch.ones(2, requires_grad=True)
    saved = Adan([p], **{name: not DEFAULTS[name]}).state_dict()
    opt = Adan([p])
    opt.load_state_dict(saved)
    assert (opt.param_groups[0][name] != DEFAULTS[name]) == OPTIONS[name].saved


class Toy:
    """An engine in a dozen lines: the loop, for parameters of up to 40 elements."""

    name = "toy"
    device_type = "cpu"
    fused = forgets = counts_on_device = False

    def unsupported_reason(self, param):
        return None if param.numel() <= 40 else "it is for small tensors"

    def update(self, columns, memo, signals):
        memo.tables = (memo.tables or 0) + 1  # steps with this plan
        return loop.Loop().update(columns, memo, signals)


@pytest.mark.parametrize("row", ["everything", "coupled"])
def test_a_new_engine_is_a_class_and_an_entry(row, monkeypatch):
    monkeypatch.setattr(plan, "ENGINES", [Toy(), *plan.ENGINES])
    opt = assert_parity(ROW[row])
    assert "toy for 4 parameters" in repr(opt)
    parts = {part.engine.name: part for part in opt._plan.parts}
    assert parts["toy"].memo.tables > 25
    monkeypatch.setattr(plan, "ENGINES", [Toy()])
    large = torch.ones(50, requires_grad=True)
    large.grad = torch.ones(50)
    with pytest.raises(RuntimeError, match="small tensors"):
        Adan([large], fused=True).step()


@pytest.mark.parametrize("seed", range(6))
def test_the_kernel_s_coefficients_are_those_of_scalars(seed):
    """`kernels.step_scalars` repeats `scalars.step_scalars` and `displacement_scalars`: the same numbers."""
    pytest.importorskip("triton", reason="Triton has no build for this platform")
    k, device = cuda._kernels(), engines.device_of("cuda")
    torch.manual_seed(seed)
    rows = 7
    steps = [torch.tensor(float(t), dtype=torch.float64, device=device) for t in (0, 1, 2, 3, 50, 10_000, 2**25)]
    options = scalars.Options(
        lr=float(torch.rand(())) / 10,
        betas=tuple(torch.rand(3, dtype=torch.float64).mul(0.5).add(0.499).tolist()) if seed else (0.9, 0.0, 0.99),
        eps=[1e-8, 0.1][seed % 2],
        weight_decay=[0.0, 0.7][seed % 2],
        max_grad_norm=[0.0, 2.0][seed // 2 % 2],
        no_prox=seed % 3 == 0,
        bias_correction=seed % 4 != 1,
        maximize=seed % 2 == 0,
        stochastic_rounding=False,
        last_lr=0.03,
        share=0.5,
    )
    norm, scale = torch.tensor(5.0, device=device), torch.tensor(8.0, device=device)
    static = torch.zeros(rows, len(slots.STATIC), dtype=torch.int64)
    static[:, slots.STATIC.index("step")] = torch.tensor([x.data_ptr() for x in steps])
    per_step = torch.cat([
        torch.ones(rows, dtype=torch.int64),
        torch.tensor(cuda._options_row(options), dtype=torch.float64).view(torch.int64),
    ])  # fmt: skip
    coefs = torch.zeros(rows * len(slots.COEFS) * 3 // 2, dtype=torch.float64, device=device)
    counts = [x.item() + 1 for x in steps]
    clips = options.max_grad_norm > 0
    pointers = (static.to(device), per_step.to(device), coefs, coefs, norm, scale, coefs)
    k.step_scalars[(1,)](*pointers, rows, 0, int(clips), True, False, False, k.MEASURE.value, cuda.LANES)

    signals = scalars.Signals(norm=norm.double().cpu(), grad_scale=scale.double().cpu())
    for row, t in enumerate(counts):
        s, y = scalars.step_scalars(options, signals, t), scalars.displacement_scalars(options, t)
        # What the kernel folds in: a difference without a previous gradient has no effect.
        s = s._replace(lookahead=s.lookahead * s.has_prev, w_v=s.w_v * s.has_prev)
        expected = {**s._asdict(), **{f"y_{name}": x for name, x in y._asdict().items()}, "run": 1.0}
        wide = coefs[: rows * len(slots.COEFS)].view(rows, -1)[row].tolist()
        short = coefs[rows * len(slots.COEFS) :].view(torch.float32).view(rows, -1)[row].tolist()
        for name, value in expected.items():
            at = slots.COEFS.index(name)
            assert math.isclose(wide[at], value, rel_tol=1e-12, abs_tol=1e-300), (t, name)
            assert math.isclose(short[at], value, rel_tol=1e-6, abs_tol=1e-37), (t, name)
    assert [x.item() for x in steps] == counts


def test_what_an_optimizer_remembers_goes_with_it():
    """No module holds on to tensors of an optimizer that is gone, and nothing that it keeps refers to it."""
    p = torch.ones(70, requires_grad=True)
    p.grad = torch.ones(70)
    opt = Adan([p], max_grad_norm=1.0)
    opt.step()
    opt.state_dict()
    refs = [weakref.ref(opt), *(weakref.ref(x) for x in opt.state[p].values())]
    gc.disable()
    try:
        del opt
        assert not any(ref() for ref in refs)
    finally:
        gc.enable()


def stepped(engine, **options):
    """An optimizer after two steps of two parameters."""
    size = 4900 if options.get("state_format") == "4bit" else 70  # below 4,096 elements states are fp32
    params = [torch.ones(size, requires_grad=True) for _ in range(2)]
    opt = Adan(params, **engine, **options)
    for _ in range(2):
        for p in params:
            p.grad = torch.ones(size)
        opt.step()
    return opt, params


def storages(state):
    return [weakref.ref(x.untyped_storage()) for x in state.values() if x.dim()]


@pytest.mark.parametrize("form", ["fp32", "4bit"])
def test_states_that_are_moved_away_are_freed_at_once(engine, form):
    """Offloading between phases (verl, OpenRLHF, trl) freed nothing before the next step: the plan held the states."""
    opt, params = stepped(engine, state_format=form)
    state = opt.state[params[0]]
    gone = storages(state)
    for name in [*state]:
        state[name] = state[name].clone()
    assert not any(ref() for ref in gone)
    gone = storages(opt.state[params[1]])
    state = None
    opt.state.clear()
    assert not any(ref() for ref in gone)


def test_a_parameter_that_is_taken_out_is_freed_at_once(engine):
    opt, params = stepped(engine)
    gone = [weakref.ref(params[0]), *storages(opt.state[params[0]])]
    del opt.state[params[0]], opt.param_groups[0]["params"][0], params[0]
    assert not any(ref() for ref in gone)
    opt.step()


def test_one_plan_serves_any_pattern_of_gradients(engine):
    """Above 64 patterns, as of experts and dropped layers, every step was planned anew: six times as slow."""
    results = []
    for options in (engine, {"foreach": False, "fused": False}):
        torch.manual_seed(0)
        params = [torch.randn(n, requires_grad=True) for n in (70, 3, 0, 40, 5)]
        groups = [{"params": params[:3]}, {"params": params[3:], "foreach": False, "fused": False}]
        opt = Adan(groups, lr=0.1, betas=(0.9, 0.8, 0.95), max_grad_norm=1.0, **options)
        plans = set()
        for k in range(20):
            for i, p in enumerate(params):
                p.grad = torch.randn(p.shape) if k == 0 or (k * 7919 >> i) & 1 else None
            opt.step()
            plans.add(opt._plan)
        assert len(plans) == 1
        results.append((params, [opt.state[p]["step"].item() for p in params]))
    assert results[0][1] == results[1][1]
    torch.testing.assert_close(results[0][0], results[1][0])


def test_memory_that_was_freed_is_an_error():
    """The C engine crashed the process where `AdamW(fused=True)` raises."""
    if reason := engines.unsupported_reason("cpu"):
        pytest.skip(reason)
    for what in ("param", "grad", "exp_avg"):
        opt, (p, _) = stepped({"fused": True})
        tensor = {"param": p, "grad": p.grad, "exp_avg": opt.state[p]["exp_avg"]}[what]
        tensor.untyped_storage().resize_(0)
        with pytest.raises(RuntimeError, match=f"a {what} of shape .* has no memory: its storage was freed"):
            opt.step()


#: Most functions, files and changes of file that a warm step passes through.
PATHS = {
    "loop": {"plain": (31, 8, 54), "clipped": (33, 8, 60), "8 bit": (45, 9, 72)},
    "foreach": {"plain": (38, 9, 56), "clipped": (39, 9, 62), "8 bit": (52, 10, 74)},
    "cpu": {"plain": (26, 6, 20), "clipped": (26, 6, 20), "8 bit": (26, 6, 20)},
    "cuda": {"plain": (19, 6, 18), "clipped": (19, 6, 18), "8 bit": (19, 6, 18)},
}
STEPS = {"plain": {}, "clipped": {"max_grad_norm": 1.0}, "8 bit": {"state_format": "8bit"}}
PACKAGE = str(Path(inspect.getfile(Adan)).parent)


def traced(step):
    """The distinct functions of the package that a step calls, their files, and how often it passes between files.

    Comprehensions belong to the function that holds them, and what runs inside a kernel is the device's part.
    """
    events = []
    sys.setprofile(lambda frame, event, _: events.append((event, frame.f_code)))
    step()
    sys.setprofile(None)
    functions, running, tops, kernel = set(), [], [], 0
    for event, code in events:
        one = {"call": 1, "return": -1}.get(event, 0)
        kernel += one * (f"{os.sep}triton{os.sep}" in code.co_filename)
        if not one or kernel or not code.co_filename.startswith(PACKAGE) or code.co_name.startswith("<"):
            continue
        if event == "call":
            functions.add(code)
            running.append(code.co_filename)
        else:
            running.pop()
        tops += running[-1:]
    return functions, {code.co_filename for code in functions}, sum(a != b for a, b in itertools.pairwise(tops))


@without_library  # which tells whether the plan holds by one function
@pytest.mark.parametrize("name", PATHS)
def test_the_path_of_a_warm_step(name):
    """It had grown from 18 functions in 4 files to 26 in 6 on CUDA, and nothing said so."""
    with engines.serving(name, engines.LARGE):
        device = engines.device_of(name)
        for form, options in STEPS.items():
            params = [torch.randn(shape, device=device).requires_grad_() for shape in ((70, 70), (70, 70), (70,))]
            opt = Adan(params, **engines.OPTIONS[name], **options)
            for p in params:
                p.grad = torch.randn_like(p)
            for _ in range(3):
                opt.step()
            functions, files, changes = traced(opt.step)
            numbers = len(functions), len(files), changes
            assert all(a <= b for a, b in zip(numbers, PATHS[name][form], strict=True)), (form, numbers)
