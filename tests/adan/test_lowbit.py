"""States in 8 and 16 bits: the codes themselves, every engine against the plain one, and what they cost."""

import pytest
import torch

from adan import Adan, dispatch
from adan.engines import cuda

GPU = torch.cuda.is_available()
FORMS = {
    "8bit": {"state_format": "8bit"},
    "8bit coupled": {"state_format": "8bit", "betas": (0.9, 0.9, 0.95)},
    "bf16": {"state_format": "bf16"},
    "coupled": {"betas": (0.9, 0.9, 0.95)},
}


@pytest.fixture(params=["foreach", "cpu", "cuda"])
def engine(request, monkeypatch):
    if request.param == "cuda" and not GPU:  # in Triton's interpreter
        monkeypatch.setattr(dispatch, "_fused", lambda param: ("cuda", cuda.refuses(param)))
        monkeypatch.setattr(cuda, "TILE", cuda.Tile(1024, 512, 1))
        monkeypatch.setattr(cuda, "TILES", {})
    with torch.device("cuda" if request.param == "cuda" and GPU else "cpu"):
        yield {"foreach": {"foreach": True}}.get(request.param, {"fused": True})


def train(options, dtype=torch.float32, steps=6):
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
    other, twins = train({**FORMS[form], "foreach": False, "stochastic_rounding": True}, dtype)
    for p, q in zip(params, twins, strict=True):
        # A last bit that differs may tip a rounding, by one code: of the weights then this many are off.
        close = torch.isclose(p, q, rtol=1e-5 if dtype == torch.float32 else 2**-7, atol=1e-5)
        assert close.double().mean() > 0.995
        for name, value in opt.state[p].items():
            expected = other.state[q][name]
            assert value.dtype == expected.dtype, name
            if value.dtype in (torch.uint8, torch.bfloat16):
                assert (value == expected).double().mean() > 0.995, name
