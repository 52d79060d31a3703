"""Studies whose runs are made in this process: no worker has to import torch first, which takes 5 s."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from adan_bench.studies import ablation, comparison, paper
from adan_bench.training.pool import Event
from adan_bench.training.worker import perform


class InlinePool:
    def __init__(self, folder: Path, *_: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, jobs: Any, on_event: Any = None) -> None:
        for done, job in enumerate(jobs, 1):
            if job.done_before:
                continue
            result = perform(job)
            if on_event is not None:
                on_event(Event(job, done, len(jobs), result=result))

    def close(self) -> None: ...


@contextlib.contextmanager
def inline_pools() -> Iterator[None]:
    with contextlib.ExitStack() as patches:
        for module in (ablation, comparison, paper):
            patches.enter_context(mock.patch.object(module, "open_pool", InlinePool))
        yield
