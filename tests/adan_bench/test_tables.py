"""The published figures: a sample copied by hand, and whether they, the settings and the plans hold together."""

from __future__ import annotations

import json
import statistics
from dataclasses import fields
from importlib import resources
from pathlib import Path

import pytest

import adan
from adan_bench.config import RunConfig
from adan_bench.errors import UsageError
from adan_bench.reports.paper import sections
from adan_bench.studies.plan import plan
from adan_bench.studies.speed import MODELS
from adan_bench.tables import (
    MARKS,
    PaperTable,
    PublishedSettings,
    TableColumn,
    choose,
    figure,
    merged,
    parse,
    tables,
)
from adan_bench.task import SCALES
from adan_bench.training.optimizers import check_settings, get_optimizer
from adan_bench.training.schedules import schedule
from adan_bench.workloads.registry import workloads

TABLES = tables()
ALL = list(TABLES.values())
FIELDS = {"min_lr", *(f.name for f in fields(RunConfig))}
UNPRINTED = ("figure", "unpublished")  # cells without a number

MINIMAL = json.loads((resources.files("adan_bench.tables") / "cifar10.json").read_text(encoding="utf-8"))

#: Copied from the paper by hand: (table, row, column) -> the figure as printed.
SAMPLE = {
    ("cnn", "LAMB", "ResNet-50, 300 epochs"): "79.8*",
    ("cnn", "SAM", "ResNet-101, 200 epochs"): "81.1",
    ("cnn", "AdamW", "ConvNeXt-S, 300 epochs"): "83.1⋄",
    ("resnet18", "Adan", "ResNet-18, 90 epochs"): "70.90",
    ("cifar10", "Yogi", "ResNet-34, CIFAR-10"): "94.52",
    ("vit-swin", "AdamW", "Swin-T, 150 epochs"): "79.9",
    ("vit-swin", "Adan", "Swin-B, 300 epochs"): "83.8",
    ("mae", "AdamW", "MAE ViT-B, 800 epochs"): None,
    ("mae", "Adan", "MAE ViT-L, 800 epochs"): "85.9",
    ("batch-size", "LAMB", "batch 32k"): "78.4",
    ("deformable-detr", "Adan", "AP50"): "64.4",
    ("mask-rcnn", "AdamW", "mask AP75"): "44.9⋄",
    ("lstm", "Padam", "2 layers"): "67.2",
    ("bert", "Adam (reproduced)", "CoLA"): "58.5",
    ("bert", "Adan", "MNLI, second"): "85.6",
    ("gpt2", "Adan, 150k steps", "pass@100"): "0.377",
    ("transformer-xl", "Adam", "200k steps"): "24.2*",
    ("deepgcn", "Adam (official)", "1000 epochs"): "0.826",
    ("moe", "AdamW", "8 × 0.3B, 300B tokens"): "2.070",
    ("vit-s", "Adai", "150 epochs"): "72.6",
    ("step-time", "Adan", "GPT-2-1B, GB"): "78.6",
    ("step-time", "LAMB", "Swin-L, ms"): "747.8",
    ("data-parallel", "AdaBelief", "MoE-8x0.1B, 32 GPUs, tokens/s"): "58698.5",
    ("betas", "AdamW 0.98, 0.95", "8 × 0.1B, 3B tokens"): "2.972",
    ("components", "Adan: Nesterov", "8 × 0.1B, 10B tokens"): "2.630",
    ("settings", "Adan", "Setting I, 300 epochs"): "81.1",
    ("restart", "Adan with restart", "ConvNeXt-T"): "81.62",
}


def test_figures_are_the_papers() -> None:
    for (name, row_head, column_head), printed in SAMPLE.items():
        (row,) = [row for row in TABLES[name].rows if row.head == row_head]
        (index,) = [i for i, column in enumerate(TABLES[name].columns) if column.head == column_head]
        assert row.values[index] == printed, (name, row_head, column_head)


def test_places_are_those_of_the_paper() -> None:
    """Every table and every figure, once."""
    assert [t.place for t in ALL] == [f"Table {n}" for n in range(1, 23)] + [f"Figure {n}" for n in (1, 2, 3)]
    assert len({t.label for t in ALL}) == len(ALL)


def borrowed(table: PaperTable) -> list[PublishedSettings]:
    return [entry for name in table.like for entry in TABLES[name].settings]


@pytest.mark.parametrize("table", ALL, ids=lambda t: t.name)
def test_table_is_whole(table: PaperTable) -> None:
    assert table.kind in ("train", "speed", "parallel", "statement")
    statement = table.kind == "statement"
    heads = [c.head for c in table.columns], [r.head for r in table.rows]
    assert all(len(set(names)) == len(names) for names in heads)
    for row in table.rows:
        assert len(row.values) == len(table.columns)
        assert not row.optimizer if statement else get_optimizer(row.optimizer)
    for _, _, printed in table.cells():
        assert printed in UNPRINTED or printed[-1] in table.marks or printed[-1] not in MARKS, printed
        assert (figure(printed) is None) == (printed in UNPRINTED or statement), printed
    assert list(table.runs) == list(SCALES)
    for selection in table.runs.values():
        assert set(selection.columns) <= set(heads[0])
        assert set(selection.rows) <= set(heads[1])
    for scale in SCALES:
        assert bool(table.planned(scale)) != statement, scale
    for entry in table.settings:
        assert entry.source
        assert entry.optimizer in {row.optimizer for row in table.rows} or entry in borrowed(table)
        assert set(entry.column) <= set(heads[0]) or entry in borrowed(table)
        check_settings(get_optimizer(entry.optimizer), entry.run["settings"])
        assert {*entry.run, *table.run} <= FIELDS
        assert set(entry.guess) <= {"lr", *entry.stated, *FIELDS}
        if "schedule" in entry.run:
            schedule(entry.run["schedule"], 1)
    for column in table.columns:
        assert (column.model is not None) <= (table.kind != "train")
        assert column.model is None or column.model in MODELS
        assert (column.ranks > 1) == (table.kind == "parallel")


@pytest.mark.parametrize("table", [t for t in ALL if t.kind == "train"], ids=lambda t: t.name)
def test_workloads_exist(table: PaperTable) -> None:
    there = workloads()
    named = {column.workload for column in table.columns if column.workload}
    assert named <= set(there), f"no such workloads: {sorted(named - set(there))}"
    before = {there[name].after for name in named}
    for entry in table.settings:
        assert set(entry.workload) <= named | before or entry in borrowed(table)
        for workload in entry.workload or named:
            training = {*table.run.get("training", ()), *entry.run.get("training", ())}
            assert training <= set(there[str(workload)].options), workload
    for column in table.columns:
        assert column.before == (1, 1) or there[str(column.workload)].after


def test_adan_is_best_but_where_the_paper_says_otherwise() -> None:
    lost = []
    for table in ALL:
        if table.kind != "train" or table.name in ("betas", "components", "restart"):
            continue
        for column in table.columns:
            values = {r.optimizer: figure(v) for r, c, v in table.cells() if c is column}
            values = {name: value for name, value in values.items() if value is not None}
            quoted = [figure(v) or 0.0 for r, c, v in table.cells() if c is column and not r.study]
            if len(values) > 1 and table.name != "gpt2":
                best = max(values.values()) if table.higher(column) else min(values.values())
                if values["adan"] != best or max(quoted, default=0) > best:
                    lost.append((table.name, column.head))
    assert lost == [("bert", "STS-B")]


def test_table_1_is_whole() -> None:
    """Ten algorithms, of which the paper's are the two with a separate decay and a bound; copied by hand."""
    found = {row.head: row.values for row in TABLES["complexity"].rows}
    assert len(found) == 10
    assert found["Adan, Lipschitz gradient"] == ("yes", "no", "ℓ∞ ≤ c∞", "O(c∞^2.5 ε⁻⁴)", "Ω(ε⁻⁴)")
    assert found["Adan, Lipschitz Hessian"] == ("yes", "no", "ℓ∞ ≤ c∞", "O(c∞^1.25 ε^−3.5)", "Ω(ε^−3.5)")
    assert found["LAMB"] == ("no", "O(ε⁻⁴)", "ℓ2 ≤ c2", "O(c2² d ε⁻⁴)", "Ω(ε⁻⁴)")
    (section,) = sections({"scale": "smoke", "tables": [{"name": "complexity", "cells": []}]})
    assert [len(line) for line in section.run] == [len(section.head)] * 10
    assert section.conclusion == "Statements of theory: nothing of it is run."


def test_figure_1_has_the_runs_of_tables_2_and_16(tmp_path: Path) -> None:
    for scale in SCALES:
        runs = [
            set(plan([TABLES[name] for name in names], RunConfig(scale=scale, threads=1), tmp_path).runs)
            for names in (["curves"], ["cnn", "vit-s"])
        ]
        assert runs[0] <= runs[1]


def test_derived_figures() -> None:
    """Means and variances that the paper prints, from the figures that it prints; both slips are in the notes."""
    for row, printed in zip(TABLES["bert"].rows, (81.49, 82.575, 84.275), strict=True):
        eight = [figure(value or "") for value in row.values[:-1]]
        assert statistics.fmean(v for v in eight if v is not None) == pytest.approx(printed, abs=0.01)
    table = TABLES["betas"]
    for optimizer, expected in (("adamw", 1.73e-3), ("adan", 1.29e-4)):
        losses = [figure(r.values[0] or "") or 0.0 for r in table.rows if r.optimizer == optimizer]
        assert statistics.pvariance(losses) == pytest.approx(expected, rel=5e-3)
    assert table.variances == {"adamw": "1.73e-3", "adan": "1.29e-3"}
    assert any("1.29e-4" in note for note in table.notes)


def test_settings_are_those_of_the_recipes() -> None:
    """`adan.recipes` states the paper's text; where the tables follow the authors' configuration, they say so."""
    recipes = {
        ("cnn", "resnet50"): "resnet",
        ("cnn", "convnext-t"): "convnext",
        ("vit-swin", "vit-s"): "vit",
        ("vit-swin", "swin-b"): "swin",
        ("mae", "mae-pretrain-vit-b"): "mae-pretrain",
        ("mae", "mae-finetune-vit-b"): "mae-finetune",
        ("lstm", "lstm-1"): "lstm",
        ("bert", "bert-pretrain"): "bert-pretrain",
        ("bert", "glue-rte"): "bert-finetune",
        ("transformer-xl", "transformer-xl"): "transformer-xl",
        ("ppo", "ppo-ant"): "rl-ppo",
    }
    for (name, workload), recipe in recipes.items():
        columns = [c for c in TABLES[name].columns if c.workload in (workload, None)] or [TableColumn("")]
        expected = adan.recipes[recipe].options()
        expected = {key: list(v) if key == "betas" else v for key, v in expected.items()}
        for column in columns:
            entry = TABLES[name].published("adan", workload, column)
            settings = entry.run.get("settings", {})
            differs = {key for key, value in settings.items() if value != expected.get(key, value)}
            assert not differs or "the paper states" in entry.source, (name, column, differs)
            assert not settings or {"lr", "betas", "weight_decay"} <= set(settings)
    for column in TABLES["batch-size"].columns:
        recipe = adan.recipes[f"vit-large-batch-{column.batch_size // 1024}k"]
        entry = TABLES["batch-size"].published("adan", column.workload, column)
        assert entry.run["settings"]["lr"] == pytest.approx(recipe.lr, rel=1e-6)
        assert entry.run["warmup"] == [recipe.warmup_epochs, 300]


@pytest.mark.parametrize("table", [t for t in ALL if t.kind == "train"], ids=lambda t: t.name)
def test_every_run_at_paper_scale_has_a_recipe(table: PaperTable) -> None:
    """Nothing of it is left to the harness: its defaults are for runs of hundreds of steps."""
    there = workloads()
    for row, column, _ in table.planned("paper"):
        if column.mean:
            continue
        before = there[str(column.workload)].after
        for name in (column.workload, *([before] if before else [])):
            recipe, cell = table.published(row.optimizer, name, column), (row.head, column.head, name)
            fixed = row.fixed if name == column.workload else row.before
            spec, settings = get_optimizer(row.optimizer), {**recipe.run["settings"], **fixed}
            assert recipe.source, cell
            assert set(spec.defaults) <= set(settings), cell
            assert {"lr", "weight_decay"} <= {*settings, *recipe.guess}, cell
            assert {"schedule", "warmup"} <= set(recipe.run), cell


def test_guesses_are_what_no_later_entry_states() -> None:
    """A guess for all columns is none where a column has a source."""
    common = {"optimizer": "adan", "settings": {"lr": 1.0, "eps": 1e-8}, "guess": ["lr", "clip"], "source": "a"}
    later = {**common, "settings": {"lr": 2.0}, "guess": []}
    found = merged(parse("x", {**MINIMAL, "settings": [common, later]}).settings, {"schedule": "step"})
    assert found.guess == ("clip",)
    assert found.run == {"schedule": "step", "settings": {"lr": 2.0, "eps": 1e-8}}
    assert found.source == "a"


def test_smoke_is_at_most_130_runs() -> None:
    """At ten seconds each and two at a time, what fits into fifteen minutes with some to spare."""
    runs = set()
    for table in ALL:
        for row, column, _ in table.planned("smoke"):
            if column.workload is not None:
                rest = (row.fixed, row.before, row.budget, row.restart, column.budget, column.batch_factor)
                runs.add((column.workload, row.optimizer, column.before, repr(rest)))
                if column.before != (1, 1) or "glue" in str(column.workload):
                    runs.add(("before", row.optimizer, column.before, repr(row.before)))
    assert 90 <= len(runs) <= 130


def test_choose() -> None:
    assert choose(["all"]) == ALL
    assert [t.name for t in choose(["ppo", "cnn"])] == ["cnn", "ppo"]
    with pytest.raises(UsageError, match=r"no table 'cnns'; did you mean cnn\?$"):
        choose(["cnns"])


def test_adding_a_table_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the folder is listed, planned and reported, and nothing else has to know of it."""
    content = json.loads((resources.files("adan_bench.tables") / "cifar10.json").read_text(encoding="utf-8"))
    (tmp_path / "mine.json").write_text(json.dumps({**content, "title": "Mine"}), encoding="utf-8")
    own = resources.files
    monkeypatch.setattr(resources, "files", lambda name: tmp_path if name == "adan_bench.tables" else own(name))
    (mine,) = choose(["mine"])
    found = plan([mine], RunConfig(threads=1), tmp_path / "out")
    assert len(found.runs) == len(mine.rows)
    summary = {"scale": "smoke", "tables": [{"name": "mine", "cells": []}]}
    assert sections(summary)[0].title == "Table 4: Mine (toy models and toy data)"
