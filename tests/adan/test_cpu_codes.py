"""The C engine with quantized states, the coupled form and weights that do not stall: the bits of the plain version."""

import pytest
import torch
from support.cpu_engine import (
    DTYPES,
    FORMS,
    assert_same_bits,
    problem,
    states,
    train,
    train_rounded,
    without_library,
)

#: They enter the arithmetic as coefficients only, so that each pair of options with a form or a type is enough.
OPTIONS = [{}, {"max_grad_norm": 20.0, "maximize": True}, {"no_prox": True, "bias_correction": False}]
CASES = [
    (form, dtype, OPTIONS[(i + k) % 3])
    for i, form in enumerate(FORMS)
    for k, dtype in enumerate(DTYPES)
    if not ("stochastic" in form and dtype == torch.float16)
]


@without_library
@pytest.mark.usefixtures("same_norm", "exact_sqrt")
@pytest.mark.parametrize(("form", "dtype", "options"), CASES, ids=str)
def test_rounded_states_are_the_same_bits(form, dtype, options, threads):
    expected = train_rounded(dtype, **FORMS[form], **options, foreach=False, fused=False)
    for count in (1, 2):
        threads(count)
        assert_same_bits(train_rounded(dtype, **FORMS[form], **options, fused=True), expected)


@without_library
@pytest.mark.parametrize("state_format", ["8bit", "4bit"])
def test_what_is_not_finite_stays_in_its_block_and_leaves_with_its_gradient(state_format):
    results = []
    for engine in ({"fused": True}, {"foreach": False, "fused": False}):
        params = problem(torch.float32, [4096 + 3])

        def grads(k, i, grad):
            grad[[70, 4097]] = torch.tensor([float("inf"), float("nan")]) if k == 1 else torch.ones(2)
            return grad

        opt = train(params, steps=3, grads=grads, state_format=state_format, **engine)
        results.append((params[0].detach(), opt.state[params[0]]))
    (p, ours), (q, loops) = results
    bad = (~p.isfinite()).nonzero().flatten().tolist()
    assert bad == (~q.isfinite()).nonzero().flatten().tolist() == [*range(64, 96), *range(4096, 4099)]
    assert_same_bits([ours["exponents"], ours["prev_grad"]], [loops["exponents"], loops["prev_grad"]])
    assert ours["exponents"][[2, 128], 0].tolist() == [255, 255]


@without_library
@pytest.mark.parametrize("form", ["8 bit", "4 bit", "bf16, coupled, Kahan"])
def test_nothing_outside_a_rounded_state_is_touched(form):
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


@without_library
@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="this PyTorch has no grad_dtype")
@pytest.mark.usefixtures("exact_sqrt")
@pytest.mark.parametrize("options", [{}, *FORMS.values()], ids=str)
def test_a_gradient_of_a_wider_type(options):
    results = []
    for engine in ({"fused": True}, {"foreach": False, "fused": False}):
        params = problem(torch.bfloat16, [33, 4099])
        for p in params:
            p.grad_dtype = torch.float32
        opt = train(params, grads=lambda k, i, grad: torch.linspace(0, k + 1, grad.numel()), **options, **engine)
        results.append(params + states(opt))
    assert_same_bits(*results)
