"""`adan-bench reproduce` on made-up tables: what its runs share, what came out of them, and what is resumed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.learning import chosen
from support.made_up_tables import ADAMW, ADAN, Reproduced, cell, made_up

from adan_bench.errors import UsageError
from adan_bench.records.store import RunStore, read_run
from adan_bench.reports import paper as reproduction_report
from adan_bench.studies.paper import collect, failures, reproduce
from adan_bench.studies.plan import plan
from adan_bench.workloads.registry import get_workload


def test_what_came_out(reproduced: Reproduced) -> None:
    summary, out, _ = reproduced
    whole = cell(summary, "Adan", "whole")
    assert (whole["status"], whole["seeds"], whole["config"]["steps"], whole["data"]) == ("done", 1, 60, "regression")
    assert 0 < whole["values"][0] < 1
    assert whole["config"]["origin"] == {"kind": "untuned"}
    assert cell(summary, "Adan", "half")["config"]["steps"] == 30
    assert cell(summary, "Adan", "other number")["values"] == [7.0]
    assert "reports no color" in cell(summary, "Adan", "no such number")["why"]
    lines = read_run(next((out / "runs" / "plain").glob("adan-*/seed-0"))).curve("train", "loss")
    assert len(cell(summary, "Adan", "loss")["values"]) == 1
    assert lines
    assert cell(summary, "Adan", "broken")["status"] == "failed"
    assert cell(summary, "Adan", "packageless")["status"] == "absent"
    assert "no_such_package" in cell(summary, "Adan", "packageless")["why"]
    orphan = cell(summary, "Adan", "orphan")
    assert (orphan["status"], orphan["values"]) == ("absent", [])
    assert orphan["why"].startswith("packageless, which comes before it: ")
    assert cell(summary, "wild", "whole")["status"] == "diverged"
    assert not [c for c in summary["tables"][0]["cells"] if c["row"] == "quoted" or c["column"] == "published only"]
    assert json.loads((out / "tables.json").read_text(encoding="utf-8"))["tables"] == summary["tables"]
    assert {line.split(":")[2].split()[0] for line in failures(summary)} == {"plain", "RuntimeError"}


def test_runs_are_shared_by_content(reproduced: Reproduced) -> None:
    """Four numbers and two tables need one run of Adan on the whole budget, one of half of it, two of its variants."""
    summary, out, _ = reproduced
    assert cell(summary, "Adan", "whole", table=1)["values"] == cell(summary, "Adan", "whole")["values"]
    assert len(list((out / "runs" / "plain").glob("adan-*"))) == 4


def test_weights_are_handed_on(reproduced: Reproduced) -> None:
    summary, out, _ = reproduced
    (first,), (second,) = (list((out / "runs" / name).glob("*/seed-0")) for name in ("earlier", "later"))
    assert (first / "weights.pt").exists()
    assert read_run(second).config.init == first
    tuned = cell(summary, "Adan", "tuned")
    assert tuned["data"] == "regression from weights"
    assert (tuned["before"]["workload"], tuned["before"]["steps"]) == ("earlier", 60)


@pytest.mark.usefixtures("inline_pool")
def test_init_replaces_what_comes_before(reproduced: Reproduced, regressions: Path, tmp_path: Path) -> None:
    """Weights from elsewhere reach every run of a table; no run is made in their place, and the record names them."""
    _, out, _ = reproduced
    (first,) = (out / "runs" / "earlier").glob("*/seed-0")
    table = made_up([{"head": "tuned", "workload": "later"}], [ADAN])
    summary = reproduce([table], chosen(script=regressions, init=first), tmp_path)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["later"]
    (found,) = summary["tables"][0]["cells"]
    assert (found["status"], found["config"]["init"]) == ("done", str(first))
    assert found["data"] == "regression from weights"
    (section,) = reproduction_report.sections(summary, {table.name: table})
    assert f"init {first}" in section.settings[0][1]
    (tmp_path / "weights.pt").touch()
    paths = [set(plan([table], chosen(script=regressions, init=init), tmp_path).runs) for init in (first, tmp_path)]
    assert not paths[0] & paths[1]


@pytest.mark.usefixtures("inline_pool")
def test_a_mean_of_columns(regressions: Path, tmp_path: Path) -> None:
    """Seed by seed over what the scale runs; where one of them is absent there is no mean."""
    columns = [
        {"head": "whole", "workload": "plain"},
        {"head": "half", "workload": "plain", "budget": [1, 2]},
        {"head": "not run", "workload": "broken"},
        {"head": "average", "mean": True},
    ]
    runs = {"smoke": {"columns": ["whole", "half", "average"], "seeds": 2}, "small": {}, "paper": {}}
    summary = reproduce([made_up(columns, [ADAN], runs=runs)], chosen(script=regressions), tmp_path / "out")
    whole, half, average = (cell(summary, "Adan", head) for head in ("whole", "half", "average"))
    assert average["values"] == pytest.approx(
        [(a + b) / 2 for a, b in zip(whole["values"], half["values"], strict=True)]
    )
    assert (average["seeds"], average["data"]) == (2, "the mean of whole, half")
    lacking = [columns[0], {"head": "lacking", "workload": "packageless"}, columns[-1]]
    table = made_up(lacking, [ADAN])
    summary = reproduce([table], chosen(script=regressions), tmp_path / "other")
    assert cell(summary, "Adan", "average")["status"] == "absent"
    assert cell(summary, "Adan", "average")["why"].startswith("lacking: packageless needs the package")


def test_resume(reproduced: Reproduced, regressions: Path, tmp_path: Path) -> None:
    """What has ended is taken as it is, by another folder's copy too."""
    summary, out, (_, parts) = reproduced
    shutil.copytree(out, tmp_path / "out")
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").rglob("*.json*")}
    with pytest.raises(UsageError, match="add --resume"):
        reproduce([parts], chosen(script=regressions), tmp_path / "out")
    again = reproduce([parts], chosen(script=regressions), tmp_path / "out", resume=True)
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    assert [c["values"] for c in again["tables"][0]["cells"]] == [c["values"] for c in summary["tables"][1]["cells"]]


def test_restarts_and_components(reproduced: Reproduced) -> None:
    """The radius comes from a pilot run, which is a run like any other and no evidence."""
    summary, out, _ = reproduced
    settings = {c["row"]: c["config"]["settings"] for c in summary["tables"][1]["cells"]}
    assert all(len(c["values"]) == 1 for c in summary["tables"][1]["cells"])
    (pilot,) = (out / "pilots" / "plain").glob("adan-*/seed-1000")
    record = read_run(pilot)
    assert (record.config.role, record.config.settings["restart"]) == ("pilot", {"probe": True})
    assert (record.result["step"], record.result["restarts"]["count"]) == (10, 0)
    radius = settings["restart"]["restart"]["radius"]
    assert radius == record.result["restarts"]["radius"] > 0
    assert settings["decay of AdamW"]["no_prox"] is True
    assert "restart" not in settings["Adan"]
    (restarted,) = [
        found
        for path in (out / "runs" / "plain").glob("adan-*/seed-0")
        if "restart" in (found := read_run(path)).config.settings
    ]
    assert restarted.result["restarts"]["count"] >= 1


@pytest.mark.usefixtures("inline_pool")
def test_a_table_on_a_workload_of_ones_own(bench: Any, tiny: Path, tmp_path: Path) -> None:
    """The components of Adan one by one: each changes the run, the last restarts, by a pilot's radius or a given."""
    arguments = ["reproduce", "components", "--script", tiny, "--json"]
    code, out, _ = bench(*arguments, "--seeds", 2, "--out", tmp_path / "c")
    assert (code, json.loads(out.splitlines()[-1])["failed"]) == (0, [])
    (table,) = json.loads((tmp_path / "c" / "tables.json").read_text(encoding="utf-8"))["tables"]
    values: dict[str, list[Any]] = {}
    for found in table["cells"]:
        assert (found["workload"], found["status"], len(found["values"])) == ("tiny", "done", 2)
        values.setdefault(found["column"], []).append(tuple(found["values"]))
    losses, metrics, restarts = (values[f"tiny, {name}"] for name in ("training loss", "metric at the end", "restarts"))
    assert (len(set(losses)), len(set(metrics))) == (4, 4)
    assert restarts[:3] == [(0.0, 0.0)] * 3
    assert min(restarts[3]) >= 1
    page = (tmp_path / "c" / "tables.md").read_text(encoding="utf-8")
    assert "## Table 20: What each part of Adan adds, on tiny\n" in page  # not a toy of the paper's experiment
    assert len(list((tmp_path / "c" / "pilots").rglob("config.json"))) == 1
    code, *_ = bench(*arguments, "--seeds", 1, "--radius", "1e9", "--steps", 7, "--out", tmp_path / "d")
    configs = [read_run(file.parent).config for file in (tmp_path / "d").rglob("config.json")]
    assert {config.steps for config in configs} == {7}
    assert [c.settings["restart"] for c in configs if "restart" in c.settings] == [{"radius": 1e9}]


def test_a_seed_whose_pre_training_failed_is_said(regressions: Path, tmp_path: Path) -> None:
    """The other seeds keep their values; the cell has the reason, and the command ends with 1."""
    table = made_up([{"head": "tuned", "workload": "later"}], [ADAN])
    planned = plan([table], chosen(script=regressions), tmp_path, seeds=3)

    def write(path: Path, status: str, **more: Any) -> None:
        config = planned.runs[path]
        store, facts = RunStore(path), get_workload(config.workload).facts()
        store.create(config, facts, {"name": "adan", "passes": 1}, {})
        store.append({"kind": "eval", "step": 60, "seconds": 1.0, "share": 0.5})
        store.finish({"status": status, "step": 60, "seconds": 1.0, "final": {"share": 0.5}, "best": None, **more})

    (found,) = planned.cells
    for seed, path in enumerate(found.runs):
        (before,) = found.arm.waits_for(seed)
        if seed == 1:
            write(before, "failed", error="out of memory")
        else:
            write(before, "finished")
            write(path, "finished")
    result = collect(found, {})
    assert (result.values, result.seeds) == ([0.5, 0.5], 3)
    assert (result.status, result.why) == ("failed", "earlier, which comes before it: out of memory")
    assert failures({"tables": [{"name": "x", "cells": [result.to_json()]}]})


@pytest.mark.usefixtures("inline_pool")
def test_the_page_marks_changed_cells(regressions: Path, tmp_path: Path) -> None:
    table = made_up([{"head": "a", "workload": "plain"}, {"head": "b", "workload": "plain"}], [ADAN, ADAMW])
    runs = {"only": ["a"], "pairs": ["adan.lr=0.01"]}
    summary = reproduce([table], chosen(script=regressions, steps=8), tmp_path / "out", **runs)
    assert [c["config"]["steps"] for c in summary["tables"][0]["cells"]] == [8, 8]
    assert summary["only"] == ["a"]
    (section,) = reproduction_report.sections(summary, {"made-up": table})
    ours = {(line.cells[0], line.cells[1]): line.cells[3] for line in section.lines}
    assert ours["a", "Adan"].endswith(", changed")
    assert not ours["a", "AdamW"].endswith(", changed")
    assert ours["b", "Adan"] == ours["b", "AdamW"] == "not chosen"
    assert any("Cells marked “changed”" in line for line in section.how)
    with pytest.raises(UsageError, match=r"--set adam\.lr=1"):
        reproduce([table], chosen(script=regressions), tmp_path / "other", pairs=["adam.lr=1"])


@pytest.mark.parametrize(
    ("pair", "only", "why"),
    [("adan.momentum=0.9", (), "adan has no setting 'momentum'"), ("adan.lr=-1", (), "adan rejects .*lr"),
     ("betas=0.9,0.99", (), "adan rejects .*betas"), ("adamw.lr=0.1", ["Adan"], r"--set adamw\.lr=0\.1")],
)  # fmt: skip
def test_a_wrong_setting_stops_the_table(
    pair: str, only: list[str], why: str, regressions: Path, tmp_path: Path
) -> None:
    """It would be a row without results after all the others, or none where the row is not run."""
    table = made_up([{"head": "a", "workload": "plain"}], [ADAN, ADAMW])
    with pytest.raises(UsageError, match=why):
        reproduce([table], chosen(script=regressions), tmp_path / "out", pairs=[pair], only=only)
    assert not (tmp_path / "out").exists()
