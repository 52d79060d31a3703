"""Studies whose runs are made in this process: no worker has to import torch first, which takes 5 s."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from adan_bench.config import RunConfig
from adan_bench.studies import arms
from adan_bench.studies.comparison import Key, compared
from adan_bench.studies.competitors import Competitor
from adan_bench.training.jobs import Job, OnEvent, Tally, Work
from adan_bench.training.worker import perform


def always(jobs: Sequence[Job]) -> Work:
    """Work that does not depend on what has ended."""
    return lambda made: jobs


class InlinePool:
    def __init__(self, folder: Path, *_: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, work: Work, on_event: OnEvent | None = None) -> None:
        tally = Tally(work, on_event)
        while (job := tally.next()) is not None:
            tally.end(job, perform(job))

    def close(self) -> None: ...


@contextlib.contextmanager
def inline_pools() -> Iterator[None]:
    with mock.patch.object(arms, "open_pool", InlinePool):
        yield


def tune(
    workloads: Sequence[str], who: Sequence[Competitor], chosen: RunConfig, out: Path, trials: int, **more: Any
) -> dict[Key, arms.Arm]:
    """A comparison after the trials of every optimizer."""
    study = compared(workloads, who, chosen, out=out, trials=trials, **more)
    arms.make([[*study.values()]], chosen, out)
    return study
