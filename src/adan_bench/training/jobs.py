"""Runs to make, and how far they have come: what a pool and its workers share."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adan_bench.config import RunConfig, RunProgress
from adan_bench.records.store import RunStore, read_run, write_bytes, write_json
from adan_bench.training.configure import threads
from adan_bench.training.optimizers import get_optimizer
from adan_bench.workloads.registry import get_workload

INTERRUPTED = 130  # exit code of a worker that Ctrl-C ended before its run made a step


@dataclass(frozen=True)
class Job:
    """A run to make. until: the Unix time at which it is to stop for now."""

    config: RunConfig
    path: Path
    resume: bool = False
    until: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "config": self.config.to_json(), "path": str(self.path)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Job:
        return cls(RunConfig.from_json(values["config"]), Path(values["path"]), values["resume"], values["until"])

    @property
    def done_before(self) -> bool:
        """Whether a job of an earlier, interrupted study needs no more work; a failed run is tried again."""
        store = RunStore(self.path)
        if not (self.resume and store.exists) or store.check_same(self.config) is None:
            return False
        return store.ended and read_run(self.path).status != "failed"


@dataclass(frozen=True)
class Event:
    """What happened to one job: it began, moved on (progress) or ended (result).

    steps_per_second: of all runs under way together; seconds_left: to the end of all, by the runs that have ended here.
    """

    job: Job
    done: int
    total: int
    progress: RunProgress | None = None
    result: Mapping[str, Any] | None = None
    steps_per_second: float = 0.0
    seconds_left: float = 0.0


OnEvent = Callable[[Event], None]
#: The jobs that can be told by now, in the order in which they are worth making; asked again whenever one has ended.
#: It gets the folders of the runs that were made here.
Work = Callable[[Set[Path]], Sequence[Job]]


class Tally:
    """What is to do, is being done and has been done; threads share it, and `on_event` is called by one at a time."""

    def __init__(self, work: Work, on_event: OnEvent | None = None, deadline: float | None = None) -> None:
        self.work, self.on_event, self.deadline = work, on_event, deadline
        self.waiting: list[Job] = []
        self.known: set[Path] = set()  # of all jobs that were told
        self.running: set[Path] = set()
        self.ended: set[Path] = set()  # those of runs that ended before among them
        self.made: set[Path] = set()
        self.undone: set[Path] = set()  # paused by the time limit, or interrupted
        self.runs = self.steps = self.retries = 0
        self.began: dict[Path, int] = {}  # the first step that each run under way makes here
        self.rates: dict[Path, float] = {}
        self.started, self.changed = time.monotonic(), threading.Condition()
        self._update()

    def _update(self) -> None:
        jobs = [replace(job, until=self.deadline) for job in self.work(self.made)]
        self.waiting = []
        self.known.update(job.path for job in jobs)
        for job in jobs:
            if job.path not in self.ended | self.running | self.undone:
                if job.done_before:
                    self.ended.add(job.path)
                else:
                    self.waiting.append(job)

    @property
    def left(self) -> int:
        """The jobs that are not done, those that the time limit has paused among them."""
        return len(self.waiting) + len(self.running) + len(self.undone)

    def next(self, late: Callable[[], bool] = lambda: False) -> Job | None:
        """The job to make now; waits for one as long as the end of another may bring it. None: no more."""
        with self.changed:
            while not late():
                if self.waiting:
                    job = self.waiting.pop(0)
                    self.running.add(job.path)
                    return job
                if not self.running:
                    return None
                self.changed.wait(1.0)
            return None

    @property
    def total(self) -> int:
        """How many jobs there are; with those that are still to be told, as far as that can be foreseen."""
        going_on = self.waiting or self.running or self.undone
        return max(len(self.known), getattr(self.work, "expected", 0) if going_on else 0)

    def drop(self, job: Job) -> None:
        """Leave a job undone that an interruption has ended before its first step."""
        with self.changed:
            self.running.discard(job.path)
            self.undone.add(job.path)
            self.changed.notify_all()

    def begin(self, job: Job) -> None:
        with self.changed:
            self.began.setdefault(job.path, RunStore(job.path).resume_step if job.resume else 0)
            self._emit(job)

    def progress(self, job: Job, progress: RunProgress) -> None:
        with self.changed:
            self.rates[job.path] = progress.steps_per_second
            self._emit(job, progress)

    def lose(self, job: Job) -> None:
        """A run under way is lost, and begins again."""
        with self.changed:
            self.rates.pop(job.path, None)
            self.retries += 1

    def end(self, job: Job, result: Mapping[str, Any]) -> None:
        with self.changed:
            self.rates.pop(job.path, None)
            self.steps += max(0, result["step"] - self.began.pop(job.path, 0))
            self.runs += 1
            self.running.discard(job.path)
            self.ended.add(job.path)
            self.made.add(job.path)
            if result["status"] == "unfinished":
                self.undone.add(job.path)
            self._update()
            self._emit(job, result=result)
            self.changed.notify_all()

    def _emit(self, job: Job, progress: RunProgress | None = None, result: Mapping[str, Any] | None = None) -> None:
        if self.on_event is not None:
            done, total = len(self.ended), self.total
            left = (time.monotonic() - self.started) / max(1, self.runs) * (total - done)
            self.on_event(Event(job, done, total, progress, result, sum(self.rates.values()), left))

    def facts(self) -> dict[str, Any]:
        """For the record of the study; steps_per_second counts all time."""
        seconds = time.monotonic() - self.started
        made = {"runs": self.runs, "steps": self.steps, "seconds": seconds, "steps_per_second": self.steps / seconds}
        return {**made, "retries": self.retries}


def record_failure(job: Job, error: str, absent: bool = False, trace: str = "") -> Mapping[str, Any]:
    """Write down that a run could not be made, even where it died before its record began.

    absent: what it needs is not there (a package, a file), which is no fault of the run. trace: of the exception.
    """
    result: dict[str, Any] = {"status": "failed", "error": " ".join(error.split()), "absent": absent}
    result |= {"step": 0, "seconds": 0.0, "final": {}, "best": None}
    if not RunStore(job.path).exists:
        job.path.mkdir(parents=True, exist_ok=True)
        facts = {"metric": "", "higher_is_better": True, "target": 0.0, "name": job.config.workload, "summary": ""}
        with contextlib.suppress(Exception):
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
