"""States in few bits and in the coupled form, spread over processes; run by `test_several_processes.py`."""

from functools import partial

import torch
import torch.distributed as dist

import adan
from adan.lowbit import FORMATS
from support.sharded import (
    ENGINES,
    WIDE,
    Sharded,
    Single,
    assert_near,
    assert_replicas_are_identical,
    assert_same,
    model,
    own_params,
    trains_as_one_process,
)
from support.sharded_checkpoints import load, save

DTYPES = {"8bit": torch.uint8, "4bit": torch.uint8, "bf16": torch.bfloat16}
#: How far a run that draws other random bits may end from another, as a part of the way that both have gone.
NEAR = {"8bit": 0.05, "4bit": 0.5, "bf16": 0.05}
COUPLED = {"betas": (0.8, 0.8, 0.95)}


def large_states(run):
    """The averages of the two weights that are large enough for few bits."""
    large = [p for p in own_params(run) if p.numel() >= 4096]
    assert len(large) == 2
    return [run.adan.state[p]["exp_avg"] for p in large]


def trains_nearly_as_one_process(state_format, engine, **options):
    options |= {"state_format": state_format, "width": WIDE, **ENGINES[engine]}
    sharded, single = Sharded("fsdp", **options), Single(**options)
    start = single.params()
    for i in range(10):
        sharded.step(i)
        single.step(i)
    for run in (sharded, single):
        assert {adan.sharding.local(x).dtype for x in large_states(run)} == {DTYPES[state_format]}
    assert_near(sharded.params(), single.params(), start, NEAR[state_format])
    assert_replicas_are_identical(sharded)


def keeps_replicas_identical(state_format):
    sharded = Sharded("ddp", width=WIDE, state_format=state_format)
    for i in range(6):
        sharded.step(i)
    assert {x.dtype for x in large_states(sharded)} == {DTYPES[state_format]}
    assert_replicas_are_identical(sharded)


def goes_on_where_it_was(state_format, folder):
    """A checkpoint holds plain numbers. Coded again in the same layout they are what they were."""
    options = {"width": WIDE, "state_format": state_format, "max_grad_norm": 0.05}
    run, other = Sharded("fsdp", **options), Sharded("fsdp", seed=1, **options)
    for i in range(4):
        run.step(i)
    save(run, f"{folder}/{state_format}")
    load(other, f"{folder}/{state_format}")
    for i in range(4, 8):
        run.step(i)
        other.step(i)
    assert_same(other.params(), run.params(), tolerance=0)


def goes_from_one_format_to_another(before, after, folder):
    run, other = (Sharded("fsdp", width=WIDE, state_format=form) for form in (before, after))
    run.step(0)
    save(run, f"{folder}/{before}-{after}")
    load(other, f"{folder}/{before}-{after}")
    numbers = [[adan.states.plain(run.adan.state[p])["exp_avg"] for p in own_params(run)] for run in (run, other)]
    for x, y in zip(*numbers, strict=True):
        assert (x - y).abs().max() <= 0.05 * x.abs().max()


def takes_the_planned_bytes(strategy, row, **options):
    """As planned from the model that is sharded, and under FSDP2 from the whole one: three rows over two processes."""
    run = Sharded(strategy, width=WIDE, **options)
    run.step(0)
    plan = adan.plan_memory(run.net)
    assert plan.rows[row].states == sum(
        adan.sharding.local(x).nbytes for state in run.adan.state.values() for x in state.values()
    )
    if strategy == "fsdp":
        ranks = {"shards": dist.get_world_size(), "rank": dist.get_rank()}
        assert adan.plan_memory(model(width=WIDE), **ranks).rows == plan.rows


def cases(folder):
    rows = {
        f"{form}, {engine}": partial(trains_nearly_as_one_process, form, engine)
        for form in DTYPES
        for engine in ENGINES
    }
    rows["8bit, coupled"] = partial(trains_nearly_as_one_process, "8bit", "cpu", **COUPLED)
    for engine in ENGINES:
        rows[f"coupled, {engine}"] = partial(trains_as_one_process, "fsdp", engine, max_grad_norm=0.05, **COUPLED)
    for form in DTYPES:
        rows[f"{form}, replicas"] = partial(keeps_replicas_identical, form)
        rows[f"{form}, same layout"] = partial(goes_on_where_it_was, form, folder)
    for pair in (("fp32", "8bit"), ("8bit", "fp32")):
        rows[" to ".join(pair)] = partial(goes_from_one_format_to_another, *pair, folder)
    for form in FORMATS:
        for strategy in ("fsdp", "tp"):
            name = f"{form}, planned, {strategy}"
            rows[name] = partial(takes_the_planned_bytes, strategy, f"Adan {form}", state_format=form)
    return rows
