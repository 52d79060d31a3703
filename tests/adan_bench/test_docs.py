"""The documentation's own text, run."""

from __future__ import annotations

import json
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from support.pages import ROOT, blocks, flat

from adan_bench.records.store import read_runs
from adan_bench.workloads.parts import classification, networks
from adan_bench.workloads.parts.networks import resnet

DOCS = ROOT / "docs"


def commands(page: str) -> list[list[str]]:
    lines = "".join(blocks(DOCS / page, "sh")).splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("adan-bench ")]


@pytest.mark.usefixtures("inline_pool")
def test_own_workload(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newcomer's path: at most 25 lines, taken from the page, then each of its commands; README has the first.

    With fewer steps than the script has: it is about the commands.
    """
    script, optimizers = blocks(DOCS / "own-workload.md", "python")
    assert len(script.splitlines()) <= 25
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("adan_bench.training.optimizers.OWN", {})
    Path("my_train.py").write_text(script, encoding="utf-8")
    first, *others = commands("own-workload.md")
    assert shlex.join(first) in (DOCS.parent / "README.md").read_text(encoding="utf-8")
    out = bench.ran(*first, "--steps", 20)
    records = read_runs(Path("runs/mine"))[0]
    runs = [r for r in records if r.config.role == "run"]
    assert len(runs) == 9
    assert len(records) == 9 + 3 * 8
    assert all(r.status == "finished" for r in runs)
    assert max(r.final or 0 for r in runs) > 0.9
    assert Path("runs/mine/report.html").exists()
    assert "Every optimizer had 8 tuning trials" in out
    shown = []
    for command in others:
        if command[:2] == ["list", "optimizers"]:
            Path("my_train.py").write_text(script + optimizers, encoding="utf-8")
        shorter = ["--steps", 20] if command[0] in ("tune", "compare") else []
        out = bench.ran(*command, *shorter)
        shown.append(out)
    listed, tuned, compared, _, optimizers_listed, own = shown
    assert "wine" in listed
    assert "best.json" in tuned
    assert "adan:state_format=8bit" in compared
    assert Path("runs/tune/tuning.html").exists()
    assert Path("runs/tuned/report.html").exists()
    assert "my_train:SignSGD" in optimizers_listed
    for name in ("adan", "signsgd", "adagrad"):
        assert len([r for r in read_runs(Path("runs/own"))[0] if r.config.name == name]) == 8 + 3
        assert f" {name} " in own


@pytest.mark.usefixtures("inline_pool")
def test_commands_of_the_page(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them, on a narrower network than it names: the page is about the commands."""
    for module in (classification, networks):
        monkeypatch.setattr(module, "resnet", lambda widths, *others: resnet([w // 16 for w in widths], *others))
    monkeypatch.chdir(tmp_path)
    found = commands("bench.md")
    assert len(found) >= 9
    for command in found:
        seldom = ["--eval-every", 6] if command[0] in ("run", "compare") else []  # twice the work of a step
        bench.ran(*command, *seldom)
    assert Path("runs/four/digits-resnet-b32/adan/seed-0/result.json").exists()
    assert Path("runs/five/best.json").exists()


def test_page_names_what_exists(bench: Any) -> None:
    """Every workload is on the page, and every shared option."""
    from adan_bench.config import RunConfig
    from adan_bench.workloads.registry import workloads

    text = (DOCS / "bench.md").read_text(encoding="utf-8")
    for name, found in workloads().items():
        if found.build.__module__.startswith("adan_bench.workloads"):
            assert f"`{name}`" in text
    flags = [f.name for f in fields(RunConfig) if f.metadata.get("help")]
    for name in (*flags, "out", "resume", "json"):
        assert f"--{name.replace('_', '-')}" in text


def test_every_cell_of_the_record_is_tuned() -> None:
    assert "All settings were tuned with eight trials" in flat("docs/reproduce.md")
    for name in ("smoke", "smoke-mask-rcnn"):
        text = (ROOT / "results" / "reproduce" / f"{name}.json").read_text(encoding="utf-8")
        for table in json.loads(text)["tables"]:
            for cell in table["cells"]:
                if cell["values"] and "origin" in cell:
                    assert cell["origin"].startswith("defaults tuned in 8 trials"), (table["name"], cell["row"])
