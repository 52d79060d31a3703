"""Restarts of a model that is spread over processes; run by `distributed/test_restart.py`."""

from functools import partial

import pytest
import torch.distributed.checkpoint as dcp
from sharded import ENGINES, Sharded, Single, assert_replicas_are_identical, assert_same
from sharded_checkpoints import contents
from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict

from adan import Restart

STEPS = 25


def rule():
    """A radius that is passed after steps 1, 4, 10 and 20, and never by a hair."""
    probe = Single(restart=Restart.probe())
    for i in range(2):
        probe.step(i)
    return Restart(radius=0.99 * probe.opt.restart_progress.radius)


def assert_same_cycle(sharded, single):
    mine, its = sharded.adan.restart_progress, single.adan.restart_progress
    assert (sharded.adan.restarts, mine.k) == (single.adan.restarts, its.k)
    assert mine.sum == pytest.approx(its.sum, rel=1e-4)


def restarts_as_one_process(strategy, engine, restart=None):
    options = {**ENGINES[engine], "restart": restart or rule()}
    sharded, single = Sharded(strategy, **options), Single(**options)
    for i in range(STEPS):
        sharded.step(i)
        single.step(i)
        assert_same_cycle(sharded, single)
    assert single.adan.restarts >= 4
    assert_same(sharded.params(), single.params())
    assert_replicas_are_identical(sharded)


def goes_on_in_the_middle_of_a_cycle(folder, stop):
    options = {"restart": rule()}
    sharded, single = Sharded("fsdp", **options), Single(**options)
    for i in range(stop):
        sharded.step(i)
        single.step(i)
    assert single.opt.restart_progress.k > 0
    dcp.save(contents(sharded), checkpoint_id=folder)
    new = Sharded("fsdp", seed=1, **options)
    saved = contents(new)
    dcp.load(saved, checkpoint_id=folder)
    set_model_state_dict(new.net, saved["model"])
    set_optimizer_state_dict(new.net, new.opt, saved["optimizer"])
    assert_same_cycle(new, single)
    for i in range(stop, STEPS):
        new.step(i)
        single.step(i)
        assert_same_cycle(new, single)
    assert_same(new.params(), single.params())


def cases(folder):
    rows = {
        f"{strategy}, {engine}": partial(restarts_as_one_process, strategy, engine)
        for strategy, engine in [("fsdp", "cpu"), ("fsdp", "foreach"), ("hsdp", "cpu"), ("tp", "loop"), ("zero", "cpu")]
    }
    rows["fsdp, every"] = partial(restarts_as_one_process, "fsdp", "cpu", Restart(every=4, after=7))
    rows["checkpoint"] = partial(goes_on_in_the_middle_of_a_cycle, f"{folder}/checkpoint", 16)
    return rows
