"""The process that makes runs for `pool.py`: one JSON line in, progress and one result out."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from adan_bench.config import RunConfig, RunProgress
from adan_bench.errors import UsageError, WorkloadError
from adan_bench.records.store import RunLocked, RunStore
from adan_bench.training.interrupts import Pause, on_ctrl_c
from adan_bench.training.jobs import INTERRUPTED, Job, record_failure
from adan_bench.training.scripts import where


def perform(
    job: Job, on_progress: Callable[[RunProgress], None] | None = None, pause: Pause | None = None
) -> Mapping[str, Any]:
    """Make a run; one that cannot be made is recorded with the reason, so that it does not stop the others.

    RunLocked: another process is making it or has made it, so that nothing is recorded here.
    """
    try:
        return attempt(job, on_progress, pause)
    except RunLocked:
        raise
    except UsageError as error:
        if _rank() > 0:
            return {"status": "failed", "absent": True}  # which the first rank records
        return record_failure(job, str(error), absent=not RunStore(job.path).described)


def attempt(
    job: Job, on_progress: Callable[[RunProgress], None] | None = None, pause: Pause | None = None
) -> Mapping[str, Any]:
    """Make a run; an exception is recorded with its traceback, a `UsageError` goes to the caller.

    pause: the job's own unless given. Where ranks share the run, the first alone records, and the others end.
    """
    from adan_bench.training.trainer import run

    try:
        return run(job.config, RunStore(job.path), on_progress, job.resume, pause or Pause(job.until))
    except UsageError:
        raise
    except Exception as error:
        if _rank() > 0:
            raise
        return record_failure(job, _reason(error, job.config), trace=traceback.format_exc())


def _rank() -> int:
    return int(os.environ.get("RANK", 0))


def _reason(error: Exception, config: RunConfig) -> str:
    import torch

    if isinstance(error, (WorkloadError, ConnectionError)):
        return str(error)
    text = f"{type(error).__name__}: {error}"
    full = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "not enough memory" in text
    if not full:
        return f"{text} ({where(error, config.script)}; traceback.txt has the rest)"
    fewer = "continue with fewer --jobs and --resume, or " if config.jobs > 1 else ""
    return (
        f"out of memory with {config.batch_size // config.accumulate} examples at a time: {fewer}begin anew with "
        f"--accumulate {2 * config.accumulate} ({text.splitlines()[0]})"
    )


def main() -> None:
    # What a library prints must not mix with the answers: they get the real standard output, the rest the log.
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)

    def answer(**content: Any) -> None:
        if _rank() > 0:  # the first speaks for all
            return
        try:
            answers.write(json.dumps(content) + "\n")
        except BrokenPipeError:
            os._exit(1)  # whoever asked is gone; the record is on disk and resumes

    pause = Pause()  # of the run under way

    def press() -> None:  # by Ctrl-C in the terminal, by the pool, or by both
        if _rank() > 0:  # the first decides for all
            return
        pause.pressed = True
        if not pause.stepped:
            os._exit(INTERRUPTED)

    with on_ctrl_c(press):
        for line in sys.stdin:
            job = Job.from_json(json.loads(line))
            pause = Pause(job.until)
            try:
                result = perform(job, lambda progress: answer(progress=dataclasses.asdict(progress)), pause)
            except RunLocked as error:
                answer(locked=str(error))
                return
            # An error may leave its CUDA context, the memory of its tensors or ranks that wait for each other behind:
            # the next run gets new processes.
            leaves = result["status"] == "failed" and ("RANK" in os.environ or not result["absent"])
            answer(result=result, leaves=leaves)
            if leaves:
                return
            pause = Pause()


if __name__ == "__main__":
    main()
