"""Studies whose runs are made in this process: no worker has to import torch first, which takes 5 s."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from adan_bench.studies import comparison, paper
from adan_bench.training import cluster
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
    with contextlib.ExitStack() as patches:
        for module in (comparison, paper, cluster):
            patches.enter_context(mock.patch.object(module, "open_pool", InlinePool))
        yield
