"""A mistake in the C must not survive, and every instruction set must give the same bits."""

import platform

import pytest
import torch
from support.cpu_engine import (
    COUPLED,
    DTYPES,
    FORMS,
    TAILS,
    VECTORIZED,
    assert_same_bits,
    mutant,
    problem,
    states,
    train,
    train_rounded,
    use_library,
    use_mutant,
    without_compiler,
    without_library,
)
from support.parity import ROW, assert_parity

from adan.engines import cpu

#: (what stands there, the mistake, a row that must notice it)
MUTATIONS = [
    ("g + lookahead * d;", "g;", "fast betas"),
    ("g + lookahead * d;", "g + (1 - lookahead) * d;", "fast betas"),
    ("(root_n * root + eps)", "root_##C(root_n * root_n * n_ + eps)", "large eps"),
    ("shrink * (keep * load_##T(param[k])", "(keep * load_##T(param[k])", "proximal decay"),
    ("shrink * (keep * load_##T(param[k])", "shrink * (load_##T(param[k])", "AdamW's decay"),
    ("has_prev * (g - before)", "(g - before)", "fast betas"),
    ("prev[k] = g;", "prev[k] = load_##T(grad[k]);", "clipped now and then"),
    ("w_v * (d - old_v)", "w_m * (d - old_v)", "fast betas"),
    ("n[k] = QUANTIZED ? root : n_;", ";", "fast betas"),
    ("step_m * m_ + step_v * v_", "step_m * m_ + step_v * v[k]", "fast betas"),
    ("*tensors[i].step += tensors[i].grad != NULL;", ";", "fast betas"),
    ("&job->scalars[x->scalars]", "&job->scalars[0]", "fast betas"),
    ("for (; i < size; i++) {                                                                            \\\n",
     "for (; i < size - 1; i++) {                                                                        \\\n",
     "fast betas"),
]  # fmt: skip


@without_compiler
@pytest.mark.parametrize(("right", "wrong", "row"), MUTATIONS, ids=lambda text: text[:30])
def test_a_seeded_mistake_is_noticed(right, wrong, row, monkeypatch, tmp_path):
    use_mutant(right, wrong, monkeypatch, tmp_path)
    with pytest.raises(AssertionError, match=r"off by|nan"):
        assert_parity(ROW[row], fused=True)


#: The same where states or weights are rounded.
ROUNDING_MUTATIONS = [
    ("word << 8 * state |", "word << 4 * state |", "bf16"),
    ("word << (8 + 8 * state)", "word << (9 + 8 * state)", "8 bit"),
    ("word >> (56 - 8 * state - count)", "0", "8 bit"),
    ("(uint8_t)(largest + 1)", "(uint8_t)(largest + 2)", "8 bit"),
    ("exponent > 1 ? 1 : exponent", "0", "8 bit"),
    ("mix(key + (uint32_t)j)", "mix(key)", "bf16"),
    (" + (uint32_t)(start / 4)", "", "8 bit"),
    ("(last - stored) * per", "stored * per", "4 bit"),
    ("room[G][k] - averaging * v[k]", "room[G][k]", "4 bit"),
    ("from[k] >> 4", "from[k] & 15", "4 bit"),
    ("* OF_WEIGHT)", ")", "stochastic"),
    ("theta[k] += rest[k]", "theta[k] += 0", "Kahan"),
    ("m_ + w_d * d", "m_ + w_v * d", "coupled"),
]


@without_compiler
@pytest.mark.usefixtures("exact_sqrt")
@pytest.mark.parametrize(("right", "wrong", "form"), ROUNDING_MUTATIONS, ids=lambda text: text[:30])
def test_a_seeded_mistake_in_rounding_is_noticed(right, wrong, form, monkeypatch, tmp_path):
    use_mutant(right, wrong, monkeypatch, tmp_path)
    with pytest.raises(AssertionError):
        assert_same_bits(*rounded_by_c_and_by_loop(form))


@without_compiler
@pytest.mark.usefixtures("exact_sqrt")
def test_nothing_is_noticed_where_there_is_no_mistake(monkeypatch, tmp_path):
    use_mutant(MUTATIONS[0][0], MUTATIONS[0][0], monkeypatch, tmp_path)
    for form in {form for *_, form in ROUNDING_MUTATIONS}:
        assert_same_bits(*rounded_by_c_and_by_loop(form))
    assert_parity(ROW["fast betas"], fused=True)


def rounded_by_c_and_by_loop(form):
    engines = ({"fused": True}, {"foreach": False, "fused": False})
    return [train_rounded(torch.bfloat16, [5000], **FORMS[form], **engine) for engine in engines]


@without_library
@without_compiler
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="there is one to choose from")
@pytest.mark.parametrize("best", ["avx2", "baseline"])
def test_every_instruction_set_gives_the_same_bits(best, installed, monkeypatch, tmp_path):
    if best == "avx2" and not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        pytest.skip("this processor has no AVX2")
    head = "static kernel *chosen(void) {"
    use_library(mutant(head, f"{head} return {best};"), VECTORIZED, monkeypatch, tmp_path)
    assert_same_bits(installed, every_kernel())


@pytest.fixture(scope="module")
def installed():
    return every_kernel()


def every_kernel():
    results = []
    for dtype in DTYPES:
        coded = [form for form in FORMS.values() if dtype != torch.float16 or "stochastic_rounding" not in form]
        for form in ({}, COUPLED, *coded):
            params = problem(dtype, [*TAILS, 4099])
            opt = train(params, max_grad_norm=20.0, fused=True, **form)
            results += params + states(opt)
    return results


@without_compiler
def test_a_library_of_another_version_is_refused(monkeypatch, tmp_path):
    use_mutant("X(double, w_m) X(double, w_v)", "X(double, w_v) X(double, w_m)", monkeypatch, tmp_path)
    assert "built from another version of adan" in cpu.Cpu().unsupported_reason(torch.zeros(1))
