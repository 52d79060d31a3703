"""The script that times `adan-bench`, on the CPU with a small workload."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import harness


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch):
    monkeypatch.setattr(harness, "DEVICE", "cpu")
    monkeypatch.setitem(harness.CASES, "small", harness.Case("digits-vit", 16, 60))


def test_a_row_is_the_speed_of_all_its_runs(monkeypatch):
    monkeypatch.setattr(harness, "LONGER", 1)
    row = harness.measure("small", "eager", 2, None)
    assert len(row["each"]) == 2
    assert row["steps_per_second"] == pytest.approx(sum(row["each"]))
    assert min(row["each"]) > 0
    assert row["steps"] == 60
    assert row["graph"].startswith("eager")


def test_a_row_that_cannot_be_measured_says_why():
    assert "--graph on" in harness.measure("small", "captured", 1, None)["error"]
