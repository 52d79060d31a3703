"""How fast `adan-bench` makes steps on a GPU: eager, captured and compiled; one run, and several at a time.

    python benchmarks/harness.py --data DIR              # writes results/bench-harness.json, row by row
    python benchmarks/harness.py --data DIR --cases LSTM --jobs 4 5 --output lstm.json

Every row is an `adan-bench compare` of Adan with as many seeds as runs at a time. Steps per second are those between
30% and 70% of each run, by its own clock, which stands still during evaluation: by then the first steps, compilation
and capture are over, and all runs of the row are under way. DIR holds cifar10 and ptb.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from common import environment, write

from adan_bench.config import RunRecord
from adan_bench.records.store import read_run


class Case(NamedTuple):
    """A workload with the options of `adan-bench` that it is timed with; steps: of a run that has the GPU alone."""

    options: str
    batch_size: int
    steps: int


CASES = {
    "ResNet-34": Case("cifar-resnet34 --scale small --channels-last", 128, 1200),
    "ViT": Case("cifar-vit --scale small", 256, 1200),
    "GPT": Case("pycode-gpt-11m --scale small", 64, 900),
    "LSTM": Case("lstm-1 --scale paper", 20, 3600),
}
DEVICE = "cuda"
MODES = {"eager": "--graph off", "captured": "--graph on", "captured, --compile": "--graph on --compile"}
LONGER = 3  # how many times as long runs that share the GPU are: they start seconds apart
LIMIT = 300  # seconds for a row


def measure(case: str, mode: str, runs: int, data: Path | None) -> dict[str, Any]:
    """Steps per second of the runs together; why there are none, where a run failed or took too long."""
    options, batch_size, steps = CASES[case]
    steps *= LONGER if runs > 1 else 1
    words = (
        f"compare {options} --batch-size {batch_size} --device {DEVICE} --bf16 {MODES[mode]} --optimizers adan --json "
        f"--seeds {runs} --jobs {runs} --steps {steps} --eval-every {steps} --checkpoint-every {steps} "
        f"--time-limit {LIMIT}s"
    )
    with tempfile.TemporaryDirectory() as folder:
        where = ["--out", folder, *(["--data", str(data)] if data else [])]
        command = [sys.executable, "-m", "adan_bench.cli", *words.split(), *where]
        done = subprocess.run(command, capture_output=True, text=True)
        records = [read_run(path.parent) for path in Path(folder).rglob("result.json")]
        study = [json.loads(path.read_text(encoding="utf-8")) for path in Path(folder).glob("study.jsonl")]
    results = [record.result for record in records if record.result and record.status == "finished"]
    if len(results) < runs:
        errors = [r.result.get("error", r.status) for r in records if r.result and r.status != "finished"]
        return {"error": (errors or done.stderr.strip().splitlines() or ["no run"])[-1][:200]}
    each = [rate(record) for record in records]
    shares = [json.loads(line).get("gpu_share") for line in done.stdout.splitlines() if '"progress"' in line]
    busy = [share for share in shares if share is not None]
    return {
        "steps_per_second": sum(each),
        "each": each,
        "gpu_busy": statistics.median(busy) if busy else None,
        "graph": results[0]["graph"],
        "mps": study[0].get("mps"),
        "steps": steps,
    }


def rate(record: RunRecord) -> float:
    """Steps per second in the middle of a run, by the clock of its training."""
    end = record.config.steps
    middle = [(step, seconds) for step, seconds, _ in record.curve("train", "loss") if 0.3 <= step / end <= 0.7]
    (first, begin), (last, stop) = middle[0], middle[-1]
    return (last - first) / (stop - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("ADAN_DATA"), help="ADAN_DATA unless given")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--jobs", nargs="*", type=int, default=[4], help="how many runs share the GPU")
    parser.add_argument("--output", default="bench-harness.json", help="file under results/")
    arguments = parser.parse_args()
    alone: dict[str, dict[str, Any]] = {}
    cases = {name: CASES[name]._asdict() for name in arguments.cases}
    record: dict[str, Any] = {"environment": environment(), "cases": cases, "alone": alone, "together": []}

    def measured(case: str, mode: str, runs: int) -> dict[str, Any]:
        row = measure(case, mode, runs, arguments.data)
        print(f"{runs} × {case}, {mode}:", row.get("error") or f"{row['steps_per_second']:.1f} steps/s", flush=True)
        return row

    for case in arguments.cases:
        for mode in MODES:
            alone.setdefault(case, {})[mode] = measured(case, mode, 1)
            write(arguments.output, record)
    for case, rows in alone.items():
        fastest = max(rows, key=lambda mode: rows[mode].get("steps_per_second", 0.0))
        for runs in arguments.jobs:
            row = measured(case, fastest, runs)
            if "error" not in row:
                record["together"].append({"case": case, "mode": fastest, "runs": runs, **row})
                write(arguments.output, record)


if __name__ == "__main__":
    main()
