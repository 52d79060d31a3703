"""Runs cases in several processes at once: one start of processes for a whole file of tests."""

import datetime
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist


def _process(rank, world_size, folder, cases, args):
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", f"file://{folder}/store", timeout, world_size, rank)
    try:
        for name, case in cases.items():
            case(*args)
            with Path(folder, f"done.{rank}").open("a") as file:
                file.write(f"{name}\n")
    finally:
        dist.destroy_process_group()


def run(world_size, cases, *args):
    """Run every case, a function of a module that can be imported, in `world_size` processes.

    Returns the names of the cases that all processes finished, and the error that ended the run.
    """
    with tempfile.TemporaryDirectory() as folder:
        error = None
        try:
            torch.multiprocessing.spawn(_process, (world_size, folder, cases, args), nprocs=world_size)
        except Exception as e:
            error = e
        files = [Path(folder, f"done.{rank}") for rank in range(world_size)]
        done = set.intersection(*(set(file.read_text().splitlines()) if file.exists() else set() for file in files))
    return done, error
