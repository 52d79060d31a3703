"""Milliseconds per step of today's optimizers on the GPT of 10.9 M, each alone on a GPU, by the harness's own loop.

    python benchmarks/field_time.py      # writes results/field-time.json, row by row

Settings are those of the first reported run of `field-gpt`. The optimizers take turns, twice; SOAP's period of ten
steps, after which it renews its basis, divides the number of steps. No evaluation and no data loading is in a time.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import Any

import torch
from common import environment, write
from stored import NEWER

from adan_bench.config import RunConfig
from adan_bench.records.archive import read_archive
from adan_bench.training.graph import side_stream
from adan_bench.training.trainer import Trainer

STUDY = "field-gpt"
ROUNDS, WARM, STEPS = 2, 30, 100


def milliseconds(config: RunConfig) -> tuple[float, str]:
    """Per step, once it is compiled and captured; and how the steps ran."""
    trainer = Trainer(config)
    with side_stream(trainer.device):
        trainer.updater.forward.train()
        for steps in (WARM, STEPS):
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(steps):
                trainer.update()
            torch.cuda.synchronize()
        return 1000 * (time.perf_counter() - began) / STEPS, trainer.updater.words()


def main() -> None:
    runs, _ = read_archive(NEWER / f"{STUDY}.jsonl")
    first = {run.config.optimizer: run.config for run in reversed(runs) if run.config.role != "tune"}
    rows: dict[str, dict[str, Any]] = {name: {"milliseconds": []} for name in first}
    record = {"environment": environment(), "study": STUDY, "steps": STEPS, "rows": rows}
    for _ in range(ROUNDS):
        for name, config in first.items():
            took, words = milliseconds(replace(config, device="cuda", threads=1))
            rows[name] = {"milliseconds": [*rows[name]["milliseconds"], took], "graph": words}
            print(f"{name}: {statistics.fmean(rows[name]['milliseconds']):.2f} ms, {words}", flush=True)
            write("field-time.json", record)


if __name__ == "__main__":
    main()
