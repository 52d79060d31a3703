"""What torch's own optimizers take and Adan once did not, or took otherwise."""

import pytest
import torch
from torch.optim.lr_scheduler import LinearLR

from adan import Adan, Restart, release_gradients


def two(*sizes, dtype=torch.float32):
    params = [torch.ones(n, dtype=dtype, requires_grad=True) for n in sizes]
    for p in params:
        p.grad = torch.ones_like(p)
    return params


def test_a_state_that_was_cleared_starts_anew(engine):
    params = two(4, 4)
    opt = Adan(params, lr=0.1, **engine)
    opt.step()
    opt.step()
    opt.state[params[0]].clear()
    opt.step()
    assert [opt.state[p]["step"].item() for p in params] == [1, 3]


@pytest.mark.parametrize(
    ("name", "values", "dtype"),
    [
        ("consume_grad", (True, False), torch.float32),
        ("state_format", ("8bit", "fp32"), torch.float32),
        ("kahan_sum", (True, False), torch.bfloat16),
    ],
)
def test_a_form_that_was_left_and_taken_again(name, values, dtype):
    """A plan for other parameters had converted the state, and the first plan looked for names that it had lost."""
    params = two(4096, 4096, dtype=dtype)
    opt = Adan(params, lr=0.1, **{name: values[0]})
    opt.step()
    for value, some in ((values[1], params[:1]), (values[0], params)):
        opt.param_groups[0][name] = value
        for p in params:
            p.grad = torch.ones_like(p) if any(p is q for q in some) else None
        opt.step()
    assert [opt.state[p]["step"].item() for p in params] == [3, 2]


def test_a_scaler_over_an_optimizer_without_gradients():
    """As of the discriminator of a GAN in the generator's turn: GradScaler then hands over the number 0."""
    used, idle = two(3), two(3)
    idle[0].grad = None
    scaler = torch.amp.GradScaler("cpu")
    optimizers = [Adan(used, lr=0.1), Adan(idle, lr=0.1)]
    scaler.scale(used[0].sum()).backward()
    for opt in optimizers:
        scaler.step(opt)
    scaler.update()
    assert (used[0] < 1).all()
    assert torch.equal(idle[0], torch.ones(3))


def test_a_schedule_of_betas_goes_on_after_a_checkpoint_where_they_are_equal():
    runs = []
    for resumes in (False, True):
        params = two(3)
        opt = Adan(params, lr=0.1, betas=(0.90, 0.92, 0.99))
        for k, b1 in enumerate((0.90, 0.91, 0.92, 0.93)):
            opt.param_groups[0]["betas"] = (b1, 0.92, 0.99)
            params[0].grad = torch.full((3,), 1.0 + k)
            opt.step()
            if resumes and b1 == 0.92:
                saved, opt = opt.state_dict(), Adan(params)
                opt.load_state_dict(saved)
        runs.append(params[0].detach())
    assert torch.equal(*runs)


@pytest.mark.parametrize("lr", [1e-3, torch.tensor(1e-3)], ids=["float", "tensor"])
def test_a_rate_that_a_schedule_to_zero_leaves_a_rounding_error_below_it(lr):
    params = two(3)
    opt = Adan(params, lr=lr)
    scheduler = LinearLR(opt, 0.3, 0.0, 3)
    for _ in range(3):
        opt.step()
        scheduler.step()
    assert float(opt.param_groups[0]["lr"]) < 1e-9
    opt.load_state_dict(opt.state_dict())


def test_hooks_of_state_dict_see_what_is_saved():
    opt = Adan(two(4096), lr=0.1, state_format="8bit")
    opt.step()
    seen = []
    opt.register_state_dict_post_hook(lambda opt, saved: seen.extend(saved["state"][0]))
    opt.register_state_dict_post_hook(lambda opt, saved: {"inner": saved})
    assert list(opt.state_dict()) == ["inner"]
    assert {"exp_avg_codes", "layout"} <= set(seen)


def test_a_group_whose_parameters_come_from_a_generator_can_be_used_again():
    model = torch.nn.Linear(3, 2)
    groups = [{"params": model.parameters()}]
    first, second = Adan(groups), torch.optim.AdamW(groups)
    assert len(first.param_groups[0]["params"]) == len(second.param_groups[0]["params"]) == 2


def test_loading_keeps_the_release_and_what_captured_graphs_read():
    model = torch.nn.Linear(3, 2)
    opt = Adan(model.parameters())
    captured = opt._captured
    release_gradients(model, opt)
    opt.load_state_dict(opt.state_dict())
    assert opt._captured is captured
    with pytest.raises(ValueError, match="released already"):
        release_gradients(model, opt)


@pytest.mark.parametrize("name", ["foreach", "fused"])
def test_zero_is_not_false(name):
    with pytest.raises(TypeError, match=rf"{name} must be None \(choose\), True or False, got 0"):
        Adan(two(3), **{name: 0})


def test_a_compiled_step_refuses_sparse_gradients_by_name():
    model = torch.nn.Embedding(5, 3, sparse=True)
    opt = Adan(model.named_parameters())
    model(torch.tensor([1])).sum().backward()
    with pytest.raises(Exception, match=r"'weight' of shape \(5, 3\).*sparse=False"):
        torch.compile(opt.step, backend="eager")()


def test_a_group_that_is_deleted_under_restarts():
    a, b = two(3, 3)
    opt = Adan([{"params": [a]}, {"params": [b]}], lr=0.1, restart=Restart(radius=1e9))
    opt.step()
    del opt.param_groups[1]
    opt.step()
    assert opt.restart_progress.k == 1


def test_a_limit_of_the_norm_that_is_none_says_how_to_turn_clipping_off():
    with pytest.raises(TypeError, match=r"max_grad_norm must be a number, got None.*; 0 turns clipping off"):
        Adan(two(3), max_grad_norm=None)
