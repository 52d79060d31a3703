"""`torch.distributed.checkpoint` in one process: 8-bit states, saved and loaded in different layouts."""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from adan import Adan

# One process without a process group is what is tested.
pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
]

OPTIONS = {"lr": 1e-3, "betas": (0.9, 0.8, 0.95)}
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def make(layout, state_format):
    torch.manual_seed(0)
    model = torch.nn.Conv2d(16, 33, 3, bias=False).to(memory_format=LAYOUTS[layout])
    return model, Adan(model.parameters(), state_format=state_format, **OPTIONS)


def plain(opt):
    """What the states of the only parameter stand for."""
    [[p]] = [group["params"] for group in opt.param_groups]
    wide = Adan([p], state_format="fp32")
    wide.load_state_dict(opt.state_dict())
    return wide.state[p]


@pytest.mark.parametrize("state_format", ["8bit", "4bit"])
@pytest.mark.parametrize("target", LAYOUTS)
@pytest.mark.parametrize("source", LAYOUTS)
def test_quantized_states_in_another_layout(source, target, state_format, tmp_path):
    """A user who saved a channels_last model and loaded it contiguous went on with 30% of error in the momentum."""
    model, opt = make(source, state_format)
    for k in range(3):
        # Sizes that differ from block to block show which exponent belongs to which block.
        model.weight.grad = torch.randn(model.weight.shape) * torch.logspace(-3, 3, 33).view(33, 1, 1, 1) * (k + 1)
        opt.step()
    dcp.save({"optim": get_optimizer_state_dict(model, opt)}, checkpoint_id=tmp_path)

    model, other = make(target, state_format)
    loaded = {"optim": get_optimizer_state_dict(model, other)}
    dcp.load(loaded, checkpoint_id=tmp_path)
    set_optimizer_state_dict(model, other, loaded["optim"])
    expected, got = plain(opt), plain(other)
    assert got["step"] == 3
    for name in ("exp_avg", "exp_avg_diff", "exp_avg_sq", "prev_grad"):
        if source == target:
            assert torch.equal(got[name], expected[name]), name
        else:  # written once more in blocks that run otherwise, to nearest
            size = expected[name].abs().amax((1, 2, 3))
            if state_format == "4bit" and name == "exp_avg_diff":  # stored as a difference from the previous gradient
                size += expected["prev_grad"].abs().amax((1, 2, 3)) / 11.5
            error = (got[name] - expected[name]).abs().amax((1, 2, 3)) / size
            assert error.max() < (0.06 if state_format == "8bit" or name == "exp_avg_sq" else 0.3), name


@pytest.mark.parametrize("nothing", [lambda opt: opt.load_state_dict(opt.state_dict()), lambda opt: opt.step()])
def test_states_that_a_template_initializes_after_nothing_happened_count_no_step(nothing):
    """As in accelerate's prepare(), which loads the optimizer's own state dict, or a step() for a scheduler's sake."""
    model, opt = make("contiguous", "fp32")
    nothing(opt)
    get_optimizer_state_dict(model, opt)
    assert opt.state[model.weight]["step"] == 0
