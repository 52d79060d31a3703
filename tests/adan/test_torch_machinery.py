"""Adan in PyTorch's own machinery for testing optimizers: an `OptimizerInfo`, and what it asks of every optimizer.

Its option rows are rows of `parity.py` and every format of states; torch's own helper adds what runs them.
"""

import copy
import io
import pickle
import sys
import types
import unittest

import pytest
import torch
from support import engines
from support.parity import ROWS, same_bits

from adan import Adan

INTERNAL = "torch.testing._internal"
SKIPS = {"DecorateInfo": lambda *_, **__: None}


def _common_optimizers():
    """Torch's module, without what it does to the process: it freezes torch.backends' flags.

    It needs `expecttest`, and for the lists of tests that it skips a module that takes 3 s to import.
    """
    stubs = {"expecttest": {"TestCase": unittest.TestCase}, f"{INTERNAL}.common_methods_invocations": SKIPS}
    modules = {name: types.ModuleType(name) for name in stubs if name not in sys.modules}
    for name, module in modules.items():
        vars(module).update(stubs[name])
    frozen = torch.backends.flags_frozen()
    sys.modules |= modules
    try:
        return pytest.importorskip(f"{INTERNAL}.common_optimizers", exc_type=ImportError)
    finally:
        for name in modules:
            sys.modules.pop(name, None)
        if not frozen:
            setattr(torch.backends, "__allow_nonbracketed_mutation_flag", True)


optimizers = _common_optimizers()
OptimizerInput = optimizers.OptimizerInput

#: What rounds, and so may differ by a code where the last bit of a number does.
FORMATS = {
    "8-bit states": {"state_format": "8bit"},
    "4-bit states": {"state_format": "4bit"},
    "8-bit states, coupled, clipped": {"state_format": "8bit", "betas": (0.9, 0.9, 0.95), "max_grad_norm": 15.0},
    "bf16 states": {"state_format": "bf16", "weight_decay": 0.7},
}
CHOSEN = [
    "defaults",
    "everything",
    "to the letter, decayed",
    "maximized, clipped, decayed",
    "capturable",
    "skipping",
    "coupled",
]


def inputs(device, dtype=None):
    rows = {row.name: {"betas": (0.9, 0.8, 0.95), **row.options} for row in ROWS if row.name in CHOSEN}
    return [OptimizerInput(None, {"lr": 0.05, **options}, name) for name, options in (rows | FORMATS).items()]


def errors(device, dtype):
    """What every optimizer must refuse."""
    generic = optimizers.get_error_inputs_for_all_optims(device, dtype)
    for case in generic:  # the words are ours
        case.error_regex = ""
        if case.error_type is UserWarning:  # a parameter listed twice, which torch only warns of
            case.error_type = ValueError
    return generic


INFO = optimizers.OptimizerInfo(
    Adan,
    optim_inputs_func=inputs,
    optim_error_inputs_func=errors,
    supported_impls=("foreach", "differentiable", "fused"),
    supports_fused_on=("cpu", "cuda"),
    has_capturable_arg=True,
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


CONFIGS = optimizers._get_optim_inputs_including_global_cliquey_kwargs(DEVICE, None, INFO, skip=("differentiable",))
MISSING = engines.unsupported_reason("cuda" if DEVICE == "cuda" else "cpu")
FUSED = pytest.param("fused", marks=pytest.mark.skipif(MISSING is not None, reason=str(MISSING)))
every_input = pytest.mark.parametrize("row", inputs(DEVICE), ids=lambda row: row.desc)
CASES = [pytest.param(x, marks=FUSED.marks if x.kwargs.get("fused") else (), id=x.desc) for x in CONFIGS]
every_config = pytest.mark.parametrize("config", CASES)
#: For what depends on how states are stored and on nothing else.
every_format = pytest.mark.parametrize(
    "config", [x for x in CASES if x.id.split(" & ")[0] in ("defaults", "8-bit states", "4-bit states")]
)


def parameters(dtypes=(torch.float32,)):
    """A tensor that can be in 8 bits, a bias and a scalar, of each type."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((70, 70), (7,), ())
    return [torch.nn.Parameter(random(shape, generator).to(DEVICE, dtype)) for dtype in dtypes for shape in shapes]


def random(shape, generator):
    return torch.randn(shape, generator=generator, dtype=torch.float32)


def feed(params, k):
    generator = torch.Generator().manual_seed(1 + k)
    for p in params:
        p.grad = random(p.shape, generator).to(p)


def steps(opt, params, start=0, stop=4):
    for k in range(start, stop):
        feed(params, k)
        opt.step()


def assert_equal(params, others, opt=None, other=None):
    assert all(map(same_bits, params, others))
    for p, q in zip(params, others, strict=True) if opt else ():
        assert list(opt.state[p]) == list(other.state[q])
        assert all(same_bits(x, other.state[q][name]) for name, x in opt.state[p].items())


#: What rounds has no derivative, and is refused.
DIFFERENTIABLE = [row for row in inputs(DEVICE) if "state_format" not in row.kwargs]


@pytest.mark.parametrize("row", DIFFERENTIABLE, ids=lambda row: row.desc)
def test_a_differentiable_step_is_the_step(row):
    leaves, twins = parameters(), parameters()
    params = [p.clone() for p in leaves]
    steps(INFO.optim_cls(params, **row.kwargs, differentiable=True), params)
    steps(INFO.optim_cls(twins, **row.kwargs), twins)
    torch.testing.assert_close(params, [p.data for p in twins], rtol=1e-5, atol=1e-6, check_device=False)
    sum(p.sum() for p in params).backward()
    assert all(p.grad.any() for p in leaves)


@every_config
def test_a_saved_state_goes_on_bit_by_bit(config):
    whole, params = parameters(), parameters()
    opt = INFO.optim_cls(whole, **config.kwargs)
    steps(opt, whole)
    half = INFO.optim_cls(params, **config.kwargs)
    steps(half, params, stop=2)
    file = io.BytesIO()
    torch.save(half.state_dict(), file)
    file.seek(0)
    other = INFO.optim_cls(params, lr=0.9)
    for name in ("foreach", "fused", "differentiable", "capturable", "skip_nonfinite", "state_format"):
        other.defaults[name] = other.param_groups[0][name] = half.defaults[name]
    other.load_state_dict(torch.load(file, weights_only=True))
    steps(other, params, start=2)
    assert_equal(params, whole, other, opt)
    assert other.param_groups[0]["lr"] == 0.05


@every_config
def test_copies_and_pickles_go_on_bit_by_bit(config):
    for copied in (copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        params = parameters()
        opt = INFO.optim_cls(params, **config.kwargs)
        steps(opt, params, stop=2)
        for p in params:
            p.grad = None
        params_copy, opt_copy = copied((params, opt))
        steps(opt, params, start=2)
        steps(opt_copy, params_copy, start=2)
        assert_equal(params, params_copy, opt, opt_copy)


@every_input
@pytest.mark.parametrize("target", ["foreach", FUSED])
def test_a_checkpoint_of_the_loop_is_loaded_by_another_implementation(row, target):
    params, twins = parameters(), parameters()
    source = INFO.optim_cls(params, **row.kwargs, foreach=False, fused=False)
    steps(source, params, stop=2)
    other = INFO.optim_cls(params, **row.kwargs, **{target: True})
    other.load_state_dict(source.state_dict())
    assert other.param_groups[0][target] is True
    steps(other, params, start=2)
    steps(INFO.optim_cls(twins, **row.kwargs, foreach=False, fused=False), twins)
    for p, q in zip(params, twins, strict=True):
        close = torch.isclose(p, q, rtol=1e-4, atol=1e-5)
        assert close.double().mean() >= (0.99 if "state_format" in row.kwargs else 1.0)


@every_input
def test_a_checkpoint_from_before_an_option_existed(row):
    params = parameters()
    opt = INFO.optim_cls(params, **row.kwargs)
    steps(opt, params, stop=2)
    saved = opt.state_dict()
    for group in saved["param_groups"]:
        for name in (*INFO.not_og_supported_flags, "fused", "skip_nonfinite", "state_format"):
            del group[name]
    twins = [torch.nn.Parameter(p.detach().clone()) for p in params]
    other = INFO.optim_cls(twins, **row.kwargs)
    other.load_state_dict(copy.deepcopy(saved))
    steps(opt, params, start=2)
    steps(other, twins, start=2)
    assert_equal(params, twins, opt, other)


@every_config
def test_types_may_be_mixed(config):
    dtypes = (torch.float32, torch.float64, torch.bfloat16)
    together, apart = parameters(dtypes), parameters(dtypes)
    options = {**config.kwargs, "max_grad_norm": 0.0, "skip_nonfinite": False}
    steps(INFO.optim_cls(together, **options), together)
    # One optimizer for each type; random bits depend on the place among all parameters.
    groups = [{"params": [p]} for p in apart]
    opt = INFO.optim_cls(groups, **options)
    steps(opt, apart)
    assert_equal(together, apart)


@every_config
def test_a_learning_rate_that_is_a_tensor(config):
    params, twins = parameters(), parameters()
    rate = torch.tensor(0.05, device=DEVICE, dtype=torch.float64)
    a = INFO.optim_cls(params, **{**config.kwargs, "lr": rate})
    b = INFO.optim_cls(twins, **config.kwargs)
    for k in range(3):
        rate.fill_(0.05 / (k + 1))
        b.param_groups[0]["lr"] = 0.05 / (k + 1)
        steps(a, params, k, k + 1)
        steps(b, twins, k, k + 1)
    torch.testing.assert_close(params, twins, rtol=1e-5, atol=1e-6)


def test_the_loss_falls_under_every_scheduler():
    for make in INFO.scheduler_inputs[0]:
        p = parameters()[0]
        opt = INFO.optim_cls([p], lr=0.05)
        scheduler = make(opt)

        def closure(p=p, opt=opt):
            assert torch.is_grad_enabled()
            opt.zero_grad()
            loss = p.square().mean()
            loss.backward()
            return loss

        losses = []
        for _ in range(20):
            losses.append(opt.step(closure).item())
            metric = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
            scheduler.step(losses[-1]) if metric else scheduler.step()
        assert losses[-1] < losses[0]
        assert opt.state[p]["step"] == 20


@every_format
def test_what_has_no_gradient_has_no_state(config):
    params = parameters()
    opt = INFO.optim_cls(params, **config.kwargs)
    before = [p.detach().clone() for p in params]
    opt.step()
    assert not opt.state
    params[1].grad = torch.ones_like(params[1])
    opt.step()
    assert list(opt.state) == [params[1]]
    assert_equal([params[0], params[2]], [before[0], before[2]])


@every_config
def test_a_complex_parameter_is_two_real_ones(config):
    assert INFO.supports_complex
    params = [torch.nn.Parameter(p.to(torch.complex64) * (1 + 0.5j)) for p in parameters()]
    twins = [torch.nn.Parameter(torch.view_as_real(p.detach()).clone()) for p in params]
    # Complex states are not rounded; so that those of the twins are not either, all formats are plain here.
    options = {**config.kwargs, "state_format": "fp32"}
    opts = [INFO.optim_cls(x, **options) for x in (params, twins)]
    for k in range(3):
        feed(twins, k)
        for p, q in zip(params, twins, strict=True):
            p.grad = torch.view_as_complex(q.grad.clone())
        for opt in opts:
            opt.step()
    for p, q in zip(params, twins, strict=True):
        torch.testing.assert_close(torch.view_as_real(p.detach()), q.detach(), rtol=1e-5, atol=1e-6)
        assert opts[0].state[p]["exp_avg"].is_complex()


def test_hooks_run_around_their_methods():
    params = parameters()
    opt = INFO.optim_cls(params)
    calls = []
    names = [f"{method}_{when}" for method in ("step", "state_dict", "load_state_dict") for when in ("pre", "post")]
    for name in names:
        getattr(opt, f"register_{name}_hook")(lambda *_, name=name: calls.append(name))
    assert opt.step(lambda: calls.append("closure") or 3.0) == 3.0
    opt.load_state_dict(opt.state_dict())
    assert calls == ["step_pre", "closure", *names[1:]]
    assert opt.step() is None


def test_names_are_saved_and_groups_are_told_apart():
    names = ["a", "b", "c"]
    params = parameters()
    opt = INFO.optim_cls(list(zip(names, params, strict=True)), lr=0.1)
    steps(opt, params, stop=1)
    saved = opt.state_dict()
    assert saved["param_groups"][0]["param_names"] == names
    for other in (INFO.optim_cls(params, lr=0.2), INFO.optim_cls(opt.param_groups[0]["params"], lr=0.2)):
        other.load_state_dict(saved)
        assert other.param_groups[0]["lr"] == 0.1
        assert other.state_dict()["param_groups"][0]["param_names"] == names


@every_format
def test_a_default_type_does_not_matter(config):
    params, twins = parameters(), parameters()
    steps(INFO.optim_cls(params, **config.kwargs), params)
    torch.set_default_dtype(torch.float64)
    try:
        steps(INFO.optim_cls(twins, **config.kwargs), twins)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(params, twins, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("case", errors(DEVICE, torch.float32), ids=lambda case: case.optimizer_error_input.desc)
def test_what_must_be_refused(case):
    given = case.optimizer_error_input
    params = parameters() if given.params is None else given.params
    with pytest.raises(case.error_type, match=case.error_regex or None):
        INFO.optim_cls(params, **given.kwargs)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU: PyTorch counts the memory of GPUs alone")
@every_input
def test_a_fused_step_needs_no_memory_of_its_own(row):
    params = [torch.nn.Parameter(torch.randn(1024, 1024, device=DEVICE)) for _ in range(8)]
    opt = INFO.optim_cls(params, **row.kwargs, fused=True)
    steps(opt, params, stop=2)
    feed(params, 2)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    opt.step()
    assert torch.cuda.max_memory_allocated() - before < 2**20
