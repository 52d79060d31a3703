"""Stored studies: their numbers are those of the records, by two ways."""

import ast
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import recompute
import results_details as details
import results_page as results
import stored

from adan_bench.config import Origin
from adan_bench.records.archive import pack, read_archive


def test_the_page_has_what_a_second_way_finds_in_the_records(tmp_path, monkeypatch):
    """By a script that imports nothing of ours; a page with another number is noticed."""
    code = ast.parse(Path(recompute.__file__).read_text(encoding="utf-8"))
    imported = [getattr(node, "module", None) or "" for node in ast.walk(code)]
    imported += [name.name for node in ast.walk(code) if isinstance(node, ast.Import) for name in node.names]
    assert {module.split(".")[0] for module in imported} <= {*sys.stdlib_module_names, "numpy", "scipy", ""}
    assert recompute.differences() == []
    assert len(list(recompute.rows())) == 33
    (tmp_path / "docs").mkdir()
    for page in ("results.md", "results-details.md"):
        text = (recompute.ROOT / "docs" / page).read_text(encoding="utf-8")
        (tmp_path / "docs" / page).write_text(text.replace("78.51 ± 0.17", "78.52 ± 0.17"), encoding="utf-8")
    (tmp_path / "results").symlink_to(recompute.ROOT / "results")
    monkeypatch.setattr(recompute, "ROOT", tmp_path)
    said = "the page has 78.52 ± 0.17, the records 78.51 ± 0.17"
    assert recompute.differences() == [f"ViT, 25 epochs: {said}", f"ViT, 25 of 50 epochs: {said}"]


def test_the_index_and_the_records_agree(studies):
    """Every stored run that has a result belongs to a study, and none is lost."""
    used = {r.path for s in studies.values() for g in s.groups for r in g.runs}
    used |= {r.path for s in studies.values() for trials in s.search.values() for r in trials}
    for file in (stored.EVIDENCE / "runs.jsonl", *stored.NEWER.glob("*.jsonl")):
        records, damaged = read_archive(file)
        assert damaged == []
        assert {r.path for r in records if r.final is not None} <= used, file.name
    assert sum(path.parent.name == "runs.jsonl" for path in used) == 1011


def test_the_best_of_several_others_is_corrected_for_all_of_them(rows, studies):
    """And for all rows: by as many as are left, which are the same for those that are not significant."""
    every = [row for kind in ("rows", "recipes", "halves") for row in results.contests(studies, kind)]
    assert all(row.tests == row.left * len(row.others) for row in every)
    ordered = sorted(every, key=lambda row: row.p)
    assert [row.lead.word == "not significant" for row in ordered] == sorted(
        row.lead.word == "not significant" for row in ordered
    )
    assert len({row.left for row in ordered if row.lead.word == "not significant"}) == 1
    row = rows["ViT, 25 epochs"]
    assert (row.adan.minus(row.best, 2).word, row.lead.word) == ("better", "not significant")
    assert [len(row.others) for row in results.contests(studies, "halves")] == [2, 2, 2, 1, 2]


def test_an_optimizer_with_diverged_seeds_is_neither_better_nor_the_best_baseline(studies):
    adan, adamw, lamb = studies["vit-25"].compared()
    assert adan.minus(lamb).word == "better"
    lost = replace(adan, diverged=1)
    assert (lost.minus(lamb).word, lamb.minus(lost).word) == ("not significant", "not significant")
    assert adan.minus(replace(lamb, diverged=1)).word == "better"
    assert results.Contest("", adan, [adamw, lamb]).best is lamb
    assert results.Contest("", adan, [adamw, replace(lamb, diverged=1)]).best is adamw
    assert lost.counted == "4 of 5, 1 diverged"


def test_with_fewer_than_three_seeds_nothing_is_compared(studies):
    study = studies["convnext-25-again"]
    few = replace(study, groups=tuple(replace(group, runs=group.runs[:2]) for group in study.groups))
    assert study.compared()
    assert few.compared() == []
    assert ": better" not in details.described(study.name, {**studies, study.name: few})


def test_runs_that_diverged_are_counted_apart(studies):
    runs = list(studies["gpt"].compared()[0].runs)
    runs[0] = replace(runs[0], result={**runs[0].result, "status": "diverged"})
    (group,) = stored._groups([(runs, 5)])
    assert (group.n, group.diverged) == (4, 1)


def test_a_study_of_a_file_of_its_own(studies, tmp_path):
    """As `adan-bench pack` writes it: the same groups, search and choice as by the index."""
    old = studies["gpt"]
    runs = [r for g in old.groups for r in g.runs] + [r for trials in old.search.values() for r in trials]
    (tmp_path / "mine.jsonl").write_text(pack(runs), encoding="utf-8")
    new = stored.of_archive(tmp_path / "mine.jsonl")
    assert (new.name, new.length, new.planned_trials, new.tune_length) == ("mine", 2_000, 7, None)
    assert [(g.optimizer, g.by_seed()) for g in new.compared()] == [(g.optimizer, g.by_seed()) for g in old.compared()]
    assert {name: chosen.lr for name, chosen in new.chosen.items()} == {"adan": 0.004, "adamw": 0.002, "adam": 0.002}
    assert details.others({}) == ""
    assert details.others({**studies, "mine": new}).startswith("## Newer studies\n\n### `")
    assert "\n\n### `mine`\n\n`pycode-gpt-11m` with" in details.others({**studies, "mine": new})
    assert results.unit_of(new.groups[0].first).spread(new.compared()[0].final()) == "0.8507 ± 0.0025"


@pytest.mark.parametrize(("trials", "settings_of"), [(7, "another study"), (0, "")])
def test_a_newer_study_without_trials_has_settings_of_another_or_published_ones(studies, tmp_path, trials, settings_of):
    runs = [
        replace(run, config=replace(run.config, origin=Origin(kind="here", trials=trials)))
        for group in studies["gpt"].groups
        for run in group.runs
    ]
    (tmp_path / "a.jsonl").write_text(pack(runs), encoding="utf-8")
    found = stored.of_archive(tmp_path / "a.jsonl")
    assert (found.settings_of, found.planned_trials) == (settings_of, 0)


def test_a_study_of_which_only_trials_are_stored(studies, tmp_path):
    (tmp_path / "a.jsonl").write_text(pack(studies["gpt"].search["adan"]), encoding="utf-8")
    found = stored.of_archive(tmp_path / "a.jsonl")
    assert (found.groups, found.length, found.planned_trials, found.tune_length) == ([], 2_000, 7, None)
    assert "7 trials per optimizer of full" in details.described("a", {"a": found})


def test_a_study_that_was_run_again_stands_beside_the_old_one(studies, tmp_path, monkeypatch):
    for newer in stored.NEWER.glob("*.jsonl"):
        (tmp_path / newer.name).symlink_to(newer)
    (tmp_path / "gpt.jsonl").write_text(pack(studies["gpt"].groups[0].runs[:1]), encoding="utf-8")
    monkeypatch.setattr(stored, "NEWER", tmp_path)
    both = stored.studies.__wrapped__()
    assert [g.n for g in both["gpt"].groups] == [5, 5, 5]
    text = details.others(both)
    assert "### `gpt-again-by-adan-bench`" in text
    assert "| Adan | lr 0.004, betas 0.9, 0.92, 0.99, decay 0.02 | 1 | 0.8" in text
