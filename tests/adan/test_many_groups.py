"""Thousands of parameter groups, as recipes with a learning rate per layer or per parameter make them."""

import time
from functools import partial

import pytest
import torch
from support import engines

from adan import Adan, release_gradients


def with_groups(kind, n, **options):
    """One parameter per group; set afterwards, because torch's own constructor takes quadratic time."""
    params = [torch.ones(4, requires_grad=True) for _ in range(n)]
    opt = kind(params, lr=1e-3, **options)
    [group] = opt.param_groups
    opt.param_groups = [{**group, "params": [p]} for p in params]
    for p in params:
        p.grad = torch.ones(4)
    opt.step()
    return opt


def fastest(runs, rounds=3):
    """Seconds of the fastest run of each, in turns."""
    times = [[] for _ in runs]
    for _ in range(rounds):
        for run, seconds in zip(runs, times, strict=True):
            start = time.process_time()
            run()
            seconds.append(time.process_time() - start)
    return [min(seconds) for seconds in times]


@pytest.mark.parametrize(("name", "sizes"), [("foreach", (250, 1000)), ("cpu", (1000, 4000))])
def test_a_step_takes_linear_time(name, sizes):
    """4,000 groups took 3 to 4 times as long as AdamW: every group looked at the states of all of them."""
    with engines.serving(name):
        small, large = (with_groups(Adan, n, **engines.OPTIONS[name]) for n in sizes)
        adamw = with_groups(torch.optim.AdamW, sizes[1], fused=True)
        few, many, base = fastest([small.step, large.step, adamw.step])
    assert many < 6 * few, f"four times the groups took {many / few:.1f} × the time"
    assert name != "cpu" or many < 2 * base, f"{many / base:.1f} × AdamW"


def test_loading_takes_linear_time():
    """Loading 4,000 groups took half a minute: every parameter looked for its group among all."""
    small, large = (with_groups(Adan, n) for n in (300, 1200))
    runs = [partial(opt.load_state_dict, opt.state_dict()) for opt in (small, large)]
    few, many = fastest(runs, rounds=2)
    assert many < 8 * few, f"four times the groups took {many / few:.1f} × the time"


def test_steps_inside_backward_take_linear_time():
    """4,000 groups took 3 s per step, and the first in 8 bits 7 to 13: each parameter looked at all of them."""

    class Model(torch.nn.Module):
        def __init__(self, n):
            super().__init__()
            self.weights = torch.nn.ParameterList(torch.ones(4) for _ in range(n))

        def forward(self):
            return torch.stack(list(self.weights)).sum()

    def trained(n):
        model = Model(n)
        opt = Adan([torch.nn.Parameter(torch.ones(1))], state_format="8bit")
        [group] = opt.param_groups
        opt.param_groups = [{**group, "params": [p]} for p in model.weights]
        release_gradients(model, opt)

        def step():
            model().backward()
            opt.step()

        return step

    few, many = (fastest([trained(n)], rounds=1)[0] for n in (500, 2000))
    assert many < 8 * few, f"four times the groups took {many / few:.1f} × the time"
