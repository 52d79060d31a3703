"""Figures in the README and the docs are those of the records."""

import json
import subprocess
import sys
from pathlib import Path

from adan import suggest_from_adamw

ROOT = Path(__file__).parents[1]


def test_tables_are_those_of_the_records():
    check = [sys.executable, str(ROOT / "benchmarks" / "readme.py"), "--check"]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}: run `make tables`"


def test_what_is_said_to_be_measured_is_in_the_record():
    runs = json.loads((ROOT / "results" / "short-runs.json").read_text())["runs"]
    loss = {
        (run["optimizer"], run["lr"], tuple(run["betas"])): sum(s["validation"] for s in run["seeds"])
        / len(run["seeds"])
        for run in runs
    }
    why = " ".join(suggest_from_adamw(1e-3, total_steps=1500).why)
    tuned = min(value for (name, _, _), value in loss.items() if name == "AdamW")
    for value in (tuned, loss["Adan", 3e-3, (0.9, 0.92, 0.99)], loss["Adan", 3e-3, (0.98, 0.92, 0.99)]):
        assert f"{value:.3f}" in why
    assert loss["Adan", 3e-3, (0.9, 0.92, 0.99)] < loss["Adan", 3e-3, (0.94, 0.92, 0.95)]
