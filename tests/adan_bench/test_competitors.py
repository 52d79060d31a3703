"""Variants side by side, settings of one optimizer, and the way from a tuning to a comparison."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.learning import chosen

from adan_bench.config import Origin
from adan_bench.errors import UsageError
from adan_bench.records.store import read_runs
from adan_bench.studies.comparison import compared
from adan_bench.studies.competitors import competitors
from adan_bench.task import Settings

SMALL = ("--steps", "20", "--seeds", "1")


def test_a_setting_of_one_optimizer() -> None:
    found = competitors("adan,adan:lr=3,adamw", ["lr=1", "adan.lr=2", "adamw.weight_decay=0.5"])
    assert [c.settings for c in found] == [{"lr": 2}, {"lr": 3}, {"lr": 1, "weight_decay": 0.5}]


def test_a_setting_of_one_variant() -> None:
    """Its name has dots and equals signs of its own, and may begin with that of another."""
    who = "adan,adan:eps=1e-6,adan:lr=0,adan:lr=0.5"
    found = competitors(who, ["adan.eps=1", "adan:eps=1e-6.lr=2", "adan:lr=0.5.eps=3"])
    assert [c.settings for c in found] == [
        {"eps": 1},
        {"eps": 1e-6, "lr": 2},
        {"lr": 0, "eps": 1},
        {"lr": 0.5, "eps": 3},
    ]


@pytest.mark.parametrize(
    ("text", "pairs", "words"),
    [
        ("adan,adan", [], "names one twice"),
        ("adan:lr", [], "'lr' is not KEY=VALUE"),
        ("adanw", [], "did you mean adan or adamw"),
        ("adan", ["adamw.lr=1"], "--set adamw.lr=1: this comparison has no optimizer 'adamw'"),
        ("adan", ["adan:eps=1.lr=1"], "this comparison has no optimizer 'adan:eps=1'"),
        ("adan:eps=1", ["adan:eps=1.eps=2"], "adan:eps=1 has its eps in its name; leave out one of the two"),
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
    out = bench.ran("compare", "tiny", "--script", tiny, "--optimizers", who, *SMALL, "--out", tmp_path / "a")
    for name in who.split(","):
        assert all(f"│ {line} " in out for line in name.replace(":", ":\n").splitlines())  # long names are broken there
        assert f"| {name} |" in (tmp_path / "a" / "report.md").read_text(encoding="utf-8")
    formats = {r.config.name: r.config.settings.get("state_format") for r in read_runs(tmp_path / "a")[0]}
    assert formats == {"adan": None, "adan:state_format=8bit": "8bit", "adamw": None}


@pytest.mark.parametrize(("who", "changed"), [("adan:state_format=8bit", {}), ("adan:lr=2", {"lr": 2})])
def test_variants_of_bundled_defaults(tmp_path: Path, who: str, changed: Settings) -> None:
    """A setting that no search looks for leaves the comparison fair; a learning rate does not."""
    arms = compared(["digits-vit"], competitors(f"adan,{who}"), chosen(), out=tmp_path)
    origins = [arm.base.origin for arm in arms.values()]
    assert origins[1] == replace(origins[0], changed=changed, at_edge=origins[0].at_edge and not changed)
    assert (origins[0].kind, origins[0].flaw) == ("bundled", "")


def test_a_run_of_a_variant_has_its_name(bench: Any, tiny: Path, tmp_path: Path) -> None:
    name = "adan:state_format=8bit"
    options = ("--optimizer", name, "--set", f"{name}.lr=0.01", "--steps", 2, "--out", tmp_path / "a")
    bench.ran("run", "tiny", "--script", tiny, *options)
    ((record,), _) = read_runs(tmp_path / "a")
    assert (record.config.name, record.config.settings["lr"]) == (name, 0.01)


@pytest.mark.usefixtures("inline_pool")
def test_from_tune_to_compare(bench: Any, tiny: Path, tmp_path: Path) -> None:
    """Tune ends with a table and a report, and compare takes what it saved."""
    script = ("tiny", "--script", tiny, "--steps", "20")
    trials = ("--optimizers", "adan,sgd", "--trials", "3", "--set", "adan.weight_decay=0.3")
    out = bench.ran("tune", *script, *trials, "--out", tmp_path / "tune")
    for word in ("adan", "sgd", "(edge)", "lower and", "tuning.html", "--tuned"):
        assert word in out
    page, text = ((tmp_path / "tune" / f"tuning.{kind}").read_text(encoding="utf-8") for kind in ("html", "md"))
    assert 'data-rates="0"' in page
    assert "| adan |" in text
    saved = tmp_path / "tune" / "best.json"
    found = json.loads(saved.read_text(encoding="utf-8"))["workloads"]["tiny"]
    options = (*script, "--seeds", "1", "--tuned", saved)
    out = bench.ran("compare", *options, "--optimizers", "adan,sgd,adan:eps=1e-6", "--out", tmp_path / "compare")
    settings = {r.config.name: r.config.settings for r in read_runs(tmp_path / "compare")[0]}
    assert settings["adan"]["lr"] == found["adan"]["settings"]["lr"] == settings["adan:eps=1e-6"]["lr"]
    assert settings["sgd"]["lr"] == found["sgd"]["settings"]["lr"]
    assert settings["adan:eps=1e-6"]["eps"] == 1e-6
    assert (settings["adan"]["weight_decay"], found["sgd"]["settings"].get("weight_decay", 0.0)) == (0.3, 0.0)
    assert "tuned in 3 trials (best.json)" in out
    assert "ntuned" not in out  # nowhere "untuned"
    err = bench.refused("compare", *options, "--optimizers", "adamw", "--out", tmp_path / "x")
    assert "nothing for tiny adamw; it has: tiny adan, tiny sgd" in err
    assert "leave out one" in bench.refused("compare", *options, "--tune", "4", "--out", tmp_path / "x")
    err = bench.refused("compare", *script, "--tuned", tiny, "--out", tmp_path / "x")
    assert "not a file that adan-bench tune saved" in err


ENTRY = {"settings": {"lr": 0.01, "betas": [0.9, 0.92, 0.99]}, "trials": 8, "steps": 60, "batch_size": 16}


def saved(path: Path, **entries: Any) -> Path:
    """A file as tune saves it, with the entries of some workloads' Adan."""
    path.write_text(
        json.dumps({"workloads": {name: {"adan": entry} for name, entry in entries.items()}}), encoding="utf-8"
    )
    return path


@pytest.mark.parametrize(
    ("who", "pairs", "changed"),
    [
        ("adan", ["adan.lr=0.5"], {"lr": 0.5}),
        ("adan", ["lr=0.01", "betas=0.9,0.92,0.99"], {}),
        ("adan:betas=0.8,0.9,0.99", [], {"betas": (0.8, 0.9, 0.99)}),
        ("adan:state_format=8bit", [], {}),
    ],
)
def test_tuned_settings_that_are_changed(
    tiny: Path, tmp_path: Path, who: str, pairs: list[str], changed: Settings
) -> None:
    """The origin says so, from which the report knows that the optimizers had no equal chance."""
    file = saved(tmp_path / "best.json", tiny=ENTRY)
    arms = compared(["tiny"], competitors(who, pairs), chosen(script=tiny), out=tmp_path / "a", tuned=file)
    assert arms["tiny", who].base.origin == Origin(kind="saved", trials=8, source="best.json", changed=changed)


@pytest.mark.usefixtures("inline_pool")
def test_a_comparison_with_a_changed_setting_is_not_fair(bench: Any, tiny: Path, tmp_path: Path) -> None:
    entry = {**ENTRY, "settings": {"lr": 0.01}, "steps": 20}
    (tmp_path / "best.json").write_text(
        json.dumps({"workloads": {"tiny": {"adan": entry, "adamw": entry}}}), encoding="utf-8"
    )
    options = ("--optimizers", "adan,adamw", "--tuned", tmp_path / "best.json", *SMALL, "--set", "adan.lr=0.02")
    out = bench.ran("compare", "tiny", "--script", tiny, *options, "--out", tmp_path / "a")
    assert "then --set lr=0.02" in out
    assert "not a fair comparison" in out


def test_tuned_settings_in_a_sweep_of_batch_sizes(tiny: Path, tmp_path: Path) -> None:
    """The square-root rule starts from the batch size that was tuned."""
    file = saved(tmp_path / "best.json", tiny={**ENTRY, "batch_size": 32, "steps": 30})
    options = chosen(script=tiny)
    arms = compared(["tiny"], competitors("adan"), options, out=tmp_path / "a", tuned=file, batch_sizes=[8, 32])
    small, same = arms["tiny-b8", "adan"].base, arms["tiny-b32", "adan"].base
    assert (small.settings["lr"], same.settings["lr"]) == (0.005, 0.01)
    assert (small.origin.tuned_for, small.origin.batch_sizes) == ({"steps": 30, "batch_size": 32}, (8, 32))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([], "it is no JSON object"),
        ({"workloads": [ENTRY]}, "it is no JSON object"),
        ({"workloads": {"tiny": [ENTRY]}}, "it is no JSON object"),
        ({"workloads": {"tiny": {"adan": [ENTRY]}}}, "it is no JSON object"),
        ({"workloads": {"tiny": {"adan": {**ENTRY, "settings": {}}}}}, "tiny adan has no lr"),
        ({"workloads": {"tiny": {"adan": {**ENTRY, "trials": None}}}}, "tiny adan has no trials"),
        ({"workloads": {"tiny": {"adan": {**ENTRY, "batch_size": 0}}}}, "tiny adan has no batch_size"),
    ],
)
def test_a_file_that_tune_did_not_save(bench: Any, tiny: Path, tmp_path: Path, content: Any, words: str) -> None:
    file = tmp_path / "best.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    for command, flag in (("compare", "--tuned"), ("tune", "--save")):
        err = bench.refused(command, "tiny", "--script", tiny, flag, file, "--out", tmp_path / "a")
        assert f"{flag} {file}: not a file that adan-bench tune saved ({words}" in err
        assert len(err.splitlines()) == 1
    assert not (tmp_path / "a").exists()
