"""`torch.distributed.checkpoint`: a run goes on as if uninterrupted, on any number of processes."""

import pytest
import torch
from support import processes
from support.sharded_checkpoints import OPTIONS, STEPS, journey, starts_after_a_look_at_the_states

from adan import Adan


def test_a_checkpoint_goes_from_four_processes_to_two_to_one_and_back_to_four(tmp_path):
    way = [(4, "fsdp_tp"), (2, "fsdp"), (1, "single"), (4, "hsdp")]
    for i, (world_size, strategy) in enumerate(way):
        cases = journey(strategy, i * STEPS, tmp_path)
        done, error = processes.run(world_size, cases)
        assert done == set(cases), error


@pytest.mark.parametrize("name", OPTIONS)
def test_states_that_are_made_for_a_checkpoint_do_not_count(name):
    starts_after_a_look_at_the_states("single", name)


@pytest.mark.parametrize("lr", [0.0, torch.tensor(0.0)])
def test_a_first_step_of_a_warm_up_from_zero_counts(lr):
    p = torch.nn.Parameter(torch.ones(3))
    opt = Adan([p], lr=lr)
    p.grad = torch.tensor([0.0, 1.0, 0.0])
    opt.step()
    assert opt.state[p]["step"] == 1
    assert torch.equal(opt.state[p]["prev_grad"], p.grad)
