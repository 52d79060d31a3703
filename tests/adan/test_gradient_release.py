"""Steps inside backward: the same numbers as after it, and less memory."""

import copy
import gc
import io
import weakref

import pytest
import torch
from torch import nn
from torch.optim import SGD

from adan import Adan, Restart, release_gradients

OPTIONS = {
    "plain": {},
    "8bit": {"state_format": "8bit"},
    "4bit": {"state_format": "4bit"},
    "foreach, coupled": {"foreach": True, "betas": (0.9, 0.9, 0.99)},
}


def make(options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(70, 70), nn.Tanh(), nn.Linear(70, 1))
    return model, Adan(model.parameters(), lr=1e-2, weight_decay=0.1, **options)


def train(model, opt, steps=5):
    torch.manual_seed(1)
    for _ in range(steps):
        model(torch.randn(8, 70)).square().mean().backward()
        yield
        opt.step()
        opt.zero_grad()


def assert_equal(model, twin):
    assert all(map(torch.equal, model.parameters(), twin.parameters()))


def values(model):
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("name", OPTIONS)
def test_the_numbers_are_those_of_steps_after_backward(name):
    model, opt = make(OPTIONS[name])
    twin, other = make(OPTIONS[name])
    handle = release_gradients(model, opt)
    for _ in train(model, opt):
        assert all(p.grad is None for p in model.parameters())
    for _ in train(twin, other):
        pass
    assert_equal(model, twin)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert all(torch.equal(value, other.state[q][key]) for key, value in opt.state[p].items())
    handle.remove()
    model(torch.ones(1, 70)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_gradients_are_never_all_there():
    class Watch(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    model = Watch()
    opt = Adan(model.parameters())
    most = 0

    def count(*_):
        nonlocal most
        most = max(most, sum(p.grad is not None for p in model.parameters()))

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(count)
    with release_gradients(model, opt):
        model(torch.randn(2, 64)).sum().backward()
    assert most == 1


def test_two_backward_passes_are_an_error():
    model, opt = make({})
    release_gradients(model, opt)
    model(torch.ones(1, 70)).sum().backward()
    with pytest.raises(RuntimeError, match="second gradient before step"):
        model(torch.ones(1, 70)).sum().backward()


@pytest.mark.parametrize(
    ("choose", "options", "error", "message"),
    [
        (lambda model, opt: (model, opt), {"max_grad_norm": 1.0}, ValueError, "max_grad_norm"),
        (lambda model, opt: (model, opt), {"skip_nonfinite": True}, ValueError, "skip_nonfinite"),
        (lambda model, opt: (model, opt), {"restart": Restart(every=3)}, ValueError, "release_gradients: restart=Rest"),
        (lambda model, opt: (nn.Linear(2, 2), opt), {}, ValueError, "no parameter of model"),
        (lambda model, opt: (list(model.parameters()), opt), {}, TypeError, r"must be a torch\.nn\.Module, got list"),
        (lambda model, opt: (model, SGD(model.parameters())), {}, TypeError, r"opt must be an adan\.Adan"),
    ],
)
def test_what_is_refused(choose, options, error, message):
    with pytest.raises(error, match=message):
        release_gradients(*choose(*make(options)))


def test_a_checkpoint_that_is_loaded_and_a_rate_that_is_then_scheduled():
    """A user who resumed a run with released gradients trained at the old learning rate, whatever the schedule said."""
    model, opt = make({})
    twin, other = make({})
    release_gradients(model, opt)
    for run in ((model, opt), (twin, other)):
        for _ in train(*run, steps=2):
            pass
        run[1].load_state_dict(run[1].state_dict())
        run[1].param_groups[0]["lr"] = 1e-3
        for _ in train(*run, steps=2):
            pass
    assert_equal(model, twin)


def test_a_group_that_is_replaced():
    """Frameworks replace `param_groups` by new dicts: released steps read those that the optimizer has now."""
    model, opt = make({})
    release_gradients(model, opt)
    opt.param_groups = [{**group, "lr": 0.0, "weight_decay": 0.0} for group in opt.param_groups]
    before = values(model)
    for _ in train(model, opt, steps=1):
        pass
    assert all(map(torch.equal, before, model.parameters()))


def test_a_checkpoint_that_brings_a_limit_of_the_norm():
    """Loaded after the release, it would have clipped each gradient by its own norm."""
    model, opt = make({})
    _, limited = make({"max_grad_norm": 0.5})
    release_gradients(model, opt)
    opt.load_state_dict(limited.state_dict())
    before = values(model)
    with pytest.raises(ValueError, match=r"max_grad_norm=0\.5 needs all gradients at once"):
        model(torch.ones(1, 70))
    assert all(map(torch.equal, before, model.parameters()))


def test_a_second_release_is_refused_until_the_first_is_removed():
    model, opt = make({})
    captured = opt._captured
    with release_gradients(model, opt):
        for _ in range(2):
            with pytest.raises(ValueError, match="released already"):
                release_gradients(model, opt)
            opt.load_state_dict(opt.state_dict())  # which keeps the release, and what captured graphs read
    assert opt._captured is captured
    release_gradients(model, opt).remove()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_that_are_scaled_are_refused(dtype):
    """With float16 before anything changes: they are 65,536 times too large. With bfloat16 the step notices."""
    model, _ = make({})
    beside = torch.ones((), requires_grad=True)
    opt = Adan([*model.parameters(), beside], lr=1e-2)
    release_gradients(model, opt)
    before = values(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)

    def step():
        with torch.autocast("cpu", dtype):
            loss = model(torch.ones(2, 70)).mean() * beside
        scaler.scale(loss).backward()
        scaler.step(opt)

    with pytest.raises(RuntimeError, match=r"GradScaler.*(bfloat16|remove\(\))"):
        step()
    if dtype == torch.float16:
        assert all(map(torch.equal, before, model.parameters()))
        assert not opt.state


def test_a_disabled_scaler_is_no_scaler_and_one_works_after_the_release():
    """`GradScaler(enabled=False)` stands in scripts that also run in bfloat16: it must not be refused."""
    model, opt = make({})
    handle = release_gradients(model, opt)
    for k, enabled in enumerate((False, True)):
        scaler = torch.amp.GradScaler("cpu", enabled=enabled)
        with torch.autocast("cpu", torch.bfloat16, enabled=not enabled):
            loss = model(torch.ones(1, 70)).sum()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        assert opt.state[model[0].weight]["step"] == k + 1
        handle.remove()


def test_a_model_whose_gradients_are_released_can_be_copied_saved_and_evaluated():
    model, opt = make({})
    release_gradients(model, opt)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        other(torch.ones(2, 70)).mean().backward()
        assert other[0].weight.grad is not None
    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        model(torch.ones(2, 70))


def test_after_a_backward_pass_that_failed():
    model, opt = make({})
    release_gradients(model, opt)
    handle = model[0].weight.register_hook(lambda grad: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(torch.ones(2, 70)).mean().backward()
    handle.remove()
    opt.zero_grad()
    model(torch.ones(2, 70)).mean().backward()
    opt.step()


def test_what_is_not_released_waits_for_step_which_frees_its_gradient():
    """A parameter outside the model, and a layer that is thawed later: without zero_grad nothing accumulates."""
    model, _ = make({})
    scale, thawed = torch.ones((), requires_grad=True), model[2].weight.requires_grad_(False)
    opt = Adan([*model.parameters(), scale], lr=1e-6)
    release_gradients(model, opt)
    thawed.requires_grad_(True)
    seen = []
    for _ in range(3):
        before = [x.detach().clone() for x in (scale, thawed)]
        (model(torch.ones(1, 70)) * scale).sum().backward()
        assert model[0].weight.grad is None
        assert all(map(torch.equal, before, (scale, thawed)))
        seen.append((scale.grad.item(), thawed.grad.norm().item()))
        opt.step()
        assert not any(map(torch.equal, before, (scale, thawed)))
        assert (scale.grad, thawed.grad) == (None, None)
    assert seen == [pytest.approx(seen[0], rel=1e-2)] * 3


def test_a_parameter_that_moves_to_another_group():
    moved, stays = nn.Linear(2, 1, bias=False), nn.Linear(1, 1, bias=False)
    model = nn.Sequential(moved, stays)
    groups = [{"params": list(stays.parameters()), "lr": 0.0}, {"params": list(moved.parameters()), "lr": 0.1}]
    opt = Adan([*groups, {"params": [torch.zeros(1, requires_grad=True)], "lr": 1e-3}])
    release_gradients(model, opt)
    opt.param_groups[2]["params"].append(opt.param_groups[1]["params"].pop())
    opt.param_groups.pop(1)
    before = moved.weight.detach().clone()
    model(torch.ones(1, 2)).sum().backward()
    torch.testing.assert_close((moved.weight - before).abs(), torch.full((1, 2), 1e-3), rtol=1e-3, atol=0)
    opt.step()
    opt.param_groups.pop(1)
    with pytest.raises(RuntimeError, match=r"a parameter of shape \(1, 2\) is no longer one of .* remove"):
        model(torch.ones(1, 2)).sum().backward()


def test_parameters_that_change_places_between_groups():
    """Of one size: only where a parameter is found says that its options are others."""
    params = [nn.Parameter(torch.ones(64, 64)) for _ in range(2)]
    model = nn.ParameterList(params)
    opt = Adan([{"params": params[:1]}, {"params": params[1:], "state_format": "8bit"}])
    release_gradients(model, opt)
    for _ in range(2):
        sum(p.sum() for p in params).backward()
        opt.step()
        assert [opt.state[group["params"][0]]["exp_avg"].dtype for group in opt.param_groups] == [
            torch.float32,
            torch.uint8,
        ]
        first, second = opt.param_groups
        first["params"], second["params"] = second["params"], first["params"]


def test_parameters_that_are_taken_out_after_the_release_are_freed():
    model, opt = make({})
    handle = release_gradients(model, opt)
    for _ in train(model, opt, steps=1):
        pass
    handle.remove()
    gone = weakref.ref(model[2].weight)
    states = [weakref.ref(opt.state.pop(p)["exp_avg"]) for p in model[2].parameters()]
    opt.param_groups[0]["params"] = list(model[0].parameters())
    del model[2]
    gc.collect()
    assert not any(ref() is not None for ref in (gone, *states))


@pytest.mark.parametrize(("option", "wrong"), [("betas", (0.9, 1.0, 0.99)), ("eps", "1e-8"), ("lr", "1e-3")])
def test_an_option_that_was_changed_to_a_wrong_value_is_named(option, wrong):
    """Inside backward, as in `step()`; and before anything is written."""
    model, opt = make({})
    release_gradients(model, opt)
    opt.param_groups[0][option] = wrong
    before = values(model)
    with pytest.raises((TypeError, ValueError), match=rf"Adan, parameter group 0: {option}"):
        model(torch.ones(1, 70)).sum().backward()
    assert all(map(torch.equal, before, model.parameters()))


def test_a_wrapper_that_copies_the_attributes_ends_the_release_and_counts_restarts():
    """As Lightning's and Fabric's do: what was assigned anew was the wrapper's alone."""
    model, opt = make({})
    wrapper = copy.copy(opt)
    wrapper.__dict__ = {**opt.__dict__}
    release_gradients(model, wrapper).remove()
    wrapper.restart()
    assert not opt._releases
    for _ in train(model, opt, steps=1):
        assert all(p.grad is not None for p in model.parameters())
    assert opt.state_dict()["param_groups"][0]["manual_restarts"] == 1


def test_an_error_of_the_first_gradient_is_raised_again():
    """And not that there was a first one, already used."""
    model = nn.Embedding(3, 2, sparse=True)
    opt = Adan(model.parameters())
    release_gradients(model, opt)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="sparse"):
            model(torch.tensor([1])).sum().backward()


def test_a_model_that_is_dropped_without_remove_is_freed():
    model = torch.nn.Linear(4, 1)
    opt = Adan(model.parameters())
    release_gradients(model, opt)
    model(torch.ones(2, 4)).sum().backward()
    opt.step()
    gone = [weakref.ref(x) for x in (model.weight, opt)]
    del model, opt
    gc.collect()
    assert not any(ref() for ref in gone)
