"""Many runs, several at a time. Whatever ends one run (a crash, no memory, a lost node) costs that run, not the study.

`LocalPool` has worker processes on this machine; `cluster.RayPool` hands the runs to a Ray cluster. A study sees a
`Pool` and does not know which.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from adan_bench.config import NEVER, Pause, Progress, RunConfig
from adan_bench.errors import TimeLimitReached, UsageError
from adan_bench.locking import Lock
from adan_bench.records.environment import COMMAND
from adan_bench.records.store import RunLocked, RunStore, append_line, read_run, write_bytes, write_json
from adan_bench.training.configure import threads
from adan_bench.training.interrupts import on_ctrl_c, say_finishing
from adan_bench.training.mps import multi_process_service
from adan_bench.training.optimizers import get_optimizer

LOCK = "study.lock"
INTERRUPTED = 130  # exit code of a worker that Ctrl-C ended before its run made a step


@dataclass(frozen=True)
class Job:
    """A run to make. pause: where it is to stop for now."""

    config: RunConfig
    path: Path
    resume: bool = False
    pause: Pause = NEVER

    def to_json(self) -> dict[str, Any]:
        values = {"config": self.config.to_json(), "path": str(self.path), "resume": self.resume}
        return {**values, "pause": asdict(self.pause)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Job:
        config, path = RunConfig.from_json(values["config"]), Path(values["path"])
        return cls(config, path, values["resume"], Pause(**values["pause"]))

    @property
    def done_before(self) -> bool:
        """Whether a job of an earlier, interrupted study needs no more work; a failed run is tried again."""
        store = RunStore(self.path)
        if not (self.resume and store.exists):
            return False
        if store.check_same(self.config) is None:
            return False
        if store.ended:
            return read_run(self.path).status != "failed"
        return self.pause.step is not None and store.resume_step >= self.pause.step


@dataclass(frozen=True)
class Event:
    """What happened to one job: it began, moved on (progress) or ended (result).

    steps_per_second: of all runs under way together.
    """

    job: Job
    done: int
    total: int
    progress: Progress | None = None
    result: Mapping[str, Any] | None = None
    steps_per_second: float = 0.0


OnEvent = Callable[[Event], None]


class Tally:
    """What the jobs of one call have done so far; threads share it, and `on_event` is called by one at a time."""

    def __init__(self, jobs: Sequence[Job], on_event: OnEvent | None) -> None:
        self.todo = [job for job in jobs if not job.done_before]
        self.total, self.done, self.on_event = len(jobs), len(jobs) - len(self.todo), on_event
        self.left = len(self.todo)  # those that the time limit has paused among them
        self.steps, self.peak, self.retries = 0, 0.0, 0
        self.began: dict[Path, int] = {}  # the first step that each run under way makes here
        self.rates: dict[Path, float] = {}
        self.started, self.lock = time.monotonic(), threading.Lock()

    def begin(self, job: Job) -> None:
        with self.lock:
            self.began.setdefault(job.path, RunStore(job.path).resume_step if job.resume else 0)
            self._emit(job)

    def progress(self, job: Job, progress: Progress) -> None:
        with self.lock:
            self.rates[job.path] = progress.steps_per_second
            self.peak = max(self.peak, sum(self.rates.values()))
            self._emit(job, progress)

    def lose(self, job: Job) -> None:
        """A run under way is lost, and begins again."""
        with self.lock:
            self.rates.pop(job.path, None)
            self.retries += 1

    def end(self, job: Job, result: Mapping[str, Any]) -> None:
        with self.lock:
            self.rates.pop(job.path, None)
            self.steps += max(0, result["step"] - self.began.pop(job.path, 0))
            self.done += 1
            if result["status"] != "unfinished" or Pause(job.pause.step).due(result["step"]):
                self.left -= 1
            self._emit(job, result=result)

    def _emit(self, job: Job, progress: Progress | None = None, result: Mapping[str, Any] | None = None) -> None:
        if self.on_event is not None:
            self.on_event(Event(job, self.done, self.total, progress, result, sum(self.rates.values())))

    def facts(self) -> dict[str, Any]:
        """For the record of the study. steps_per_second counts all time, peak: the best sum of runs under way."""
        seconds = time.monotonic() - self.started
        rates = {"steps_per_second": self.steps / seconds, "peak_steps_per_second": self.peak}
        return {"runs": len(self.todo), "steps": self.steps, "seconds": seconds, **rates, "retries": self.retries}


class Pool(ABC):
    """Makes the runs of a study, whose folder it keeps from other studies until it is closed.

    deadline: the Unix time at which runs pause and no other begins.
    """

    interrupted = False  # by Ctrl-C: runs pause and no other begins

    def __init__(self, folder: Path, chosen: RunConfig, deadline: float | None = None) -> None:
        self.folder, self.chosen, self.deadline = folder, chosen, deadline
        self._lock = Lock(folder / LOCK)

    def run(self, jobs: Sequence[Job], on_event: OnEvent | None = None) -> None:
        """Make every run that has not ended yet; a line of study.jsonl says how many steps that were, and how fast."""
        timed = [replace(job, pause=replace(job.pause, time=self.deadline)) for job in jobs]
        tally = Tally(timed, on_event)
        if not tally.todo:
            return
        refusal = (
            f"--out {self.folder}: another adan-bench is making runs there; wait until it ends, or stop it and use "
            "--resume, or name another folder"
        )
        self._lock.take(UsageError(refusal))
        for job in tally.todo:
            if not job.resume:
                RunStore(job.path).check_new()
        machine = self._make(tally)
        append_line(self.folder / "study.jsonl", {**tally.facts(), **machine})
        if self.interrupted or (tally.left and not self.late):  # not late: a worker alone was interrupted
            raise KeyboardInterrupt
        if left := tally.left:
            raise TimeLimitReached(f"time limit reached with {len(jobs) - left} of {len(jobs)} runs of this stage made")

    @abstractmethod
    def _make(self, tally: Tally) -> Mapping[str, Any]:
        """Make the runs of `tally.todo`; what the record of the study says of the machine."""

    @property
    def late(self) -> bool:
        return self.interrupted or (self.deadline is not None and time.time() >= self.deadline)

    def close(self) -> None:
        self._lock.close()


def open_pool(folder: Path, chosen: RunConfig, deadline: float | None = None) -> Pool:
    """The pool that the choices ask for."""
    if chosen.cluster is None:
        return LocalPool(folder, chosen, deadline)
    from adan_bench.training.cluster import RayPool

    return RayPool(folder, chosen, deadline)


class LocalPool(Pool):
    """Worker processes that stay for all runs of a study: starting one takes 5 to 10 s, most of it imports."""

    def __init__(self, folder: Path, chosen: RunConfig, deadline: float | None = None) -> None:
        super().__init__(folder, chosen, deadline)
        self._workers: list[Worker | None] = [None] * chosen.jobs
        self._stop = threading.Event()
        self._services = contextlib.ExitStack()
        self._mps: bool | None = None  # None: not asked for yet

    def _make(self, tally: Tally) -> Mapping[str, Any]:
        waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
        for job in tally.todo:
            waiting.put(job)

        errors: list[Exception] = []

        def serve(number: int) -> None:
            try:
                while not (self._stop.is_set() or self.late):
                    self._perform(waiting.get_nowait(), number, tally)
            except queue.Empty:
                pass
            except Exception as error:  # of a disk that takes no record, of an output whose reader has gone
                errors.append(error)
                self._kill()

        if self._mps is None:
            several = self.chosen.jobs > 1 and self.chosen.device.startswith("cuda")
            self._mps = several and self._services.enter_context(multi_process_service())
        serving = [threading.Thread(target=serve, args=(i,)) for i in range(min(len(self._workers), len(tally.todo)))]
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
            return
        tally.begin(job)
        for answer in worker.answers(job):
            if "locked" in answer:
                raise RunLocked(answer["locked"])
            if "progress" in answer:
                tally.progress(job, Progress(**answer["progress"]))
            result = answer.get("result")
        if self._stop.is_set() or (result is None and (self.interrupted or worker.interrupted)):
            return
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
        if hasattr(signal, "SIGKILL") and code == -signal.SIGKILL:  # Windows has none
            why = "killed (SIGKILL), probably out of memory; use fewer --jobs"
            return f"the worker process was {why}; see {self.log}"
        return f"the worker process ended with code {code}; see {self.log}"

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.input.close()
        self.process.wait()
        self.output.close()


def record_failure(job: Job, error: str, absent: bool = False, trace: str = "") -> Mapping[str, Any]:
    """Write down that a run could not be made, even where it died before its record began.

    absent: what it needs is not there (a package, a file), which is no fault of the run. trace: of the exception.
    """
    result = {
        "status": "failed",
        "error": " ".join(error.split()),
        "absent": absent,
        "step": 0,
        "seconds": 0.0,
        "final": {},
        "best": None,
    }
    if not RunStore(job.path).exists:
        job.path.mkdir(parents=True, exist_ok=True)
        facts = {"metric": "", "higher_is_better": True, "target": 0.0, "name": job.config.workload, "summary": ""}
        with contextlib.suppress(Exception):
            from adan_bench.workloads.registry import get_workload

            facts = get_workload(job.config.workload, job.config.scale).facts()
        optimizer = {"name": job.config.optimizer, "passes": 1}
        with contextlib.suppress(Exception):
            optimizer = get_optimizer(job.config.optimizer).facts()
        config = replace(job.config, threads=threads(job.config)).to_json()
        write_json(job.path / "config.json", {"config": config, "workload": facts, "optimizer": optimizer})
    if trace:
        write_bytes(job.path / "traceback.txt", trace.encode())
    write_json(job.path / "result.json", result)
    return result
