"""The process that makes runs for `jobs.py`: one JSON line in, progress and one result out."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from adan_bench.records.store import RunStore
from adan_bench.spec import Progress, RunConfig, UsageError
from adan_bench.training.pool import Job, record_failure


def main() -> None:
    # What a library prints must not mix with the answers: they get the real standard output, the rest the log.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    from adan_bench.training.trainer import run

    def answer(**content: Any) -> None:
        try:
            answers.write(json.dumps(content) + "\n")
        except BrokenPipeError:
            os._exit(1)  # whoever asked is gone; the record is on disk and resumes

    def progress(value: Progress) -> None:
        answer(progress=dataclasses.asdict(value))

    for line in sys.stdin:
        message = json.loads(line)
        job = Job(RunConfig.from_json(message["config"]), Path(message["path"]), message["resume"])
        try:
            result = run(job.config, RunStore(job.path), progress, job.resume)
        except UsageError as error:
            result = record_failure(job, str(error), absent=not RunStore(job.path).described)
        except Exception as error:  # one run that fails must not stop the others; the reason is recorded
            traceback.print_exc()
            result = record_failure(job, f"{type(error).__name__}: {error}")
        answer(result=result)


if __name__ == "__main__":
    main()
