"""Checkpoints that one number of processes writes and another reads; run by `test_checkpoint.py`."""

from functools import partial

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from support.sharded import WIDE, Sharded, Single, assert_near, assert_same

#: A checkpoint is written after every so many steps.
STEPS = 3

OPTIONS = {
    "plain": {"max_grad_norm": 0.05},
    "flat": {"max_grad_norm": 0.05},
    "8bit": {"max_grad_norm": 0.05, "state_format": "8bit", "width": WIDE},
}


#: In both shapes that `torch.distributed.checkpoint` has for them; torchtitan's is the flat one.
FLAT = {"plain": False, "flat": True, "8bit": True}


def contents(run, flat=False):
    states = get_optimizer_state_dict(run.net, run.opt, options=StateDictOptions(flatten_optimizer_state_dict=flat))
    return {"model": get_model_state_dict(run.net), "optimizer": states}


def save(run, path, flat=False):
    dcp.save(contents(run, flat), checkpoint_id=path)


def load(run, path, flat=False):
    saved = contents(run, flat)
    dcp.load(saved, checkpoint_id=path)
    set_model_state_dict(run.net, saved["model"])
    shape = StateDictOptions(flatten_optimizer_state_dict=flat)
    set_optimizer_state_dict(run.net, run.opt, saved["optimizer"], options=shape)


def new_run(strategy, **options):
    return Single(**options) if strategy == "single" else Sharded(strategy, **options)


def uninterrupted(steps, options):
    single = Single(**options)
    for i in range(steps):
        single.step(i)
    return single


def assert_as_uninterrupted(run, steps, options):
    expected = uninterrupted(steps, options).params()
    if "state_format" in options:
        assert_near(run.params(), expected, start=Single(**options).params())
    else:
        assert_same(run.params(), expected)


def goes_on(strategy, name, folder, start):
    """Read what was written after `start` steps, into a model of other numbers; train on; write."""
    options = OPTIONS[name]
    if name == "8bit" and strategy == "single":
        strategy = "fsdp"  # a checkpoint of plain tensors holds codes, one of DTensors numbers
    run = new_run(strategy, seed=1 if start else 0, **options)
    if start:
        load(run, f"{folder}/{name}-{start}", FLAT[name])
        assert all(state["step"] == start for state in run.opt.state.values())
    for i in range(start, start + STEPS):
        run.step(i)
    assert_as_uninterrupted(run, start + STEPS, options)
    save(run, f"{folder}/{name}-{start + STEPS}", FLAT[name])


def goes_on_from_a_whole_state_dict(name):
    """The other way of `torch.distributed.checkpoint`: one process has it all, and hands the parts out."""
    options = OPTIONS[name]
    single, run = uninterrupted(STEPS, options), Sharded("fsdp", seed=1, **options)
    everything = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(run.net, get_model_state_dict(single.net), options=everything)
    set_optimizer_state_dict(run.net, run.opt, get_optimizer_state_dict(single.net, single.opt), options=everything)
    for i in range(STEPS, 2 * STEPS):
        run.step(i)
    assert_as_uninterrupted(run, 2 * STEPS, options)


def starts_after_a_look_at_the_states(strategy, name):
    """`get_optimizer_state_dict` of a new optimizer makes it step, with zeros for gradients: this must not count."""
    options = OPTIONS[name]
    run = new_run(strategy, **options)
    before = run.params()
    contents(run)
    assert_same(run.params(), before, tolerance=0)
    assert all(state["step"] == 0 for state in run.opt.state.values())
    for i in range(STEPS):
        run.step(i)
    assert_as_uninterrupted(run, STEPS, options)


def journey(strategy, start, folder):
    """What one number of processes does of the way that a checkpoint goes."""
    cases = {f"{name} from {start}": partial(goes_on, strategy, name, folder, start) for name in OPTIONS}
    if start == STEPS:
        for name in OPTIONS:
            if name != "8bit":
                cases[f"{name}, whole"] = partial(goes_on_from_a_whole_state_dict, name)
            cases[f"{name}, new"] = partial(starts_after_a_look_at_the_states, "fsdp", name)
    return cases
