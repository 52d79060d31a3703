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
from pathlib import Path
from typing import IO, Any

from adan_bench.environment import COMMAND
from adan_bench.spec import Progress, RunConfig
from adan_bench.store import RunStore, write_json


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


def run_all(jobs: Sequence[Job], workers: int, folder: Path, watch: Callable[[Event], None] | None = None) -> None:
    """Run every job that has not ended yet, `workers` at a time; their output goes to worker logs in `folder`."""
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    todo = [job for job in jobs if not _ended(job)]
    for job in todo:
        waiting.put(job)
    done = len(jobs) - len(todo)
    lock = threading.Lock()
    stop = threading.Event()

    def tell(job: Job, progress: Progress | None = None, result: Mapping[str, Any] | None = None) -> None:
        nonlocal done
        with lock:
            done += result is not None
            if watch is not None:
                watch(Event(job, done, len(jobs), progress, result))

    def serve(number: int) -> None:
        worker: _Worker | None = None
        while not stop.is_set():
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                break
            if worker is not None and not worker.alive:
                worker.close()
                worker = None
            if worker is None:
                worker = _Worker(folder / f"worker-{number}.log")
                running.append(worker)
            tell(job)
            result = worker.run(job, lambda progress, job=job: tell(job, progress=progress))  # type: ignore[misc]
            if not stop.is_set():
                tell(job, result=result)
        if worker is not None:
            worker.close()

    folder.mkdir(parents=True, exist_ok=True)
    running: list[_Worker] = []
    threads = [threading.Thread(target=serve, args=(i,)) for i in range(min(workers, len(todo)))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:  # Ctrl-C: what was written stays, and --resume goes on from it
        stop.set()
        for worker in running:
            worker.kill()
        raise


def _ended(job: Job) -> bool:
    """Whether a job of an earlier, interrupted study needs no more work; a failed run is tried again."""
    path = job.path / "result.json"
    if not (job.resume and path.exists()):
        return False
    RunStore(job.path).check_same(job.config)
    return bool(json.loads(path.read_text())["status"] != "failed")


class _Worker:
    """A process that takes jobs as JSON lines and answers with progress and results as JSON lines."""

    def __init__(self, log: Path) -> None:
        self.log = log
        threads = {"OMP_NUM_THREADS": "1"} if "OMP_NUM_THREADS" not in os.environ else {}
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "adan_bench.worker"],
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

    def run(self, job: Job, progress: Callable[[Progress], None]) -> Mapping[str, Any]:
        message = {"config": job.config.to_json(), "path": str(job.path), "resume": job.resume}
        with contextlib.suppress(BrokenPipeError):
            self.input.write(json.dumps(message) + "\n")
            self.input.flush()
        for line in self.output:
            answer = json.loads(line)
            if "result" in answer:
                result: Mapping[str, Any] = answer["result"]
                return result
            progress(Progress(**answer["progress"]))
        return record_failure(job, f"the worker process ended with code {self.process.wait()}; see {self.log}")

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.input.close()
        self.process.wait()
        self.output.close()

    def kill(self) -> None:
        self.process.kill()


def record_failure(job: Job, error: str) -> Mapping[str, Any]:
    """Write down that a run could not be made, even where it died before its record began."""
    result = {"status": "failed", "error": error, "step": 0, "seconds": 0.0, "final": {}, "best": None}
    if not RunStore(job.path).exists:
        job.path.mkdir(parents=True, exist_ok=True)
        facts = {"metric": "", "higher_is_better": True, "target": 0.0, "name": job.config.workload, "summary": ""}
        with contextlib.suppress(Exception):
            from adan_bench.registry import get_workload

            facts = get_workload(job.config.workload).facts()
        optimizer = {"name": job.config.optimizer, "passes": 1}
        write_json(
            job.path / "config.json", {"config": job.config.to_json(), "workload": facts, "optimizer": optimizer}
        )
    write_json(job.path / "result.json", result)
    return result
