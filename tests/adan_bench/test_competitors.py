"""Variants side by side, settings of one optimizer, and the way from a tuning to a comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adan_bench.records.store import read_runs
from adan_bench.spec import UsageError
from adan_bench.studies.competitors import competitors, value_of

SMALL = ("--steps", "20", "--seeds", "1")


@pytest.mark.parametrize(
    ("text", "value"),
    [("8bit", "8bit"), ("true", True), ("False", False), ("none", None), ("0.9,0.99", (0.9, 0.99)), ("3", 3)],
)
def test_values_parse(text: str, value: Any) -> None:
    assert value_of(text) == value
    assert type(value_of(text)) is type(value)


def test_a_setting_of_one_optimizer() -> None:
    found = competitors("adan,adan:lr=3,adamw", ["lr=1", "adan.lr=2", "adamw.weight_decay=0.5"])
    assert [c.settings for c in found] == [{"lr": 2}, {"lr": 3}, {"lr": 1, "weight_decay": 0.5}]


@pytest.mark.parametrize(
    ("text", "pairs", "words"),
    [
        ("adan,adan", [], "names one twice"),
        ("adan:lr", [], "'lr' is not KEY=VALUE"),
        ("adanw", [], "did you mean adan or adamw"),
        ("adan", ["adamw.lr=1"], "no optimizer here 'adamw'"),
        ("adan", ["lr="], "'lr=' is not KEY=VALUE"),
        ("", [], "name at least one"),
    ],
)
def test_mistakes(text: str, pairs: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        competitors(text, pairs)


@pytest.mark.usefixtures("inline_pool")
def test_variants_are_rows_of_their_own(bench: Any, tiny: Path, tmp_path: Path) -> None:
    who = "adan,adan:state_format=8bit,adamw"
    code, out, _ = bench("compare", "tiny", "--script", tiny, "--optimizers", who, *SMALL, "--out", tmp_path / "a")
    assert code == 0
    for name in who.split(","):
        assert f"│ {name} " in out
        assert f"| {name} |" in (tmp_path / "a" / "report.md").read_text()
    formats = {r.config.name: r.config.settings.get("state_format") for r in read_runs(tmp_path / "a")[0]}
    assert formats == {"adan": None, "adan:state_format=8bit": "8bit", "adamw": None}


@pytest.mark.usefixtures("inline_pool")
def test_from_tune_to_compare(bench: Any, tiny: Path, tmp_path: Path) -> None:
    """Tune ends with a table and a report, and compare takes what it saved."""
    script = ("tiny", "--script", tiny, "--steps", "20")
    code, out, _ = bench("tune", *script, "--optimizers", "adan,sgd", "--trials", "3", "--out", tmp_path / "tune")
    assert code == 0
    for word in ("adan", "sgd", "(edge)", "lower and", "tuning.html", "--tuned"):
        assert word in out
    page, text = ((tmp_path / "tune" / f"tuning.{kind}").read_text() for kind in ("html", "md"))
    assert 'data-rates="0"' in page
    assert "| adan |" in text
    saved = tmp_path / "tune" / "best.json"
    found = json.loads(saved.read_text())["workloads"]["tiny"]
    options = (*script, "--seeds", "1", "--tuned", saved)
    code, out, _ = bench("compare", *options, "--optimizers", "adan,sgd,adan:eps=1e-6", "--out", tmp_path / "compare")
    assert code == 0
    settings = {r.config.name: r.config.settings for r in read_runs(tmp_path / "compare")[0]}
    assert settings["adan"]["lr"] == found["adan"]["settings"]["lr"] == settings["adan:eps=1e-6"]["lr"]
    assert settings["sgd"]["lr"] == found["sgd"]["settings"]["lr"]
    assert settings["adan:eps=1e-6"]["eps"] == 1e-6
    assert "tuned in 3 trials (best.json)" in out
    assert "ntuned" not in out  # nowhere "untuned"
    code, _, err = bench("compare", *options, "--optimizers", "adamw", "--out", tmp_path / "x")
    assert (code, "nothing for tiny adamw; it has: tiny adan, tiny sgd" in err) == (2, True)
    code, _, err = bench("compare", *options, "--tune", "4", "--out", tmp_path / "x")
    assert (code, "leave out one of the two" in err) == (2, True)
    code, _, err = bench("compare", *script, "--tuned", tiny, "--out", tmp_path / "x")
    assert (code, "not a file that adan-bench tune saved" in err) == (2, True)
