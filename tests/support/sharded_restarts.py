"""Restarts of a model that is spread over processes; run by `test_several_processes.py`."""

from functools import partial

import pytest
import torch
import torch.distributed as dist

from adan import Adan, Restart
from support.sharded import ENGINES, Sharded, Single, assert_replicas_are_identical, assert_same
from support.sharded_checkpoints import load, save

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


def an_idle_process_takes_part():
    """Each process has a parameter of its own, the second without a gradient now and then; once nobody has one."""
    start, rank = [torch.arange(3.0), torch.arange(4.0)], dist.get_rank()
    alone = [x.clone().requires_grad_() for x in start]
    options = {"lr": 0.1, "betas": (0.9, 0.8, 0.95), "restart": Restart(radius=0.5)}
    single, mine = Adan(alone, **options), Adan([start[rank].clone().requires_grad_()], norm_group="world", **options)
    (own,) = mine.param_groups[0]["params"]
    for k in range(12):
        for i, p in enumerate(alone):
            idle = k == 5 or (i == 1 and k in (0, 2, 3))
            p.grad = None if idle else torch.randn(p.shape, generator=torch.Generator().manual_seed(2 * k + i))
        own.grad = None if alone[rank].grad is None else alone[rank].grad.clone()
        single.step()
        mine.step()
        assert mine.restart_progress == pytest.approx(single.restart_progress, rel=1e-6)
        assert torch.equal(own, alone[rank])
    assert mine.restarts == single.restarts > 1


def goes_on_in_the_middle_of_a_cycle(folder, stop):
    options = {"restart": rule()}
    sharded, single = Sharded("fsdp", **options), Single(**options)
    for i in range(stop):
        sharded.step(i)
        single.step(i)
    assert single.opt.restart_progress.k > 0
    save(sharded, folder)
    new = Sharded("fsdp", seed=1, **options)
    load(new, folder)
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
    rows["idle"] = an_idle_process_takes_part
    rows["checkpoint"] = partial(goes_on_in_the_middle_of_a_cycle, f"{folder}/checkpoint", 16)
    return rows
