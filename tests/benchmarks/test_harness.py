"""The script that times `adan-bench`, on the CPU with a small workload."""

import contextlib
import io
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import harness
import pytest
import readme
from support.forked import Program

from adan_bench.cli import app
from adan_bench.records.environment import COMMAND
from adan_bench.training import pool


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch):
    monkeypatch.setattr(harness, "DEVICE", "cpu")
    monkeypatch.setitem(harness.CASES, "small", harness.Case("digits-vit", 16, 12))


def test_a_row_is_the_speed_of_all_its_runs(monkeypatch):
    """The command in this process, with workers that need not import torch; the next test has it as it is."""

    def run(command, **_):
        assert command[:3] == [sys.executable, "-m", "adan_bench.cli"]
        output = io.StringIO()
        monkeypatch.setattr(sys, "argv", ["adan-bench", *command[3:]])
        monkeypatch.setenv(COMMAND, "")  # which main sets
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), pytest.raises(SystemExit):
            app.main()
        return SimpleNamespace(stdout=output.getvalue(), stderr="")

    monkeypatch.setattr(harness, "subprocess", SimpleNamespace(run=run))
    monkeypatch.setattr(pool, "subprocess", SimpleNamespace(Popen=Program, PIPE=subprocess.PIPE))
    monkeypatch.setattr(harness, "LONGER", 1)
    row = harness.measure("small", "eager", 2, None)
    assert len(row["each"]) == 2
    assert row["steps_per_second"] == pytest.approx(sum(row["each"]))
    assert min(row["each"]) > 0
    assert row["steps"] == 12
    assert row["graph"].startswith("eager")


def test_a_row_that_cannot_be_measured_says_why():
    assert "--graph on" in harness.measure("small", "captured", 1, None)["error"]


@pytest.mark.parametrize("failed", ["a", "b"])
def test_the_error_of_a_row_is_that_of_the_run_that_failed(monkeypatch, failed):
    results = {name: {"status": "finished"} for name in ("a", "b")}
    results[failed] = {"status": "failed", "error": "out of memory"}

    def run(command, **_):
        for name in results:
            folder = Path(command[command.index("--out") + 1], name)
            folder.mkdir()
            (folder / "result.json").touch()
        return SimpleNamespace(stdout="", stderr="")

    def read_run(folder):
        return SimpleNamespace(result=results[folder.name], status=results[folder.name]["status"])

    monkeypatch.setattr(harness, "subprocess", SimpleNamespace(run=run))
    monkeypatch.setattr(harness, "read_run", read_run)
    assert harness.measure("small", "eager", 2, None) == {"error": "out of memory"}


def test_the_table_is_made_from_such_a_record(monkeypatch):
    eager = {"steps_per_second": 10.0, "gpu_busy": None}
    record = {
        **readme.read("bench-harness.json"),
        "cases": {"small": harness.CASES["small"]._asdict()},
        "alone": {"small": {"eager": eager, "captured": {"error": "no GPU"}}},
    }
    monkeypatch.setattr(readme, "read", lambda name: record)
    assert "| small, batch 16 | 10 |  |" in readme.harness()
