"""Many runs, several at a time. Whatever ends one run (a crash, no memory, a lost node) costs that run, not the study.

`LocalPool` has worker processes on this machine; `cluster.RayPool` hands the runs to a Ray cluster. A study sees a
`Pool` and does not know which.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from adan_bench.config import RunConfig, RunProgress
from adan_bench.errors import TimeLimitReached, UsageError
from adan_bench.locking import Lock
from adan_bench.records.store import RunLocked, RunStore, append_line
from adan_bench.training.interrupts import on_ctrl_c, say_finishing
from adan_bench.training.jobs import INTERRUPTED, Job, OnEvent, Tally, Work, record_failure
from adan_bench.training.placement import Places, gpu_names, multi_process_service

LOCK = "study.lock"
LAST_SECONDS = 15.0  # for the ranks that are left to say what they know once one has ended


class Pool(ABC):
    """Makes the runs of a study, whose folder it keeps from other studies until it is closed.

    deadline: the Unix time at which runs pause and no other begins.
    """

    interrupted = False  # by Ctrl-C: runs pause and no other begins

    def __init__(self, folder: Path, chosen: RunConfig, deadline: float | None = None) -> None:
        self.folder, self.chosen, self.deadline = folder, chosen, deadline
        self._lock = Lock(folder / LOCK)

    def run(self, work: Work, on_event: OnEvent | None = None) -> None:
        """Make every run that has not ended yet; a line of study.jsonl says how many steps that were, and how fast."""
        tally = Tally(work, on_event, self.deadline)
        if not tally.waiting:
            return
        refusal = (
            f"--out {self.folder}: another adan-bench is making runs there; wait until it ends, or stop it and use "
            "--resume, or name another folder"
        )
        self._lock.take(UsageError(refusal))
        for job in tally.waiting:
            if not job.resume:
                RunStore(job.path).check_new()
        machine = self._make(tally)
        append_line(self.folder / "study.jsonl", {**tally.facts(), **machine})
        if self.interrupted or (tally.left and not self.late):  # not late: a worker alone was interrupted
            raise KeyboardInterrupt
        if left := tally.left:
            left += tally.total - len(tally.known)
            raise TimeLimitReached(f"time limit reached with {left} of {tally.total} runs left")

    @abstractmethod
    def _make(self, tally: Tally) -> Mapping[str, Any]:
        """Make the runs that `tally.next` gives; what the record of the study says of the machine."""

    @property
    def late(self) -> bool:
        return self.interrupted or (self.deadline is not None and time.time() >= self.deadline)

    def close(self) -> None:
        self._lock.close()


class LocalPool(Pool):
    """Worker processes that stay for all runs of a study: starting one takes 5 to 10 s, most of it imports."""

    def __init__(self, folder: Path, chosen: RunConfig, deadline: float | None = None) -> None:
        super().__init__(folder, chosen, deadline)
        self._workers: list[Worker | None] = [None] * chosen.jobs
        self._stop = threading.Event()
        self._services = contextlib.ExitStack()
        self._places = Places(chosen.jobs, chosen.ranks, gpu_names(chosen.device))
        self._mps: dict[str, dict[str, str]] | None = None  # environments by GPU; None: not asked for yet

    def _make(self, tally: Tally) -> Mapping[str, Any]:
        errors: list[Exception] = []

        def serve() -> None:
            try:
                while (job := tally.next(lambda: self._stop.is_set() or self.late)) is not None:
                    place = self._places.take()
                    try:
                        self._perform(job, place, tally)
                    finally:
                        self._places.give(place)
            except Exception as error:  # of a disk that takes no record, of an output whose reader has gone
                errors.append(error)
                self._kill()

        if self._mps is None:
            self._mps = self._start_services()
        serving = [threading.Thread(target=serve) for _ in self._workers]
        for thread in serving:
            thread.start()
        try:
            with on_ctrl_c(self._interrupt):
                for thread in serving:
                    thread.join()
        except BaseException:  # the second Ctrl-C: what was written stays, and --resume continues from it
            self._kill()
            raise
        if errors:
            raise errors[0]
        shared = {"jobs": self.chosen.jobs, "ranks": self.chosen.ranks, "device": self.chosen.device}
        return {**shared, "mps": bool(self._mps)}

    def _start_services(self) -> dict[str, dict[str, str]]:
        """NVIDIA's service for every GPU that several runs of one rank share."""
        chosen = self.chosen
        if not chosen.device.startswith("cuda") or chosen.ranks > 1:
            return {}
        shared = self._places.crowded if any(self._places.gpus) else [""] if chosen.jobs > 1 else []
        environments = {gpu: self._services.enter_context(multi_process_service(gpu)) for gpu in shared}
        return {gpu: values for gpu, values in environments.items() if values is not None}

    def _perform(self, job: Job, place: int, tally: Tally) -> None:
        """Let the worker of a place make a run; one that an interruption ends before its first step stays undone."""
        worker, result = self._worker(place), None
        if self.interrupted or self._stop.is_set():  # before the worker was there to be told
            return tally.drop(job)
        tally.begin(job)
        for answer in worker.answers(job):
            if "locked" in answer:
                raise RunLocked(answer["locked"])
            if "progress" in answer:
                tally.progress(job, RunProgress(**answer["progress"]))
            result = answer.get("result")
        if self._stop.is_set() or (result is None and (self.interrupted or worker.interrupted)):
            return tally.drop(job)
        tally.end(job, result or record_failure(job, worker.obituary()))

    def _kill(self) -> None:
        """End all runs at once, without a word in their records: --resume continues from their checkpoints."""
        self._stop.set()
        for worker in filter(None, self._workers):
            worker.kill()

    def _interrupt(self) -> None:
        """Let the runs under way pause, as at the end of a time limit; the second time, end at once."""
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        say_finishing()
        for worker in filter(None, self._workers):  # which a Ctrl-C in the terminal has reached, but not every signal
            worker.process.send_signal(signal.SIGINT)

    def _worker(self, place: int) -> Worker:
        """The worker of a place, a new one where the last has died or leaves."""
        worker = self._workers[place]
        if worker is not None and not worker.usable:
            worker.close()
            worker = None
        if worker is None:
            gpus, services = self._places.gpus[place], self._mps or {}
            environment = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
            environment |= services.get(gpus[0] if gpus else "", {})
            log = self.folder / f"worker-{place}.log"
            worker = self._workers[place] = Worker(log, self.chosen.ranks, environment)
        return worker

    def close(self) -> None:
        for worker in filter(None, self._workers):
            worker.close()
        self._workers = [None] * len(self._workers)
        self._services.close()
        super().close()


class Worker:
    """A process that takes jobs as JSON lines and answers with progress and results as JSON lines.

    Where ranks share its runs it is the first of them; the others take the same jobs and answer nothing. They find each
    other as the ranks of torchrun do, but stay for the next run, and Ctrl-C leaves them the time for a checkpoint.

    environment: of the processes, beside that of this one.
    """

    def __init__(self, log: Path, ranks: int, environment: Mapping[str, str]) -> None:
        self.log, self.leaves, self.first_loss = log, False, 0
        values = {"OMP_NUM_THREADS": "1", **os.environ, **environment}
        if ranks > 1:
            values |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        with log.open("ab") as errors:
            self.processes = [
                subprocess.Popen(
                    [sys.executable, "-m", "adan_bench.training.worker"],
                    stdin=subprocess.PIPE,
                    stdout=errors if rank else subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    env=values | _rank_variables(rank, ranks),
                )
                for rank in range(ranks)
            ]
        self.process = self.processes[0]
        self.inputs: list[IO[str]] = [process.stdin for process in self.processes if process.stdin is not None]
        assert self.process.stdout is not None
        self.output: IO[str] = self.process.stdout
        if ranks > 1:
            threading.Thread(target=self._watch, daemon=True).start()

    @property
    def usable(self) -> bool:
        return not self.leaves and all(process.poll() is None for process in self.processes)

    def _watch(self) -> None:
        """End all ranks once one has ended: the others would wait for it, with NCCL for ever."""
        while all(process.poll() is None for process in self.processes):
            time.sleep(0.2)
        self.first_loss = next(rank for rank, process in enumerate(self.processes) if process.poll() is not None)
        until = time.monotonic() + LAST_SECONDS
        while time.monotonic() < until and any(process.poll() is None for process in self.processes):
            time.sleep(0.2)
        self.kill()

    def kill(self) -> None:
        for process in self.processes:
            process.kill()

    def answers(self, job: Job) -> Iterator[dict[str, Any]]:
        """What the process says of the job; the last holds its result, unless the process dies over it."""
        for stream in self.inputs:
            with contextlib.suppress(BrokenPipeError):
                stream.write(json.dumps(job.to_json()) + "\n")
                stream.flush()
        for line in self.output:
            answer: dict[str, Any] = json.loads(line)
            self.leaves = answer.get("leaves", False)
            yield answer
            if "result" in answer:
                return

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the process, which then had made no step of its run."""
        return self.process.wait() in (INTERRUPTED, -signal.SIGINT)

    def obituary(self) -> str:
        self.process.wait()
        code = self.processes[self.first_loss].wait()
        killed = hasattr(signal, "SIGKILL") and code == -signal.SIGKILL  # Windows has none
        how = "was killed (SIGKILL), probably out of memory; use fewer --jobs" if killed else f"ended with code {code}"
        which = f"rank {self.first_loss}" if len(self.processes) > 1 else "the worker process"
        return f"{which} {how}; see {self.log}"

    def close(self) -> None:
        for stream in self.inputs:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        for process in self.processes:
            process.wait()
        self.output.close()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _rank_variables(rank: int, ranks: int) -> dict[str, str]:
    """What torchrun tells a rank; nothing where there is no other."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    return {name: str(value) for name, value in names.items()} if ranks > 1 else {}
