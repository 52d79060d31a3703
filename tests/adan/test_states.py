"""What is kept, saved, loaded and forgotten."""

import io
import threading

import numpy as np
import pytest
import torch
from support import engines
from support.authors_release import AuthorsAdan
from support.cpu_engine import ENGINES
from support.parity import same_bits

from adan import Adan


def model(dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(4, 3), (5,), (), (2, 3, 4, 4)]
    params = [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]
    params[3].data = params[3].data.to(memory_format=torch.channels_last)
    return params


def train(opt, steps, seed):
    generator = torch.Generator().manual_seed(seed)
    params = [p for group in opt.param_groups for p in group["params"]]
    for _ in range(steps):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator).to(p)
        opt.step()
    return [p.detach().clone() for p in params]


def reloaded(state_dict):
    """Through the bytes of a file, read by the reader that trusts nothing."""
    buffer = io.BytesIO()
    torch.save(state_dict, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


ON_CPU = ["loop", "foreach", "cpu"]
PAIRS = [(torch.float32, first, second) for first in ON_CPU for second in ON_CPU]
OTHER_TYPES = [(dtype, x, x) for x in ON_CPU for dtype in (torch.bfloat16, torch.float64, torch.complex64)]


@pytest.mark.parametrize(("dtype", "first", "second"), PAIRS + OTHER_TYPES, ids=str)
def test_a_checkpoint_continues_bit_for_bit(dtype, first, second):
    for engine in (first, second):
        if (reason := engines.unsupported_reason(engine)) is not None:
            pytest.skip(reason)
    options = {"lr": torch.tensor(0.03), "weight_decay": 0.1, "max_grad_norm": 2.0}
    params = model(dtype)
    opt = Adan(params, **options, **engines.OPTIONS[first])
    train(opt, 5, seed=1)

    twins = [p.detach().clone().requires_grad_() for p in params]
    other = Adan(twins, lr=0.5, **engines.OPTIONS[second])
    other.load_state_dict(reloaded(opt.state_dict()))
    for mine, theirs in zip(opt.state.values(), other.state.values(), strict=True):
        assert mine.keys() == theirs.keys()
        for key in mine:
            assert same_bits(torch.view_as_real(mine[key]) if mine[key].is_complex() else mine[key],
                             torch.view_as_real(theirs[key]) if theirs[key].is_complex() else theirs[key])  # fmt: skip
            assert mine[key].stride() == theirs[key].stride()
            assert mine[key].data_ptr() != theirs[key].data_ptr()
        assert dtype != torch.bfloat16 or theirs["exp_avg"].dtype == torch.float32
    ours, theirs = train(opt, 5, seed=2), train(other, 5, seed=2)
    if first == second:
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    else:
        torch.testing.assert_close(theirs, ours)


def test_states_move_between_types():
    opt = Adan(model(torch.float32), lr=0.1)
    train(opt, 3, seed=1)
    for dtype, expected in [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)]:
        other = Adan(model(dtype), lr=0.1)
        other.load_state_dict(opt.state_dict())
        for mine, theirs in zip(opt.state.values(), other.state.values(), strict=True):
            assert theirs["exp_avg"].dtype == expected
            assert torch.equal(theirs["exp_avg"], mine["exp_avg"].to(expected))


def test_users_hooks_stand_outside_ours():
    opt, seen = Adan(model(), lr=0.1), []
    train(opt, 1, seed=0)

    def rename(_, state_dict):
        states = {i: {"exp_avg" if k == "old name" else k: v for k, v in s.items()} for i, s in
                  state_dict["state"].items()}  # fmt: skip
        return {**state_dict, "state": states}

    foreign = opt.state_dict()
    foreign["state"] = {
        i: {"old name" if k == "exp_avg" else k: v for k, v in s.items()} for i, s in foreign["state"].items()
    }
    other = Adan(model(torch.bfloat16), lr=0.1)
    other.register_load_state_dict_pre_hook(rename)
    other.register_load_state_dict_post_hook(lambda o: seen.extend(s["exp_avg"].dtype for s in o.state.values()))
    other.load_state_dict(foreign)
    assert seen == [torch.float32] * 4


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("options", [{}, {"no_prox": True}, {"max_grad_norm": 1.0}])
def test_a_checkpoint_of_the_authors_release_continues(engine, options):
    common = {"lr": 0.05, "betas": (0.9, 0.8, 0.95), "weight_decay": 0.3, **options}
    params = model()
    theirs = AuthorsAdan(params, **common)
    train(theirs, 6, seed=1)

    twins = [p.detach().clone().requires_grad_() for p in params]
    ours = Adan(twins, **engine)
    ours.load_state_dict(reloaded(theirs.state_dict()))
    assert ours.param_groups[0].items() >= engine.items()
    assert "step" not in ours.param_groups[0]
    torch.testing.assert_close(train(ours, 6, seed=2), train(theirs, 6, seed=2), rtol=1e-5, atol=1e-6)


def test_two_threads_save_at_once():
    p = torch.linspace(-1, 1, 70 * 70).requires_grad_()
    opt = Adan([p], state_format="8bit")
    p.grad = torch.ones_like(p)
    opt.step()
    errors = []

    def save():
        for _ in range(100):
            try:
                assert "exp_avg_codes" in opt.state_dict()["state"][0]
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=save) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_coupled_is_decided_when_a_group_is_added():
    p, q, r = (torch.ones(3, requires_grad=True) for _ in range(3))
    opt = Adan([{"params": [p]}, {"params": [q], "coupled": False}], betas=(0.9, 0.9, 0.99))
    opt.add_param_group({"params": [r], "betas": (0.98, 0.92, 0.99)})
    assert [group["coupled"] for group in opt.param_groups] == [0.9, False, False]
    opt.param_groups[2]["betas"] = (0.9, 0.9, 0.99)  # too late to couple
    for x in (p, q, r):
        x.grad = torch.ones(3)
    opt.step()
    assert ["exp_avg_diff" in opt.state[x] for x in (p, q, r)] == [False, True, True]
    assert torch.equal(p, q)
    torch.testing.assert_close(p, r)


def test_states_are_coupled_when_their_group_says_so():
    """Two averages of equal betas can become one at any time; one cannot become two."""
    p, q = (torch.ones(3, requires_grad=True) for _ in range(2))
    opt = Adan([{"params": [p]}, {"params": [q], "coupled": False}], lr=0.1, betas=(0.9, 0.9, 0.99))
    for k in range(4):
        p.grad = q.grad = torch.tensor([1.0, -2.0, 3.0]) * (k + 1)
        if k == 2:
            opt.param_groups[1]["coupled"] = 0.9
        opt.step()
    assert "exp_avg_diff" not in opt.state[q]
    torch.testing.assert_close(p, q)


def test_numbers_of_numpy_are_saved_as_python_s():
    """A user whose schedule computes rates by NumPy could not load the checkpoint with `weights_only=True`."""
    p = torch.ones(3, requires_grad=True)
    betas = tuple(np.array([0.9, 0.8, 0.95]))
    opt = Adan([p], lr=np.float32(0.5), betas=betas, eps=np.float64(1e-6), rounding_seed=np.int64(3))
    torch.optim.lr_scheduler.LambdaLR(opt, lambda k: np.cos(k))
    saved = reloaded(opt.state_dict())["param_groups"][0]
    assert (saved["lr"], saved["betas"], saved["eps"], saved["initial_lr"]) == (0.5, betas, 1e-6, 0.5)
    assert opt.param_groups[0]["betas"] is betas
