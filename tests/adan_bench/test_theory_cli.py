"""`adan-bench theory`: tables, a page that needs nothing else, and exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from adan_bench.reports import theory as report
from adan_bench.theory.check import Chapter, Check

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(autouse=True)
def blank_figures() -> None:
    """Here figures are drawn."""


def test_page_and_record(bench: Any, tmp_path: Path) -> None:
    code, out, err = bench("theory", "--only", "proximal", "--only", "complexity", "--out", tmp_path / "t")
    assert (code, err) == (0, "")
    assert "proximal argmin" in out
    assert "0 failed" in out
    page = (tmp_path / "t" / "theory.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 1
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "LAMB" in page
    record = json.loads((tmp_path / "t" / "theory.json").read_text(encoding="utf-8"))
    assert {check["study"] for check in record["checks"]} == {"proximal", "complexity"}
    assert all(check["passed"] for check in record["checks"])


def test_json_and_failure(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [Check("right", "1 ≤ 2", 1.0, 2.0), Check("wrong", "nan ≤ 2", float("nan"), 2.0)]
    monkeypatch.setitem(report.STUDIES, "complexity", lambda: Chapter("complexity", checks))
    code, out, _ = bench("theory", "--only", "complexity", "--json", "--out", tmp_path / "t")
    assert code == 1
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line.get("passed") for line in lines] == [True, False, None]
    assert lines[-1]["failed"] == ["wrong"]
    assert "FAILS" in (tmp_path / "t" / "theory.html").read_text(encoding="utf-8")


def test_constants(bench: Any, tiny: Path) -> None:
    code, out, err = bench("theory", "constants", "tiny", "--script", tiny, "--steps", "20", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["steps"] == 20
    assert found["d"] == 8 * 32 + 32 + 32 + 1
    assert 0 < found["c_inf"] < found["c_2"] < found["c_inf"] * found["d"] ** 0.5
    code, out, _ = bench("theory", "constants", "tiny", "--script", tiny, "--steps", "5")
    assert "AdaBelief" in out


def test_the_page_names_studies_that_exist_and_small_figures() -> None:
    text = (DOCS / "theory.md").read_text(encoding="utf-8")
    assert {*re.findall(r"--only ([\w-]+)", text)} <= {*report.STUDIES}
    figures = re.findall(r"\((figures/[\w.-]+\.png)\)", text)
    assert len(figures) >= 4
    for figure in figures:
        assert (DOCS / figure).stat().st_size < 100_000
