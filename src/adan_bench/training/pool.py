"""Many runs on a few worker processes. A worker that dies costs its run, not the comparison."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from adan_bench.records.environment import COMMAND
from adan_bench.records.store import RunStore, read_run, write_bytes, write_json
from adan_bench.spec import Progress, RunConfig


@dataclass(frozen=True)
class Job:
    config: RunConfig
    path: Path
    resume: bool = False


@dataclass(frozen=True)
class Event:
    """What happened to one job: it began, moved on (progress) or ended (result)."""

    job: Job
    done: int
    total: int
    progress: Progress | None = None
    result: Mapping[str, Any] | None = None


OnEvent = Callable[[Event], None]


class Pool:
    """Worker processes that stay for all runs of a study: starting one takes 5 to 10 s, most of it imports."""

    def __init__(self, workers: int, folder: Path) -> None:
        self.folder = folder
        self._workers: list[_Worker | None] = [None] * workers
        self._stop = threading.Event()

    def run(self, jobs: Sequence[Job], on_event: OnEvent | None = None) -> None:
        """Make every run that has not ended yet, as many at a time as there are workers."""
        waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
        todo = [job for job in jobs if not _ended(job)]
        for job in todo:
            waiting.put(job)
        done = len(jobs) - len(todo)
        lock = threading.Lock()

        def emit(job: Job, progress: Progress | None = None, result: Mapping[str, Any] | None = None) -> None:
            nonlocal done
            with lock:
                done += result is not None
                if on_event is not None:
                    on_event(Event(job, done, len(jobs), progress, result))

        def serve(number: int) -> None:
            while not self._stop.is_set():
                try:
                    job = waiting.get_nowait()
                except queue.Empty:
                    break
                emit(job)
                worker = self._worker(number)
                result = worker.run(job, partial(emit, job))
                if self._stop.is_set():
                    break
                emit(job, result=result or record_failure(job, worker.obituary()))

        self.folder.mkdir(parents=True, exist_ok=True)
        threads = [threading.Thread(target=serve, args=(i,)) for i in range(min(len(self._workers), len(todo)))]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:  # Ctrl-C: what was written stays, and --resume continues from it
            self._stop.set()
            for worker in filter(None, self._workers):
                worker.process.kill()
            raise

    def _worker(self, number: int) -> _Worker:
        """The worker of a place, a new one where the last has died."""
        worker = self._workers[number]
        if worker is not None and not worker.alive:
            worker.close()
            worker = None
        if worker is None:
            worker = self._workers[number] = _Worker(self.folder / f"worker-{number}.log")
        return worker

    def close(self) -> None:
        for worker in filter(None, self._workers):
            worker.close()
        self._workers = [None] * len(self._workers)


def _ended(job: Job) -> bool:
    """Whether a job of an earlier, interrupted study needs no more work; a failed run is tried again."""
    store = RunStore(job.path)
    if not (job.resume and store.ended):
        return False
    store.check_same(job.config)
    return read_run(job.path).status != "failed"


class _Worker:
    """A process that takes jobs as JSON lines and answers with progress and results as JSON lines."""

    def __init__(self, log: Path) -> None:
        self.log = log
        threads = {"OMP_NUM_THREADS": "1"} if "OMP_NUM_THREADS" not in os.environ else {}
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "adan_bench.training.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **threads, COMMAND: " ".join(["adan-bench", *sys.argv[1:]])},
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.input: IO[str] = self.process.stdin
        self.output: IO[str] = self.process.stdout

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def run(self, job: Job, on_progress: Callable[[Progress], None]) -> Mapping[str, Any] | None:
        """The result of the job; None where the process died over it."""
        message = {"config": job.config.to_json(), "path": str(job.path), "resume": job.resume}
        with contextlib.suppress(BrokenPipeError):
            self.input.write(json.dumps(message) + "\n")
            self.input.flush()
        for line in self.output:
            answer = json.loads(line)
            if "result" in answer:
                result: Mapping[str, Any] = answer["result"]
                return result
            on_progress(Progress(**answer["progress"]))
        return None

    def obituary(self) -> str:
        return f"the worker process ended with code {self.process.wait()}; see {self.log}"

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
        write_json(
            job.path / "config.json", {"config": job.config.to_json(), "workload": facts, "optimizer": optimizer}
        )
    if trace:
        write_bytes(job.path / "traceback.txt", trace.encode())
    write_json(job.path / "result.json", result)
    return result
