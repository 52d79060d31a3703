"""`adan-bench theory`: tables, a page that needs nothing else, and exit codes."""

from __future__ import annotations

import io
import json
import re
import shlex
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from rich.console import Console

from adan_bench.cli.common import grid
from adan_bench.reports import theory as report
from adan_bench.tables import tables
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
    monkeypatch.setitem(report.STUDIES, "complexity", lambda: Chapter("complexity", "t", "a", checks))
    code, out, _ = bench("theory", "--only", "complexity", "--json", "--out", tmp_path / "t")
    assert code == 1
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line.get("passed") for line in lines] == [True, False, None]
    assert lines[-1]["failed"] == ["wrong"]
    assert "FAILS" in (tmp_path / "t" / "theory.html").read_text(encoding="utf-8")


def test_square_brackets_are_no_markup() -> None:
    console = Console(file=io.StringIO(), width=80)
    console.print(grid("a workload [/a]", ["head [/a]"], [["cell [/a]"]]))
    for part in ("a workload [/a]", "head [/a]", "cell [/a]"):
        assert part in " ".join(console.file.getvalue().split())


def test_no_such_study(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = bench("theory", "--only", "nope")
    assert (code, out) == (2, "")
    for name in report.STUDIES:
        assert name in err
    assert not any(tmp_path.iterdir())


def test_constants(bench: Any, tiny: Path) -> None:
    code, out, err = bench("theory", "constants", "tiny", "--script", tiny, "--steps", "20", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["steps"] == 20
    assert found["d"] == 8 * 32 + 32 + 32 + 1
    assert 0 < found["c_inf"] < found["c_2"] < found["c_inf"] * found["d"] ** 0.5
    code, out, _ = bench("theory", "constants", "tiny", "--script", tiny, "--steps", "5")
    assert "AdaBelief" in out


@pytest.mark.usefixtures("inline_pool")
def test_components(bench: Any, tiny: Path, tmp_path: Path) -> None:
    arguments = ["theory", "components", "--workload", "tiny", "--script", tiny, "--seeds", "2"]
    code, out, err = bench(*arguments, "--out", tmp_path / "c", "--json")
    assert (code, err) == (0, "")
    *rows, report = [json.loads(line) for line in out.splitlines()]
    assert report == {"event": "report", "path": str(tmp_path / "c" / "report.html"), "failed": []}
    text = (tmp_path / "c" / "report.md").read_text(encoding="utf-8")
    assert "1 workload, 2 optimizers, 8 runs." in text  # the pilot is no tuning trial
    assert [row["name"] for row in rows] == [row.head for row in tables()["components"].rows]
    assert all(sum(row["restarts"]) == 0 for row in rows[:-1])
    assert min(rows[-1]["restarts"]) >= 1
    losses = [tuple(row["losses"]) for row in rows]
    assert len(set(losses)) == 4  # every component changes the run
    assert (tmp_path / "c" / "report.html").exists()
    assert rows[-1]["radius"] > 0
    code, out, _ = bench(*arguments[:-1], "1", "--radius", "1e9", "--steps", "7", "--out", tmp_path / "d", "--json")
    last = json.loads(out.splitlines()[-2])
    assert (last["restarts"], last["radius"]) == ([0], 1e9)
    configs = [json.loads(file.read_text(encoding="utf-8")) for file in (tmp_path / "d").rglob("config.json")]
    assert {file["config"]["steps"] for file in configs} == {7}
    assert not (tmp_path / "d" / "pilots").exists()
    code, _, err = bench(*arguments, "--out", tmp_path / "c")
    assert code == 2
    assert "already holds runs; add --resume to continue" in err


BY_LUCK = """
from pathlib import Path
import torch
from adan_bench import Scale, Task, workload

@workload("by-luck", metric="m", higher_is_better=True, smoke=Scale(1, 4, 1))
def by_luck(context):
    if not Path(__file__).with_name("luck").exists():
        raise RuntimeError("no such luck")
    model = torch.nn.Linear(1, 1)
    return Task(model, lambda i: i, lambda model, batch: model(torch.ones(1, 1)).sum(), lambda model: {"m": 1.0})
"""


@pytest.mark.usefixtures("inline_pool")
def test_components_that_fail_or_are_interrupted_go_on(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, out = tmp_path / "by_luck.py", tmp_path / "c"
    script.write_text(BY_LUCK, encoding="utf-8")
    command = ["theory", "components", "--workload", "by-luck", "--script", script, "--seeds", "1", "--out", out]
    report, stubs = "adan_bench.reports.comparison.write_report", iter([out, out, KeyboardInterrupt, out])
    monkeypatch.setattr(report, mock.Mock(side_effect=stubs))
    code, text, _ = bench(*command)
    assert (code, text.count("failed: RuntimeError: no such luck"), text.count(f"failed: {out}")) == (1, 4, 4)
    code, text, _ = bench(*command, "--resume", "--json")
    assert (code, len(json.loads(text.splitlines()[-1])["failed"])) == (1, 4)  # three rows and the pilot of the fourth
    (tmp_path / "luck").touch()
    code, _, err = bench(*command, "--resume")
    again = shlex.join(["adan-bench", *map(str, command), "--resume"])
    assert (code, err.splitlines()[-1]) == (130, f"adan-bench: interrupted; continue with: {again}")
    assert bench(*command, "--resume")[0] == 0


def test_docs(bench: Any) -> None:
    """The page's commands exist, with the options that it gives them; its figures are there, and small."""
    text = (DOCS / "theory.md").read_text(encoding="utf-8")
    commands = [
        shlex.split(line, comments=True)[1:]
        for block in re.findall(r"```sh\n(.*?)```", text, re.S)
        for line in block.splitlines()
        if line.startswith("adan-bench ")
    ]
    assert len(commands) >= 3
    for command in commands:
        names = [part for part in command if part in ("theory", "constants", "components")]
        code, out, err = bench(*names, "--help")
        assert code == 0, err
        for option in (part for part in command if part.startswith("--")):
            assert option in out
    for only in re.findall(r"--only ([\w-]+)", text):
        assert only in report.STUDIES
    figures = re.findall(r"\((figures/[\w.-]+\.png)\)", text)
    assert len(figures) >= 4
    for figure in figures:
        assert (DOCS / figure).stat().st_size < 100_000
