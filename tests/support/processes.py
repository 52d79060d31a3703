"""Runs cases in several processes at once: one start of processes for many cases."""

import datetime
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist


def _process(rank, world_size, folder, cases):
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", f"file://{folder}/store", timeout, world_size, rank)
    try:
        for name, case in cases.items():
            case()
            with Path(folder, f"done.{rank}").open("a", encoding="utf-8") as file:
                file.write(f"{name}\n")
    finally:
        dist.destroy_process_group()


def run(world_size, cases):
    """Run every case, a function of a module that can be imported, in `world_size` processes.

    Returns the names of the cases that all processes finished, and the error that ended the run.
    """
    with tempfile.TemporaryDirectory() as folder:
        error = None
        arguments = (world_size, folder, cases)
        try:
            torch.multiprocessing.start_processes(_process, arguments, nprocs=world_size, start_method="forkserver")
        except Exception as e:
            error = e
        files = [Path(folder, f"done.{rank}") for rank in range(world_size)]
        done = set.intersection(
            *(set(file.read_text(encoding="utf-8").splitlines()) if file.exists() else set() for file in files)
        )
    return done, error
