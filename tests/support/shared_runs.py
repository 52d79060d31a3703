"""Runs of `adan-bench` that several processes share, and their interruptions; run by `adan_bench/test_parallel.py`."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist

from adan_bench.cli import app as cli
from adan_bench.records.store import RunStore
from adan_bench.training.configure import configure
from adan_bench.training.optimizers import get_optimizer
from adan_bench.training.scripts import load_script
from adan_bench.training.trainer import Trainer, run
from adan_bench.workloads.registry import get_workload
from support.learning import chosen

#: No noise, so that a run of one process is the same run, and blocks of which fsdp makes parts of their own.
SCRIPT = '''
import torch
from torch import nn
from adan_bench import Scale, Task, shuffled, workload

@workload("plain", metric="error", higher_is_better=False, smoke=Scale(0.5, 40, 16, eval_every=10))
def plain(context):
    """A regression."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(8, 75), nn.Linear(75, 75), nn.Linear(75, 1)])
        def forward(self, x):
            for block in self.blocks[:-1]:
                x = torch.tanh(block(x))
            return self.blocks[-1](x)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(256, 8, generator=g)
    y = x @ torch.randn(8, 1, generator=g)
    def loss(model, batch):
        return (model(batch[0]) - batch[1]).square().mean()
    def evaluate(model):
        return {"error": (model(x) - y).square().mean().item()}
    return Task(Net(), shuffled([x, y], context.batch_size, context.seed), loss, evaluate, note="made up")
'''


#: One workload of each kind that ranks can share, without dropout, of which each rank has its own.
KINDS = {
    "images, mixed and erased": {
        "workload": "vit-s",
        "training": {"stochastic_depth": 0.0},
        "batch_size": 16,
        "ema": 0.5,
        "clip": 1.0,
    },
    "images, most of them hidden": {"workload": "cifar-mae", "batch_size": 16, "optimizer": "sam"},
    "masked words": {"workload": "bert-pretrain"},
    "tokens": {"workload": "gpt2-code", "accumulate": 2},
    "tokens with memory": {"workload": "transformer-xl"},
    "a detector": {"workload": "deformable-detr", "init": "backbone.pt"},
}


class Interrupted(Exception):
    pass


def every_kind(data, folder, parallel=None, stop=None):
    """A run of each kind, of whose weights the sum stands for the metric.

    The run `moved`, with a memory, begins on four ranks and goes on here.

    data: a folder with the weights of the detector's backbone. stop: of the run `moved`.
    """
    evaluate = Trainer.evaluate
    Trainer.evaluate = lambda self: {self.workload.metric: sum(p.double().abs().sum().item() for p in weights(self))}
    try:
        for name, kind in KINDS.items():
            more = {"init": data / kind["init"]} if "init" in kind else {}
            row = {**kind, **more, "data": data, "steps": 4, "eval_every": 4, "parallel": parallel}
            shared_run(folder / name, **row)
            if "memory" in name:
                shared_run(data / "moved", stop=stop, checkpoint_every=1, **row)
    finally:
        Trainer.evaluate = evaluate


def weights(trainer):
    average = trainer.updater.average
    return list((trainer.model if average is None else average.module).parameters())


def with_fewer(count, folder, case):
    """A case in the first `count` of the processes that are here."""
    rank = dist.get_rank()
    dist.barrier()
    dist.destroy_process_group()
    if rank < count:
        dist.init_process_group("gloo", f"file://{folder}/store", world_size=count, rank=rank)
        case()
        dist.barrier()
        dist.destroy_process_group()
    dist.init_process_group("gloo", f"file://{folder}/alone.{rank}", world_size=1, rank=0)  # which the caller ends


def configuration(workload, optimizer="adan", script=None, settings=None, init=None, training=None, **changes):
    if script is not None:
        load_script(str(script))
    options = chosen(script=script, init=init, training=training)
    made = configure(get_workload(workload), get_optimizer(optimizer), options, overrides=settings)
    return replace(made, log_every=1, **changes)


def shared_run(path, workload, stop=None, **options):
    """A run among the processes that are here, left after `stop` steps as if it had been killed, or resumed."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    config = configuration(workload, ranks=ranks, **options)
    update = Trainer.update

    def interrupted(self):
        if self.state.step == stop:
            raise Interrupted
        update(self)

    Trainer.update = interrupted
    try:
        run(config, RunStore(Path(path)), resume=True)
        assert stop is None
    except Interrupted:
        assert stop is not None
    finally:
        Trainer.update = update


def lines(path):
    """What was recorded, without the clock and without the notes that another number of ranks went on."""
    found = [json.loads(line) for line in (Path(path) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in found if line["kind"] != "resume"]


def lose_a_rank(rank, folder, script):
    """The second of two processes is gone after some steps; the first must notice by itself."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    dist.init_process_group("gloo", f"file://{folder}/store", world_size=2, rank=rank)
    update = Trainer.update

    def dies(self):
        if self.state.step == 7:
            os._exit(9)
        update(self)

    if rank == 1:
        Trainer.update = dies
    sys.argv = ["adan-bench", "run", "plain", "--script", script, "--out", f"{folder}/run", "--parallel", "ddp"]
    with Path(folder, f"errors.{rank}").open("w", buffering=1, encoding="utf-8") as sys.stderr:
        cli.main()
