"""What the tests of the C engine share: small problems, comparisons of bits, and a library with a seeded mistake."""

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch

from adan import Adan
from adan.engines import cpu
from support.parity import channels_last, same_bits

SOURCE = Path(cpu.__file__).with_name("cpu.c")
COMPILER = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) or shutil.which("cc")
FLAGS = ["-std=c11", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC"]
#: What -O3 vectorizes, in half its time.
VECTORIZED = ["-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic"]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
TAILS = [0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 65, 1000]

without_library = pytest.mark.skipif(
    cpu.Cpu().unsupported_reason(torch.zeros(1)) is not None, reason="adan was installed without a C compiler"
)
#: The options that ask for each engine on the CPU.
ENGINES = [{"foreach": False, "fused": False}, {"foreach": True}, pytest.param({"fused": True}, marks=without_library)]
without_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler")

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
#: without parting them, tensors that are too small to be quantized.
ROUNDED_SIZES = [4096 + 3, 5000, (70, 71), (2, 40, 9, 11), 33_001, 7, ()]


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
        before = [p.grad.clone() for p in params]
        opt.step()
        assert_same_bits([p.grad for p in params], before)
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


def train_rounded(dtype, sizes=ROUNDED_SIZES, steps=4, **options):
    """Gradients of many magnitudes: exponents differ, and elements lie far below the largest of their block."""
    params = problem(dtype, sizes, relay=channels_last)
    opt = train(params, steps=steps, grads=lambda k, i, grad: grad * grad.abs() ** 2, **options)
    return params + states(opt)


def mutant(right, wrong):
    text = SOURCE.read_text(encoding="utf-8")
    assert text.count(right) == 1, f"cpu.c has {text.count(right)} places that say: {right}"
    return text.replace(right, wrong)


def use_mutant(right, wrong, monkeypatch, tmp_path):
    """The library with a mistake; in 0.3 s, as nothing is optimized or inlined, for one instruction set only."""
    text = mutant(right, wrong).replace("#if defined(__x86_64__)", "#if 0")
    use_library(text.replace("__attribute__((always_inline))", ""), ["-O0"], monkeypatch, tmp_path)


def use_library(text, flags, monkeypatch, tmp_path):
    source, library = tmp_path / "mutant.c", tmp_path / "mutant.so"
    source.write_text(text, encoding="utf-8")
    subprocess.run([COMPILER, *FLAGS, *flags, source, "-o", library, "-pthread", "-lm"], check=True)
    monkeypatch.setattr(cpu, "LIBRARY", str(library))
