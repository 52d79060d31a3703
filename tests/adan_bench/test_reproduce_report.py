"""What `adan-bench reproduce` and `adan-bench list tables` print and write."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.learning import chosen
from support.made_up_tables import ADAN, EVERYWHERE, Reproduced, cell, made_up

from adan_bench import tables
from adan_bench.cli import paper as cli_tables
from adan_bench.records.store import read_run
from adan_bench.reports import paper as reproduction_report
from adan_bench.studies.paper import reproduce


@pytest.fixture(autouse=True)
def blank_figures() -> None:
    """Here figures are drawn."""


@pytest.mark.usefixtures("forked_workers")
def test_curves_with_bands(regressions: Path, tmp_path: Path) -> None:
    columns = [
        {"head": "share", "workload": "plain"},
        {"head": "training", "workload": "plain", "metric": "training loss"},
    ]
    table = made_up(
        columns, [{**ADAN, "values": ["figure"] * 2}], curves=True, runs={**EVERYWHERE, "smoke": {"seeds": 3}}
    )
    summary = reproduce([table], chosen(script=regressions, jobs=2), tmp_path)
    for head, kind, key in (("share", "eval", "share"), ("training", "train", "loss")):
        records = [read_run(path) for path in sorted((tmp_path / "runs" / "plain").glob("*/seed-*"))]
        expected = [[[step, value] for step, _, value in record.curve(kind, key)] for record in records]
        assert cell(summary, "Adan", head)["curves"] == expected
        assert all(len(curve) > 3 for curve in expected)
    page = reproduction_report.write(summary, tmp_path, {table.name: table})
    assert (tmp_path / "table-99.png").read_bytes()[:4] == b"\x89PNG"
    assert "data:image/png;base64" in page.read_text(encoding="utf-8")
    assert "](table-99.png)" in (tmp_path / "tables.md").read_text(encoding="utf-8")


def test_report(reproduced: Reproduced) -> None:
    summary, out, found = reproduced
    page = reproduction_report.write(summary, out, {table.name: table for table in found})
    first, _ = reproduction_report.sections(summary, {table.name: table for table in found})
    lines = {(line.cells[0], line.cells[1]): line.cells[2:] for line in first.lines}
    value = 100 * cell(summary, "Adan", "whole")["values"][0]
    assert lines["whole", "Adan"] == ["79.8*", f"{value:.2f} (n=1), untuned", "1/2", lines["whole", "Adan"][3]]
    assert lines["whole", "quoted"][1] == "not run at this scale"
    assert lines["packageless", "Adan"][1].startswith("absent (")
    assert "cells of this scale have a result. Pairs of rows that differ in both: 1;" in first.conclusion
    assert "With 1 seed an order is no evidence" in first.conclusion
    assert "Settings marked “untuned” were not tuned for these runs: this is not a fair comparison." in first.how
    assert any("regression; 5 parameters" in line for line in first.how)
    assert any("no_such_package" in note for note in first.notes)
    text = (out / "tables.md").read_text(encoding="utf-8")
    for content in (page.read_text(encoding="utf-8"), text):
        assert "79.8*" in content
        assert "said by others" in content
        assert "Scale smoke" in content


def test_the_interval_of_a_cell_stays_in_the_range_of_its_metric() -> None:
    table = made_up([{"head": "grid", "workload": "plain"}], [ADAN])
    cell_ = {"row": "Adan", "column": "grid", "workload": "plain", "optimizer": "adan", "status": "done", "why": ""}
    cell_ |= {"data": "", "seeds": 3, "values": [0.97, 0.99, 1.0], "metric": "accuracy"}
    summary = {"scale": "small", "tables": [{"name": "made-up", "cells": [cell_]}]}
    (section,) = reproduction_report.sections(summary, {"made-up": table})
    assert "98.67 [94.87, 100.0] (n=3)" in section.lines[0].cells


def test_what_the_report_concludes() -> None:
    """Orders are counted pair by pair, never across ours and the paper's; a grid has its variance."""
    rows = [
        {"head": f"{name} {i}", "optimizer": name, "values": [value]}
        for name, values in (("adan", ("3.0", "2.0")), ("adamw", ("1.0*",)))
        for i, value in enumerate(values)
    ]
    table = made_up(
        [{"head": "grid", "workload": "plain"}], rows, higher_is_better=False, percent=False, variances={"adan": "9e-1"}
    )
    ours = {"adan 0": [30.0, 31.0, 32.0], "adan 1": [33.0, 35.0, 34.0], "adamw 0": [1.0, 1.5, 2.0]}
    common = {"column": "grid", "workload": "plain", "status": "done", "why": "", "data": "made up", "seeds": 3}
    cells = [
        {**common, "row": head, "optimizer": head.split()[0], "values": values, "origin": origin}
        for (head, values), origin in zip(
            ours.items(), ["defaults tuned in 8 trials"] * 2 + ["untuned defaults"], strict=True
        )
    ]
    summary = {"scale": "small", "tables": [{"name": "made-up", "cells": cells}]}
    (section,) = reproduction_report.sections(summary, {"made-up": table})
    assert section.conclusion == (
        "3 of 3 cells of this scale have a result. Pairs of rows that differ in both: 3; in the paper's order: 2. "
        "Variance over the 2 settings of adan: 2.25e+00; paper: 9e-1."
    )
    assert section.lines[0].cells == ["grid", "adan 0", "3.0", "31.00 ± 2.48 (n=3)", "3/3", "2/3"]
    assert "Settings marked “untuned” were not tuned for these runs: this is not a fair comparison." in section.how
    assert [", untuned" in line.cells[3] for line in section.lines] == [False, False, True]
    cells[1] |= {"origin": "defaults tuned in 8 trials for 80 steps of 16", "values": [1.0, 2.0]}
    (section,) = reproduction_report.sections(summary, {"made-up": table})
    assert "Settings marked “for another training” or “untuned” were not tuned for these runs" in section.how[-1]
    assert section.lines[1].cells[3:] == ["1.500 (1.000 to 2.000, n=2), for another training", "", ""]  # one seed less
    assert section.lines[0].cells[4:] == ["2/2", "2/2"]
    assert "Pairs of rows that differ in both: 1; in the paper's order: 1. With 2 seeds" in section.conclusion
    for cell_ in cells:
        cell_["origin"] = cells[1]["origin"]
    (section,) = reproduction_report.sections(summary, {"made-up": table})
    assert "Settings marked “for another training” were not tuned for these runs" in section.how[-1]
    for cell_ in cells:
        cell_["tiny"] = True
    (section,) = reproduction_report.sections(summary, {"made-up": table})
    assert "tiny versions: their times say nothing" in section.conclusion


def test_command(bench: Callable[..., Any], regressions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command on a table of a workload that needs data: absent, which is no failure; then one that fails."""
    gone = made_up([{"head": "whole", "workload": "cifar-resnet34"}], [ADAN], name="gone")
    lost = made_up([{"head": "whole", "workload": "no-such-workload"}], [ADAN], name="lost")
    for module in (tables, reproduction_report):
        monkeypatch.setattr(module, "tables", lambda: {"gone": gone, "lost": lost})
    out = bench.ran("reproduce", "gone", "lost", "--scale", "paper", "--out", tmp_path / "a")
    assert "absent (1)" in out
    assert "79.8*" in out
    assert "toy" not in out
    assert "toy" not in (tmp_path / "a" / "tables.html").read_text(encoding="utf-8")
    for scale, kind in (("smoke", "toy models and toy data"), ("small", "smaller models and data")):
        _, out, _ = bench("reproduce", "lost", "--scale", scale, "--out", tmp_path / scale)
        page, markdown = (
            (tmp_path / scale / f"tables.{suffix}").read_text(encoding="utf-8") for suffix in ("html", "md")
        )
        assert f"<h1>The paper&#x27;s tables, run again ({kind})</h1>" in page
        assert markdown.startswith(f"# The paper's tables, run again ({kind})")
        assert kind in " ".join(out.split())


def test_list_tables(bench: Callable[..., Any], tmp_path: Path) -> None:
    code, out, _ = bench("list", "tables", "--json")
    rows = json.loads(out)
    assert code == 0
    assert {row["name"] for row in rows} == set(tables.tables())
    cells = [{"values": [1.0]}, {"values": []}]
    summary = {"scale": "smoke", "tables": [{"name": "cnn", "cells": cells}]}
    (tmp_path / "two-cores.json").write_text(json.dumps(summary), encoding="utf-8")
    state = {row["name"]: row["run here"] for row in cli_tables.rows(tmp_path)}
    assert state["cnn"] == "smoke 1/2: results/reproduce/two-cores.json"
    assert state["ppo"] == "not yet"


def test_theorems_are_no_toys(bench: Callable[..., Any], tmp_path: Path) -> None:
    out = bench.ran("reproduce", "complexity", "--out", tmp_path)
    assert "1 table, 0 runs" in out
    for text in (out, *((tmp_path / f"tables.{suffix}").read_text(encoding="utf-8") for suffix in ("html", "md"))):
        assert "toy models" not in text
