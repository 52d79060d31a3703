"""`torch.amp.GradScaler` and gradients that are used inside backward exclude each other, and this is said in time."""

import pytest
import torch

from adan import Adan, release_gradients


def make():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 3)
    return model, Adan(model.parameters(), lr=0.1)


def test_released_gradients_that_are_scaled_are_refused_before_anything_changes():
    """A user of both trained on gradients 65,536 times too large, and heard of it after the first step."""
    model, opt = make()
    release_gradients(model, opt)
    before = [p.detach().clone() for p in model.parameters()]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)

    def step():
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.ones(1, 3)).sum()
        scaler.scale(loss).backward()
        scaler.step(opt)

    with pytest.raises(RuntimeError, match=r"GradScaler.*(bfloat16|remove\(\))"):
        step()
    for p, value in zip(model.parameters(), before, strict=True):
        assert torch.equal(p, value)
    assert not opt.state


def test_a_disabled_scaler_is_no_scaler():
    """`GradScaler(enabled=False)` stands in scripts that also run in bfloat16: it must not be refused."""
    model, opt = make()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    with release_gradients(model, opt):
        before = model.weight.detach().clone()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.ones(1, 3)).sum()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    assert not torch.equal(model.weight, before)


def test_a_scaler_works_again_after_the_release_is_removed():
    model, opt = make()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    release_gradients(model, opt).remove()
    scaler.scale(model(torch.ones(1, 3)).sum()).backward()
    scaler.step(opt)
    scaler.update()
    assert opt.state[model.weight]["step"] == 1
