"""What torch's own optimizers take and Adan once did not, or took otherwise."""

import pytest
import torch
from torch.optim.lr_scheduler import LinearLR

from adan import Adan, Restart, plan_memory


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


def test_a_compiled_step_refuses_sparse_gradients_by_name():
    model = torch.nn.Embedding(5, 3, sparse=True)
    opt = Adan(model.named_parameters())
    model(torch.tensor([1])).sum().backward()
    with pytest.raises(Exception, match=r"'weight' of shape \(5, 3\).*sparse=False"):
        torch.compile(opt.step, backend="eager")()


def with_notes(params, **options):
    """An optimizer after a step, in whose state a wrapper has put entries of its own: before the step, and after."""
    opt = Adan(params, lr=0.1, **options)
    opt.state[params[0]]["slow"] = torch.full_like(params[0], 7.0)
    opt.state["all"] = 3
    opt.step()
    opt.state[params[0]]["name"] = "first"
    return opt


def test_what_wrappers_keep_in_the_state_stays(tmp_path):
    """As timm's Lookahead keeps its slow weights there."""
    params = two(4096, 3)
    params[1].grad = None
    opt = with_notes(params, restart=Restart(every=100))
    opt.state[params[1]]["slow"] = torch.zeros(3)
    opt.restart()
    opt.param_groups[0]["state_format"] = "8bit"
    params[0].grad = torch.ones(4096)
    opt.step()
    torch.save(opt.state_dict(), tmp_path / "opt.pt")
    other = Adan(two(4096, 3), state_format="8bit")
    other.load_state_dict(torch.load(tmp_path / "opt.pt"))
    assert other.state[other.param_groups[0]["params"][1]].keys() == {"slow"}
    for found in (opt, other):
        state = found.state[found.param_groups[0]["params"][0]]
        assert "exponents" in state
        assert torch.equal(state["slow"], torch.full((4096,), 7.0))
        assert state["name"] == "first"
    other.step()


def test_what_wrappers_keep_in_a_group_is_loaded():
    opt = Adan(two(3), lr=0.1)
    opt.param_groups[0]["step"] = 8
    other = Adan(two(3))
    other.load_state_dict(opt.state_dict())
    assert other.param_groups[0]["step"] == 8


def test_a_group_is_shared_with_who_gave_it():
    """As by a wrapper that builds its optimizer from its own groups, for which a scheduler sets the rate."""
    group = {"params": two(3), "lr": 0.1}
    opt = Adan([group])
    assert opt.param_groups[0] is group
    group["lr"] = 0.0
    opt.step()
    assert torch.equal(group["params"][0], torch.ones(3))
    with pytest.raises(TypeError, match="lr"):
        opt.add_param_group(refused := {"params": two(3), "lr": "fast"})
    assert refused.keys() == {"params", "lr"}


def test_a_list_of_parameters():
    params = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(2))])
    assert Adan(params).param_groups[0]["params"][0] is params[0]


def test_frozen_integers_stand_by():
    """As beside adapters, where the weights are quantized."""
    codes = torch.nn.Parameter(torch.ones(4, dtype=torch.uint8), requires_grad=False)
    (p,) = two(3)
    opt = Adan([codes, p], lr=0.1)
    opt.step()
    assert "for 1 parameter" in repr(opt)
    assert torch.equal(codes, torch.ones(4, dtype=torch.uint8))
    assert plan_memory([codes, p]).rows["AdamW"].weights == 4 + 12


def test_a_gradient_in_the_memory_of_its_parameter(engine):
    """Of ½‖p‖²."""
    ends = []
    for copied in (torch.clone, lambda x: x):
        p = torch.tensor([1.0, 2.0, -3.0], requires_grad=True)
        opt = Adan([p], lr=1e-2, **engine)
        for _ in range(4):
            p.grad = copied(p.detach())
            opt.step()
        ends.append(p.detach())
    assert torch.equal(*ends)
