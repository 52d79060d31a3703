"""What the tests of the language workloads share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from adan_bench.optimizers import SPECS
from adan_bench.registry import get_workload
from adan_bench.store import RunStore
from adan_bench.study import Options, configure
from adan_bench.train import run


def settings(name: str, optimizer: str = "adan", **options: Any) -> Any:
    chosen = Options(threads=1, **options)
    return configure(get_workload(name, chosen.scale), SPECS[optimizer], chosen)


def training_losses(name: str, optimizer: str, folder: Path) -> list[float]:
    """The losses of 40 steps without any data folder, as recorded."""
    run(settings(name, optimizer, steps=40, eval_every=40), RunStore(folder))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "train"]
