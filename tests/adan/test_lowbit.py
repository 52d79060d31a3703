"""States in 8 and 16 bits: the codes themselves, every engine against the plain one, and what they cost."""

import pytest
import torch
from support import engines
from support.codes import every_code
from support.parity import count_as_on_a_device

from adan import Adan, lowbit, states
from adan.lowbit import BLOCK, ROOT, SIGNED, RandomBits, decode, encode, pack, to_bf16, unpack

FORMS = {
    "8bit": {"state_format": "8bit"},
    "8bit coupled": {"state_format": "8bit", "betas": (0.9, 0.9, 0.95)},
    "4bit": {"state_format": "4bit"},
    "4bit coupled": {"state_format": "4bit", "betas": (0.9, 0.9, 0.95)},
    "bf16": {"state_format": "bf16"},
    "coupled": {"betas": (0.9, 0.9, 0.95)},
}


@pytest.fixture(params=["foreach", "cpu", "cuda"])
def engine(request):
    """Engines to compare with the loop."""
    with engines.selected(request.param, engines.LARGE) as options:
        yield options


#: Engines that round to bf16 as PyTorch does: Triton's interpreter drops the bits.
rounding = pytest.mark.parametrize("engine", ["foreach", "cpu", *(["cuda"] if engines.GPU else [])], indirect=True)


def train(options, dtype=torch.float32, steps=4):
    torch.manual_seed(0)
    params = [torch.randn(shape, dtype=dtype).requires_grad_() for shape in ((4099,), (64, 65), (7,))]
    opt = Adan(params, lr=0.05, **{"betas": (0.9, 0.8, 0.95), "weight_decay": 0.1, **options})
    for k in range(steps):
        for i, p in enumerate(params):
            p.grad = p.detach() * (1 + i) + torch.linspace(-1, 1, p.numel()).view(p.shape).to(dtype) / (k + 1)
        opt.step()
    return opt, params


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_engines_store_the_same_codes(engine, form, dtype):
    opt, params = train({**FORMS[form], **engine, "stochastic_rounding": True}, dtype)
    other, twins = train({**FORMS[form], "foreach": False, "fused": False, "stochastic_rounding": True}, dtype)
    for p, q in zip(params, twins, strict=True):
        # A last bit that differs may tip a rounding by one code, or the exponent of a block: then this many are off.
        close = torch.isclose(p, q, rtol=1e-5 if dtype == torch.float32 else 2**-7, atol=1e-5)
        assert close.double().mean() > 0.99
        for name, value in opt.state[p].items():
            expected = other.state[q][name]
            assert value.dtype == expected.dtype, name
            if value.dtype in (torch.uint8, torch.bfloat16):
                assert (value == expected).double().mean() > 0.99, name


# ---- codes


@every_code
def test_every_code_is_read_and_written_back(code):
    count = 2**code.width
    codes = torch.arange(count, dtype=torch.uint8)[:, None].expand(count, BLOCK).contiguous()
    codes[:, 0] = code.one  # 1 − δ: less than 1, and no less than 1/2: the exponent of the block comes from it
    minus_zero = count // 2 if code.signed else -1
    valid = codes.where(codes != minus_zero, 0)  # −0 is kept, too, but is not equal to it
    for exponent in (2, 100, 127, 200, 253):
        values = decode(valid.flatten(), torch.full((count,), exponent, dtype=torch.uint8), code)
        again, exponents = encode(values, code)
        # The last codes are what rounds above 1, or δ above the last but one.
        below = (values.view(count, BLOCK).abs() < 2.0 ** (exponent - 127)).all(1)
        assert below.sum() >= count - (2 if code.signed else 1)
        assert (exponents[below] == exponent).all()
        assert torch.equal(again.view(count, BLOCK)[below], valid[below])


@every_code
def test_the_largest_of_a_block_has_a_code(code):
    last = 2 ** (code.width - code.signed) - 1
    x = torch.zeros(BLOCK)
    x[0] = 1 - 2**-24
    for word in (0, 2**32 - 1):
        codes, exponents = encode(x, code, torch.full((BLOCK,), word))
        assert codes[0] <= last
        assert decode(codes, exponents, code)[0] == pytest.approx(1, rel=2**-code.bits)
    assert codes[0] == last  # and none is wasted


def test_two_codes_share_a_byte():
    for size in (1, 31, 32, 33, 4099):
        codes = torch.randint(16, (size,), dtype=torch.uint8)
        packed = pack(codes)
        assert packed.shape == (-(-size // BLOCK), BLOCK // 2)
        assert packed.view(-1)[0] == codes[0] + (16 * codes[1] if size > 1 else 0)
        assert torch.equal(unpack(packed, size), codes)
        assert (unpack(packed, packed.numel() * 2)[size:] == 0).all()


@every_code
def test_rounding_is_unbiased(code):
    n = 10_000
    sizes = torch.cat([torch.logspace(-6 if code.width == 8 else -2, -0.01, BLOCK - 1), torch.ones(1)])
    values = sizes * torch.tensor([1, -1]).repeat(BLOCK // 2) if code.signed else sizes
    if not code.signed:  # what is below the first code is rounded up to it, so that nothing is divided by zero
        values = values.clamp(min=2 * code.delta * 2.0**-code.bits)
    x = values.repeat(n)
    rounded = decode(*encode(x, code, RandomBits.of(lowbit.rng_offset(0, 3), 1, x).exp_avg_diff), code).view(n, BLOCK)
    error = (rounded.double() - values).mean(0)
    assert (error.abs() <= 4 * rounded.double().std(0) / n**0.5 + 1e-12).all()
    assert (rounded.std(0) > 0).sum() > BLOCK // 2  # and it is rounding
    step = (values.abs() + code.delta) * 2.0**-code.bits
    assert ((rounded - values).abs() <= 2 * step).all()


def test_rounding_to_bf16_is_unbiased():
    n = 10_000
    values = torch.logspace(-20, 20, 64) * torch.tensor([1, -1]).repeat(32)
    x = values.repeat(n)
    rounded = to_bf16(x, RandomBits.of(lowbit.rng_offset(0, 3), 1, x).param).double().view(n, 64)
    error = (rounded - values).mean(0)
    assert (error.abs() <= 4 * rounded.std(0) / n**0.5 + values.abs() * 1e-12).all()
    assert (rounded.std(0) > 0).sum() > 32
    cuda_s_nan = torch.tensor([0x7FFFFFFF], dtype=torch.int32).view(torch.float32)
    special = torch.cat([torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0]), cuda_s_nan])
    kept = to_bf16(special, torch.full((5,), 0xFFFF))
    torch.testing.assert_close(kept, special.bfloat16(), rtol=0, atol=0, equal_nan=True)


def test_a_root_above_zero_is_never_zero_and_a_block_of_zeros_is():
    x = torch.zeros(2 * BLOCK)
    x[0], x[1] = 1.0, 1e-12
    codes, exponents = encode(x, ROOT, torch.zeros(len(x), dtype=torch.int64))
    values = decode(codes, exponents, ROOT)
    assert values[1] > 0
    assert (values[2:] == 0).all()


def test_what_is_not_finite_stays_so():
    for bad in (float("inf"), float("nan"), 3e38):
        x = torch.ones(2 * BLOCK)
        x[3] = bad
        values = decode(*encode(x, SIGNED), SIGNED)
        assert not values[:BLOCK].isfinite().all()
        torch.testing.assert_close(values[BLOCK:], torch.ones(BLOCK), rtol=0.02, atol=0)


def test_random_bits_of_neighbors_and_parameters_are_uncorrelated():
    x = torch.zeros(4096)
    bits = [RandomBits.of(lowbit.rng_offset(*at), 1, x).exp_avg & 0xFFFF for at in ((0, 0), (0, 1), (1, 0))]
    table = torch.stack([*bits, *(bits[0].roll(i) for i in (1, 2, 3, 4))]).double()
    off = torch.corrcoef(table) - torch.eye(len(table))
    assert off.abs().max() < 0.08  # five deviations of 1/√4096
    assert ((table.mean(1) / 65535 - 0.5).abs() < 5 * 0.289 / 64).all()


@pytest.mark.parametrize("state", [*lowbit.CODES["8bit"], "param"])
def test_over_steps_an_element_is_rounded_up_as_often_as_it_should_be(state):
    x = torch.zeros(256)
    count = 2 ** (16 if state == "param" else 24)
    numbers = torch.stack([getattr(RandomBits.of(7, t, x), state) for t in range(1, 201)]) % count / count
    for share in (0.05, 0.3, 0.5, 0.81):
        # Independent numbers would be off by up to four deviations: 28 of 200, 9 of 20.
        assert ((numbers < share).sum(0) - 200 * share).abs().max() <= 4
        assert ((numbers[:20] < share).sum(0) - 20 * share).abs().max() < 2.5


# ---- optimizers


@pytest.mark.parametrize("form", FORMS)
def test_repr_names_the_form(form):
    words = {"bf16": "bfloat16", "coupled": "float32 coupled"}.get(form, form.replace("bit", " bit"))
    assert f"States: {words} for 1 parameter" in repr(Adan([torch.zeros(300, 300)], **FORMS[form]))


@pytest.mark.parametrize(("state_format", "bound"), [("fp32", 1.01), ("8bit", 2), ("4bit", 6)])
@pytest.mark.parametrize("foreach", [False, None])
def test_the_first_updates_are_small(state_format, bound, foreach):
    """1 − b2ᵗ is small there, and magnifies what rounding does to v. (4 bits, independent bits for its parts: 16.)"""
    gradient = torch.randn(1 << 16, generator=torch.Generator().manual_seed(1))
    p = torch.nn.Parameter(torch.zeros(1 << 16))
    opt = Adan([p], lr=1, state_format=state_format, foreach=foreach, fused=None if foreach is None else False)
    noise = torch.Generator().manual_seed(1)
    for _ in range(6):
        before = p.detach().clone()
        p.grad = gradient + 0.1 * torch.randn(1 << 16, generator=noise)
        opt.step()
        assert (p.detach() - before).abs().max() < bound


def update_error(b2, state_format="4bit", steps=80):
    """Of the updates by quantized states, against those of fp32 states with the same gradients: ‖Δ − Δ₃₂‖ / ‖Δ₃₂‖."""
    torch.manual_seed(0)
    size = 1 << 14
    mean, spread = torch.randn(size), torch.rand(size) + 0.1
    params = [torch.nn.Parameter(torch.zeros(size)) for _ in range(2)]
    pairs = [
        (p, Adan([p], lr=1.0, betas=(0.9, b2, 0.99), state_format=x))
        for p, x in zip(params, ("fp32", state_format), strict=True)
    ]
    squares = torch.zeros(2)
    for _ in range(steps):
        grad = mean + spread * torch.randn(size)
        updates = []
        for p, opt in pairs:
            before = p.detach().clone()
            p.grad = grad
            opt.step()
            updates.append(p.detach() - before)
        squares += torch.stack([(updates[1] - updates[0]).square().sum(), updates[0].square().sum()])
    return (squares[0] / squares[1]).sqrt().item()


@pytest.mark.parametrize("b2", [0.0, 0.5, 0.98, 0.99, 0.999])
def test_4_bits_are_as_precise_at_any_b2(b2):
    """The factor of v was that of b2 = 0.92: at 0.999 the error of an update was 62 times the update."""
    assert update_error(b2) < 1.5 * update_error(0.92)


@pytest.mark.parametrize(("state_format", "bias", "of_small"), [("8bit", 0.01, 0.1), ("4bit", 0.09, 1.0)])
def test_n_is_as_much_too_large_as_the_docs_say(state_format, bias, of_small):
    """The variance of roundings enters n: by a few percent, but more where neighbors are ten times as large."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(8192, generator=generator)
    params = [torch.zeros(8192, requires_grad=True) for _ in range(2)]
    opts = [Adan([p], state_format=name) for p, name in zip(params, ("fp32", state_format), strict=True)]
    for _ in range(60):
        grad = mean + 0.5 * mean.abs() * torch.randn(8192, generator=generator)
        for p, opt in zip(params, opts, strict=True):
            p.grad = grad.clone()
            opt.step()
    exact, ours = (lowbit.read(opt.state[p])["exp_avg_sq"] for p, opt in zip(params, opts, strict=True))
    blocks = mean.abs().view(-1, BLOCK)
    small = (blocks < blocks.amax(1, keepdim=True) / 10).flatten()
    assert abs((ours / exact).median() - 1) < bias
    assert -0.1 < (ours / exact)[small].median() - 1 < of_small


def test_the_factor_of_v_is_kept():
    """Through a change of betas, a checkpoint and a restart; a checkpoint without one is refused."""
    p = torch.nn.Parameter(torch.zeros(4096))
    opt = Adan([p], betas=(0.9, 0.99, 0.99), state_format="4bit")
    for k in range(3):
        p.grad = torch.randn(4096)
        opt.param_groups[0]["betas"] = (0.9, 0.99 if k < 2 else 0.9, 0.99)
        opt.step()
    opt.restart()
    assert opt.state[p]["averaging"].item() == pytest.approx(99)
    saved = opt.state_dict()
    other = Adan([p], state_format="4bit")
    other.load_state_dict(saved)
    assert other.state[p]["averaging"].item() == pytest.approx(99)
    del saved["state"][0]["averaging"]
    with pytest.raises(ValueError, match="averaging is missing in this state dict, for parameter 0"):
        other.load_state_dict(saved)


@pytest.mark.parametrize("target", ["fp32", "bf16", "8bit", "4bit"])
@pytest.mark.parametrize("source", ["fp32", "bf16", "8bit", "4bit"])
def test_formats_are_converted_when_loaded(source, target):
    opt, params = train({"state_format": source})
    other = Adan(params, betas=(0.9, 0.8, 0.95), state_format=target)
    other.load_state_dict(opt.state_dict())
    assert other.param_groups[0]["state_format"] == target
    for p in params:
        old, new = opt.state[p], other.state[p]
        assert new["exp_avg"].dtype == (lowbit.FORMATS[target] if p.numel() >= 4096 else torch.float32)
        for name in ("exp_avg", "exp_avg_diff", "exp_avg_sq", "prev_grad"):
            a, b = states.plain(old)[name], states.plain(new)[name]
            bound = a.abs().max() * (0.01 if not {"8bit", "4bit"} & {source, target} else 0.04)
            if target == "4bit":
                bound = a.abs().max() * {"exp_avg": 0.07, "exp_avg_sq": 0.07}.get(name, 0.25)
            if target == "4bit" and name == "exp_avg_diff":  # stored through two others
                g = states.plain(old)["prev_grad"]
                factor = lowbit.averaging(0.8)
                bound = 0.25 * (g.abs().max() + (g - factor * a).abs().max()) / factor
            assert (a - b).abs().max() <= bound, name
    back = Adan(params, betas=(0.9, 0.8, 0.95), state_format=source)
    if (source, target) in (("bf16", "fp32"), ("8bit", "fp32")):  # nothing is lost on the way through the wider format
        back.load_state_dict(other.state_dict())
        for p in params:
            # A block whose largest element was rounded below a power of two is quantized again, on a finer grid.
            same = [(x == back.state[p][name]).double().mean() for name, x in opt.state[p].items()]
            assert min(same) > (0.95 if source == "8bit" else 0.999999)


def test_what_weights_have_lost_survives_a_conversion_of_formats():
    opt, params = train({"state_format": "4bit", "kahan_sum": True}, torch.bfloat16)
    other = Adan(params, betas=(0.9, 0.8, 0.95), kahan_sum=True)
    other.load_state_dict(opt.state_dict())
    for p in params:
        assert opt.state[p]["compensation"].any()
        assert torch.equal(other.state[p]["compensation"], opt.state[p]["compensation"])


def test_replicas_stay_equal_and_seeds_differ():
    runs = [train({"state_format": "8bit", "rounding_seed": seed}, steps=200) for seed in (0, 0, 1)]
    first, replica, other = (torch.cat([p.detach().flatten() for p in params]) for _, params in runs)
    assert torch.equal(first, replica)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("how", ["found_inf", "skip_nonfinite"])
@pytest.mark.parametrize("form", FORMS)
def test_a_skipped_step_changes_nothing(engine, form, how):
    rounded = {"kahan_sum": True} if "coupled" in form else {"stochastic_rounding": True}
    options = {**FORMS[form], **rounded, **engine, "skip_nonfinite": how == "skip_nonfinite"}
    opt, params = train(options, torch.bfloat16, steps=2)
    before = [(p.clone(), {name: x.clone() for name, x in opt.state[p].items()}) for p in params]
    if how == "found_inf":
        opt.found_inf = torch.ones(())
    else:
        params[1].grad[3] = float("inf")
    opt.step()
    for p, (theta, state) in zip(params, before, strict=True):
        assert torch.equal(p, theta)
        assert all(torch.equal(opt.state[p][name], x) for name, x in state.items())


@rounding
@pytest.mark.parametrize(
    ("options", "gradient", "expected"),
    [({"lr": 1e-4}, 1.0, 0.99), ({"lr": 1e-3, "weight_decay": 0.1}, 0.0, (1 + 1e-4) ** -100)],
    ids=["updates", "decay"],
)
def test_small_changes_of_bf16_weights_are_not_lost(engine, options, gradient, expected):
    """100 steps of 1e-4 from 1, where the next bf16 numbers are 0.9961 and 1.0078: each alone rounds away."""
    means = []
    for remedy in ({}, {"stochastic_rounding": True}, {"kahan_sum": True}):
        p = torch.ones(8192, dtype=torch.bfloat16).requires_grad_()
        opt = Adan([p], betas=(0.9, 0.8, 0.95), **options, **remedy, **engine)
        for _ in range(100):
            p.grad = torch.full_like(p, gradient)
            opt.step()
        means.append((p.float() + opt.state[p].get("compensation", 0)).mean().item())
    assert means == [1.0, *[pytest.approx(expected, abs=3e-4)] * 2]


def test_stochastic_rounding_set_in_a_group_with_kahan_sum_is_ignored(engine):
    """The constructor refuses both; the C engine then added what rounding had lost at every step."""
    opt, params = train({"kahan_sum": True, **engine}, torch.bfloat16)
    opt.param_groups[0].update(stochastic_rounding=True, lr=0.0)
    before = [p.detach().float() for p in params]
    for _ in range(20):
        opt.step()
    for p, old in zip(params, before, strict=True):
        torch.testing.assert_close(p.detach().float(), old, rtol=2**-7, atol=0)  # one rounding


@pytest.mark.parametrize("form", FORMS)
def test_restart_forgets_states_but_not_what_weights_have_lost(form):
    """Poisoned ones, too."""
    opt, params = train({**FORMS[form], "kahan_sum": True}, torch.bfloat16)
    state = opt.state[params[0]]
    kept = state["compensation"].clone()
    for name in state.keys() & {"exp_avg", "exp_avg_sq", "prev_grad", "exponents"}:
        state[name].fill_(torch.nan if state[name].is_floating_point() else 255)
    opt.restart()
    assert state["step"] == 0
    assert all((x == 0).all() for name, x in states.plain(state).items())
    assert torch.equal(state["compensation"], kept)
    assert kept.any()


def test_a_traced_step_has_the_same_codes(monkeypatch):
    """Coefficients, counts and random bits as tensors, as in a captured step."""
    plain, params = train({"state_format": "8bit", "foreach": True, "capturable": True})
    count_as_on_a_device(monkeypatch)
    traced, twins = train({"state_format": "8bit", "foreach": True, "capturable": True})
    for p, q in zip(params, twins, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-2, atol=1e-2)
        for name, x in traced.state[q].items():
            assert x.dtype != torch.uint8 or (plain.state[p][name] == x).double().mean() > 0.9


@pytest.mark.parametrize("foreach", [None, True, False])
def test_a_parameter_with_gaps_in_memory(foreach):
    """Rounded with the bits of a dense one; states that have its shape and no gaps are left as they are."""
    memory = torch.ones(8, 5, dtype=torch.bfloat16)
    params = [memory[:, :3].requires_grad_(), torch.ones(8, 3, dtype=torch.bfloat16, requires_grad=True)]
    opts = [
        Adan([p], lr=1e-3, stochastic_rounding=True, foreach=foreach, fused=None if foreach is None else False)
        for p in params
    ]
    for k in range(3):
        for opt, p in zip(opts, params, strict=True):
            p.grad = torch.full_like(p, 1.0 + k)
            opt.step()
    assert torch.equal(*params)
    assert (memory[:, 3:] == 1).all()
    average = opts[0].state[params[0]]["exp_avg"]
    opts[0]._plan = None
    opts[0].step()
    assert opts[0].state[params[0]]["exp_avg"] is average


@pytest.mark.parametrize("betas", [(0.9, 0.92, 0.95), (0.9, 0.9, 0.95)], ids=["apart", "coupled"])
@pytest.mark.parametrize("state_format", ["8bit", "4bit"])
def test_codes_that_were_saved_as_numbers_are_the_same_codes(state_format, betas):
    """As FSDP2's checkpoints do: 12% of the 4-bit exponents and 6 to 10% of g and v became others."""
    torch.manual_seed(0)
    p = torch.nn.Parameter(torch.randn(130, 65))
    opt = Adan([p], betas=betas, state_format=state_format)
    for _ in range(9):
        p.grad = torch.randn(130, 65) * torch.rand(130, 65) ** 4
        opt.step()
    state = opt.state[p]
    group = opt.param_groups[0]
    wide = {**state, **states.plain(state)}
    wide = {name: x for name, x in wide.items() if name not in ("exponents", "averaging")}
    again = states.convert(wide, p, states.Form.of(group, p), group)
    assert torch.equal(again["exponents"], state["exponents"])
    for name, x in states.plain(again).items():
        assert torch.equal(states.plain(state)[name], x), name
