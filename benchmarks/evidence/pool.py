"""Worker processes: some share a GPU through NVIDIA's Multi-Process Service, others have a CPU core each.

A worker makes run after run, so that data and compiled kernels stay. One that raises is replaced: a failed capture or
an illegal access can leave its CUDA context unusable.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

from evidence.jobs import Job, Record

CPU_NICENESS = 5  # what launches graphs comes first


@dataclass(frozen=True)
class Place:
    """What a worker needs to know. site: a folder of further packages, after those installed."""

    cache: Path
    gpu: str = "cuda"
    site: Path | None = None


@dataclass
class Outcome:
    """How a run ended: its record, or the error that ended it."""

    job: Job
    graph: bool
    record: Record | None
    error: str | None
    fatal: bool  #: the process has ended, or could not be trusted any more


class Worker:
    """One process and the job that it makes."""

    def __init__(self, lane: str, place: Place) -> None:
        self.lane, self.place = lane, place
        self.job: Job | None = None
        self.graph = True
        self._start()

    def _start(self) -> None:
        context = get_context("spawn")
        self.conn, theirs = context.Pipe()
        device = self.place.gpu if self.lane == "gpu" else "cpu"
        self.process = context.Process(target=serve, args=(theirs, device, self.lane, self.place), daemon=True)
        self.process.start()
        theirs.close()

    def begin(self, job: Job, graph: bool) -> None:
        self.job, self.graph, self.since = job, graph, time.monotonic()
        self.conn.send((job, graph))

    def end(self) -> Outcome:
        """What the process has sent; a new process where this one has ended."""
        assert self.job is not None
        try:
            record, error, fatal = self.conn.recv()
        except EOFError:
            self.process.join()
            record, error, fatal = None, f"the process ended with exit code {self.process.exitcode}", True
        outcome = Outcome(self.job, self.graph, record, error, fatal)
        self.job = None
        if fatal:
            self.stop()
            self._start()
        return outcome

    def stop(self) -> None:
        self.process.terminate()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
        self.conn.close()


class Pool:
    """Workers of two lanes, "gpu" and "cpu"."""

    def __init__(self, sizes: dict[str, int], place: Place) -> None:
        self.workers = [Worker(lane, place) for lane, size in sizes.items() for _ in range(size)]

    def idle(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.job is None]

    def busy(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.job is not None]

    def wait(self, seconds: float) -> list[Outcome]:
        ready = connection.wait([worker.conn for worker in self.busy()], seconds)
        return [worker.end() for worker in self.busy() if worker.conn in ready]

    def close(self) -> None:
        for worker in self.workers:
            worker.stop()


def serve(conn: Any, device: str, lane: str, place: Place) -> None:
    """The life of a worker process."""
    if lane == "cpu":
        os.nice(CPU_NICENESS)
    if place.site is not None:
        sys.path.append(str(place.site))
    import torch

    from evidence.training import run

    torch.set_num_threads(1)
    while True:
        try:
            job, graph = conn.recv()
        except (EOFError, OSError):
            return
        try:
            conn.send((run(job, device, place.cache, graph), None, False))
        except Exception as error:
            # RuntimeError is what torch raises for CUDA's errors, which may stay in the context.
            fatal = isinstance(error, RuntimeError)
            conn.send((None, f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-4)}", fatal))
            if fatal:
                return


@contextlib.contextmanager
def multi_process_service(folder: Path) -> Iterator[bool]:
    """NVIDIA's Multi-Process Service while the context lasts; False where it is not installed or does not start."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        yield False
        return
    for variable, name in (("CUDA_MPS_PIPE_DIRECTORY", "pipe"), ("CUDA_MPS_LOG_DIRECTORY", "log")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        os.environ[variable] = str(folder / name)
    started = subprocess.run([control, "-d"], check=False).returncode == 0
    if not started:
        del os.environ["CUDA_MPS_PIPE_DIRECTORY"], os.environ["CUDA_MPS_LOG_DIRECTORY"]
    try:
        yield started
    finally:
        if started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run([control], input="quit\n", text=True, timeout=20, check=False)
