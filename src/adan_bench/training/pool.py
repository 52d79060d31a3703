"""Many runs, several at a time. Whatever ends one run (a crash, no memory, a lost node) costs that run, not the study.

`LocalPool` has worker processes on this machine; `cluster.RayPool` hands the runs to a Ray cluster. A study sees a
`Pool` and does not know which.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
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
from adan_bench.records.environment import COMMAND
from adan_bench.records.store import RunLocked, RunStore, append_line
from adan_bench.training.interrupts import on_ctrl_c, say_finishing
from adan_bench.training.jobs import INTERRUPTED, Job, OnEvent, Tally, Work, record_failure
from adan_bench.training.mps import multi_process_service

LOCK = "study.lock"


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
            raise TimeLimitReached(f"time limit reached with {left} of {len(tally.known)} runs left")

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
        self._mps: bool | None = None  # None: not asked for yet

    def _make(self, tally: Tally) -> Mapping[str, Any]:
        errors: list[Exception] = []

        def serve(number: int) -> None:
            try:
                while (job := tally.next(lambda: self._stop.is_set() or self.late)) is not None:
                    self._perform(job, number, tally)
            except Exception as error:  # of a disk that takes no record, of an output whose reader has gone
                errors.append(error)
                self._kill()

        if self._mps is None:
            several = self.chosen.jobs > 1 and self.chosen.device.startswith("cuda")
            self._mps = several and self._services.enter_context(multi_process_service())
        serving = [threading.Thread(target=serve, args=(i,)) for i in range(len(self._workers))]
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
        return {"jobs": self.chosen.jobs, "device": self.chosen.device, "mps": self._mps}

    def _perform(self, job: Job, number: int, tally: Tally) -> None:
        """Let the worker of a place make a run; one that an interruption ends before its first step stays undone."""
        worker, result = self._worker(number), None
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
            worker.process.kill()

    def _interrupt(self) -> None:
        """Let the runs under way pause, as at the end of a time limit; the second time, end at once."""
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        say_finishing()
        for worker in filter(None, self._workers):  # which a Ctrl-C in the terminal has reached, but not every signal
            worker.process.send_signal(signal.SIGINT)

    def _worker(self, number: int) -> Worker:
        """The worker of a place, a new one where the last has died or leaves."""
        worker = self._workers[number]
        if worker is not None and not worker.usable:
            worker.close()
            worker = None
        if worker is None:
            worker = self._workers[number] = Worker(self.folder / f"worker-{number}.log", command())
        return worker

    def close(self) -> None:
        for worker in filter(None, self._workers):
            worker.close()
        self._workers = [None] * len(self._workers)
        self._services.close()
        super().close()


def command() -> str:
    """What the user typed, for the records."""
    return os.environ.get(COMMAND, "")


class Worker:
    """A process that takes jobs as JSON lines and answers with progress and results as JSON lines."""

    def __init__(self, log: Path, asked: str) -> None:
        self.log, self.leaves = log, False
        single = {"OMP_NUM_THREADS": "1"} if "OMP_NUM_THREADS" not in os.environ else {}
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "adan_bench.training.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **single, COMMAND: asked},
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.input: IO[str] = self.process.stdin
        self.output: IO[str] = self.process.stdout

    @property
    def usable(self) -> bool:
        return not self.leaves and self.process.poll() is None

    def answers(self, job: Job) -> Iterator[dict[str, Any]]:
        """What the process says of the job; the last holds its result, unless the process dies over it."""
        with contextlib.suppress(BrokenPipeError):
            self.input.write(json.dumps(job.to_json()) + "\n")
            self.input.flush()
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
        code = self.process.wait()
        killed = hasattr(signal, "SIGKILL") and code == -signal.SIGKILL  # Windows has none
        how = "was killed (SIGKILL), probably out of memory; use fewer --jobs" if killed else f"ended with code {code}"
        return f"the worker process {how}; see {self.log}"

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.input.close()
        self.process.wait()
        self.output.close()
