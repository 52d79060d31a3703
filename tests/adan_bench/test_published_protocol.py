"""The runs at the scale "paper" follow the published protocols: lengths, evaluations, seeds, recipes, rates."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from support.learning import chosen
from support.made_up_tables import ADAN, cell, made_up

from adan_bench.config import RunConfig, RunRecord
from adan_bench.records.cells import CellRecord
from adan_bench.records.store import RunStore
from adan_bench.reports import paper as report
from adan_bench.studies.paper import ASKED, HUMANEVAL, collect, figure_of, reproduce
from adan_bench.studies.plan import PaperArm, PlannedCell, plan
from adan_bench.tables import tables
from adan_bench.training.configure import complete
from adan_bench.training.optimizers import get_optimizer
from adan_bench.workloads.images import MODELS, ImageSizes
from adan_bench.workloads.language import KINDS
from adan_bench.workloads.registry import get_workload


@cache
def planned(table: str) -> dict[tuple[str, str], PlannedCell]:
    """The cells of a table at paper scale by row and column."""
    cells = plan([tables()[table]], RunConfig(scale="paper"), Path("runs")).cells
    return {(cell.row.head, cell.column.head): cell for cell in cells if cell.arm}


def config(table: str, row: str, column: str) -> RunConfig:
    return planned(table)[row, column].arm.base


# The authors' configurations, copied from their files by other means than the tables. sail-sg/Adan at commit 2c65bea:
# CV/timm/exp_results/**/args_*.yaml and NLP/BERT/config/finetuning/*.yaml.

# table and column; lr, weight_decay, last of betas, epochs, warmup_epochs, min_lr, drop_path, max_grad_norm,
# bias_decay, aug_repeats, aa's magnitude, mixup, reprob, smoothing, bce_loss, decay of model_ema
TIMM = """
cnn ResNet-50,100       .03    .02 .99 100  60 1e-6 .05 5 true  0 7 .1 0   0  true  0
cnn ResNet-50,200       .015   .02 .99 200  60 1e-4 .05 5 true  0 7 .1 0   0  true  0
cnn ResNet-50,300       .015   .02 .99 300  60 1e-5 .05 5 true  0 7 .1 0   0  true  0
cnn ResNet-101,100      .01    .02 .99 100  40 1e-4 .1  5 true  0 7 .1 0   0  true  0
cnn ResNet-101,200      .015   .02 .99 200  60 1e-4 .1  5 true  0 7 .1 0   0  true  0
cnn ResNet-101,300      .015   .02 .99 300  90 1e-5 .2  5 true  0 7 .1 0   0  true  0
cnn ConvNeXt-T,150      .015   .04 .99 150  60 1e-4 .1  0 false 0 9 .8 .25 .1 false 0
cnn ConvNeXt-T,300      .016   .02 .9  300 150 1e-4 .1  0 false 0 9 .8 .25 .1 false .9999
vit-swin ViT-S,150      .015   .02 .99 150  60 1e-5 .1  0 false 0 7 .8 .25 .1 true  0
vit-swin ViT-S,300      .015   .02 .99 300  60 1e-5 .1  0 false 0 7 .8 .25 .1 true  0
vit-swin ViT-B,150      .015   .02 .99 150  60 1e-8 .1  5 true  3 9 .8 .25 .1 false 0
vit-swin ViT-B,300      .015   .02 .99 300  90 1e-6 .2  5 true  3 9 .8 .25 .1 false 0
settings Setting_I,150  .015   .02 .99 150  60 1e-8 .05 0 false 0 7 .2 0   .1 true  0
settings Setting_I,300  .02121 .02 .99 300  80 1e-8 .05 0 false 0 7 .2 0   .1 true  0
settings Setting_II,150 .015   .02 .99 150  60 1e-5 .1  0 false 0 7 .8 .25 .1 true  0
settings Setting_II,300 .015   .02 .99 300  60 1e-5 .1  0 false 0 7 .8 .25 .1 true  0
"""
# column and row; lr, betas, weight_decay, clip_norm, schedule
GLUE = """
MNLI,_first Adan              2e-5 .98,.92,.999 .01  1  linear
MNLI,_first Adam_(reproduced) 1e-5 .9,.98       .1   0  linear
QNLI        Adan              2e-5 .98,.99,.99  .001 0  cosine
QNLI        Adam_(reproduced) 1e-5 .9,.98       .1   0  linear
QQP         Adan              4e-5 .98,.99,.99  .001 0  linear
QQP         Adam_(reproduced) 1e-5 .9,.98       .1   0  linear
RTE         Adan              2e-5 .98,.99,.99  .01  0  linear
RTE         Adam_(reproduced) 2e-5 .9,.98       .1   0  linear
SST-2       Adan              4e-5 .98,.92,.99  .01  0  linear
SST-2       Adam_(reproduced) 1e-5 .9,.98       .1   0  linear
CoLA        Adan              4e-5 .98,.99,.99  .01  0  linear
CoLA        Adam_(reproduced) 1e-5 .9,.98       .1   0  linear
STS-B       Adan              4e-5 .98,.99,.99  .01  .5 cosine
STS-B       Adam_(reproduced) 2e-5 .9,.98       .1   0  linear
"""
EPOCH = 1_281_167 // 2048  # updates


@pytest.mark.parametrize("line", TIMM.strip().splitlines())
def test_images_have_the_settings_of_the_authors(line: str) -> None:
    table, column, *values = line.split()
    run = config(table, "Adan", column.replace("_", " ").replace(",", ", ") + " epochs")
    lr, decay, b3, epochs, warmup, lowest, depth, clip, repeats, magnitude, mixup, erasing, smoothing, ema = (
        float(value) for value in values if value not in ("true", "false")
    )
    all_decays, bce = (value == "true" for value in values if value in ("true", "false"))
    assert run.settings == {"lr": lr, "betas": [0.98, 0.92, b3], "eps": 1e-8, "weight_decay": decay}
    assert (run.batch_size, run.steps, run.schedule) == (2048, EPOCH * (epochs + 10), "full-cosine")
    assert run.warmup * run.steps == pytest.approx(EPOCH * warmup)
    assert run.cooldown * run.steps == pytest.approx(EPOCH * 10)
    assert (run.floor * lr, run.clip, run.ema) == pytest.approx((lowest, clip, ema))
    setting = replace(MODELS[run.workload].setting, **run.training or {})
    assert (setting.stochastic_depth, setting.decay_all, setting.repeats) == (depth, all_decays, max(1, repeats))
    found = setting.magnitude, setting.mixup, setting.cutmix, setting.erasing, setting.smoothing
    assert found == (magnitude, mixup, 1.0, erasing, smoothing)
    assert setting.loss == ("bce" if bce else "ce")


@pytest.mark.parametrize("line", GLUE.strip().splitlines())
def test_glue_has_the_settings_of_the_authors(line: str) -> None:
    column, row, lr, betas, decay, clip, schedule = line.split()
    run = config("bert", row.replace("_", " "), column.replace("_", " "))
    own = {"eps": 1e-8} if row == "Adan" else {"eps": 1e-6, "decoupled_weight_decay": True}
    pair = [float(b) for b in betas.split(",")]
    assert run.settings == {"lr": float(lr), "betas": pair, "weight_decay": float(decay), **own}
    assert (run.clip, run.schedule) == (float(clip), schedule)


# The figures that the paper marks as quoted from others, from its LaTeX source.
QUOTED = """
cnn 79.8* 81.3* 82.1⋄ 83.1⋄
resnet18 63.79* 67.62* 67.93* 68.13* 70.08* 70.23*
vit-swin 79.9* 81.8* 81.2⋄ 83.2⋄ 83.5⋄
mae 82.9* 83.6⋄ 85.4⋄ 85.9⋄
deformable-detr 43.8* 47.7* 62.6* 44.5⋄ 48.9⋄ 63.2⋄
mask-rcnn 41.7⋄ 44.9⋄ 46.2⋄ 50.8⋄ 65.0⋄ 68.1⋄
transformer-xl 24.2*
vit-s 79.9*
settings 79.9*
"""


def test_quoted_figures_are_marked_as_in_the_paper() -> None:
    found = {
        name: sorted(value for row in table.rows for value in row.values if value and value[-1] in table.marks)
        for name, table in tables().items()
    }
    expected = {name: sorted(values) for name, *values in map(str.split, QUOTED.strip().splitlines())}
    assert {name: values for name, values in found.items() if values} == expected


# GLUE: max_update, warmup_updates, max_epoch and batch_size of the authors' NLP/BERT/config/finetuning/*.yaml


@pytest.mark.parametrize(
    ("task", "updates", "warmup", "adam_batch"),
    [("MNLI, first", 123_873, 7432, 32), ("QNLI", 33_112, 1986, 32), ("QQP", 113_272, 28_318, 32),
     ("RTE", 2036, 122, 16), ("SST-2", 20_935, 1256, 32), ("CoLA", 5336, 320, 16), ("STS-B", 3598, 214, 16)],
)  # fmt: skip
def test_glue_has_the_updates_of_the_authors(task: str, updates: int, warmup: int, adam_batch: int) -> None:
    """Of either optimizer, whatever its batch; no more than ten epochs, each with a look at the development split."""
    for row, batch in (("Adam (reproduced)", adam_batch), ("Adan", 32 if task == "SST-2" else 16)):
        run = config("bert", row, task)
        assert (run.batch_size, run.steps, round(run.warmup * run.steps)) == (batch, updates, warmup)
        (size,) = (kind.size for kind in KINDS if f"glue-{kind.name}" == run.workload)
        assert run.eval_every == pytest.approx(size / batch, abs=1)
        assert (run.stop_after or run.steps) == min(updates, 10 * math.ceil(size / batch))


def test_glue_is_three_fine_tunings_of_one_pre_training() -> None:
    for row in ("Adam (reproduced)", "Adan"):
        cell, other = (planned("bert")[row, column] for column in ("CoLA", "RTE"))
        assert list(cell.seeds) == [0, 1, 2]
        assert len({cell.arm.start_path(seed) for seed in cell.seeds} | {other.arm.start_path(2)}) == 1
    assert planned("mae")["Adan", "MAE ViT-B, 800 epochs"].arm.start is not None


def evaluations(tmp_path: Path, *lines: dict[str, float]) -> RunRecord:
    metrics: list[dict[str, Any]] = [{"kind": "eval", "seconds": 0.0, "step": i, **x} for i, x in enumerate(lines)]
    return RunRecord(tmp_path, RunConfig(scale="paper"), {}, {}, {}, metrics, {"final": metrics[-1]})


def test_checkpoints_of_glue_are_chosen_as_fairseq_does(tmp_path: Path) -> None:
    """CoLA's by accuracy and STS-B's by loss, though another number is reported."""
    record = evaluations(tmp_path, {"accuracy": 0.8, "matthews": 0.5}, {"accuracy": 0.7, "matthews": 0.6})
    assert figure_of(record, "matthews", planned("bert")["Adan", "CoLA"]) == 0.5
    record = evaluations(tmp_path, {"loss": 0.2, "pearson": 0.8}, {"loss": 0.1, "pearson": 0.7}, {"loss": 0.3})
    assert figure_of(record, "pearson", planned("bert")["Adan", "STS-B"]) == 0.7


@pytest.mark.usefixtures("inline_pool")
def test_medians(regressions: Path, tmp_path: Path) -> None:
    """Of a cell, of the average over a row, and of the order among rows."""
    columns = [{"head": "a", "workload": "later"}, {"head": "b", "workload": "later", "metric": "other"}]
    table = made_up([*columns, {"head": "average", "mean": True}], [ADAN], median=True, one_before=True)
    summary = reproduce([table], chosen(script=regressions), tmp_path, seeds=3)
    assert [path.name for path in (tmp_path / "runs" / "earlier").glob("*/*")] == ["seed-0"]
    values = sorted(cell(summary, "Adan", "a")["values"])
    assert cell(summary, "Adan", "average")["values"] == pytest.approx([(values[1] + 7) / 2])
    rows = [{"head": name, "optimizer": "adan", "values": [value]} for name, value in (("x", "2.0"), ("y", "1.0"))]
    pair = made_up(columns[:1], rows, median=True)
    common: dict[str, Any] = {"column": "a", "optimizer": "adan", "workload": "later", "seeds": 3, "metric": "share"}
    cells = [CellRecord(row=name, values=v, **common) for name, v in (("x", [0.1, 0.6, 0.7]), ("y", [0.5, 0.5, 0.9]))]
    shown = {"scale": "paper", "tables": [{"name": "made-up", "cells": [one.to_json() for one in cells]}]}
    (section,) = report.sections(shown, {"made-up": pair})
    # the means have the other order: 0.47 and 0.63
    assert section.lines[0].cells[3:] == ["median 60.00 (10.00 to 70.00, n=3)", "1/2", "1/2"]


# Evaluations and seeds


def test_evaluations_are_as_far_apart_however_long_the_run() -> None:
    """DeepGCN's official code looks after every epoch of ten parts, Transformer-XL's every 4,000 steps."""
    for column, looks in (("500 epochs", 500), ("1000 epochs", 1000)):
        run = config("deepgcn", "Adan", column)
        assert (run.eval_every, run.steps // run.eval_every) == (10, looks)
    assert {config("transformer-xl", "Adan", f"{n}k steps").eval_every for n in (50, 100, 200)} == {4000}
    assert {config("gpt2", row, "validation loss").eval_every for row in ("Adam, 300k steps", "Adan, 150k steps")} == {
        1000
    }
    adamw, adan, sam = (
        config("cnn", *at)
        for at in (
            ("AdamW", "ConvNeXt-T, 150 epochs"),
            ("Adan", "ConvNeXt-T, 300 epochs"),
            ("SAM", "ResNet-50, 100 epochs"),
        )
    )
    assert (adamw.eval_every, adan.eval_every, sam.eval_every) == (3125, 6250, 12_500)  # ten epochs each
    workload = get_workload("transformer-xl", "paper")
    run = complete(workload, get_optimizer("adan"), RunConfig(scale="paper", steps=50_000))
    assert run.eval_every == 4000
    smoke = complete(get_workload("transformer-xl"), get_optimizer("adan"), RunConfig(steps=60))
    assert smoke.eval_every == 20  # where nothing is published, as many looks in fewer steps


def test_every_corpus_has_a_folder_of_its_own() -> None:
    """RedPajama-v2 for the mixtures of experts, books and Wikipedia for BERT, The Stack for GPT-2."""
    folders = {"moe": "redpajama", "moe-8x0.6b": "redpajama", "bert-pretrain": "text", "gpt2-code": "code"}
    assert {name: get_workload(name, "paper").needs for name in folders} == {n: (f,) for n, f in folders.items()}


def test_ppo_has_the_seeds_of_the_paper() -> None:
    """Results on Reinforcement Learning Tasks: ten seeds, 1 to 10."""
    assert list(planned("ppo")["Adan", "Ant"].seeds) == [*range(1, 11)]


# Recipes


@pytest.mark.parametrize(
    ("table", "rows"),
    [("batch-size", ["LAMB"]), ("settings", ["AdamW"]), ("vit-s", ["Adam", "Adai", "SGD-M", "LAMB"]),
     ("cnn", ["SGD-M", "SAM", "Adam", "AdamW"])],
)  # fmt: skip
def test_rivals_have_the_augmentation_and_loss_of_adan(table: str, rows: list[str]) -> None:
    """Where no source shows another recipe: the paper says that only the optimizer was replaced."""
    compared = 0
    for (row, column), found in planned(table).items():
        own, adan = found.arm.base, config(table, "Adan", column)
        if row in rows and "Setting II" not in column and "ConvNeXt" not in column:
            setting = MODELS[own.workload].setting
            assert replace(setting, **own.training or {}) == replace(setting, **adan.training or {}), (row, column)
            compared += 1
    assert compared >= 2


@pytest.mark.parametrize("table", ["cnn", "vit-s", "batch-size"])
def test_timms_lamb_clips_at_1(table: str) -> None:
    """Its own max_grad_norm; the authors' CV/timm/optim_factory.py takes timm's LAMB."""
    assert {found.arm.base.clip for (row, _), found in planned(table).items() if row == "LAMB"} == {1.0}


@pytest.mark.parametrize("table", ["cnn", "vit-swin", "vit-s", "batch-size", "settings"])
def test_epochs_that_the_columns_do_not_count_are_said(table: str) -> None:
    """Ten of Adan's, by the cooldown_epochs of the authors' configurations."""
    more = {row for (row, _), found in planned(table).items() if found.arm.base.cooldown}
    assert more == {"Adan"}
    assert any("ten epochs at their lowest rate" in note for note in tables()[table].notes)


def test_rows_that_quote_a_recipe_say_whose() -> None:
    for table, row, column, source in (
        ("vit-s", "AdamW (default)", "300 epochs", "facebookresearch/deit"),
        ("settings", "AdamW", "Setting II, 300 epochs", "facebookresearch/deit"),
        ("cnn", "LAMB", "ResNet-50, 300 epochs", "procedure A2 of Wightman et al. 2021"),
    ):
        found = planned(table)[row, column]
        assert found.arm.base.training["repeats"] == 3
        assert source in found.arm.base.origin.source
        assert any("three repeats" in note for note in found.table.notes), table


def test_evaluation_crops() -> None:
    """`crop_pct` of the authors' configurations; null is timm's own for the model (July 2022)."""
    centers = {"resnet50": 0.95, "vit-s": 0.9, "vit-s-setting-i": 0.9, "vit-b": 0.9, "convnext-t": 0.95}
    assert {name: MODELS[name].setting.center for name in centers} == centers
    for table in ("cnn", "vit-s", "vit-swin", "batch-size", "settings", "restart"):
        assert not any("center" in (found.arm.base.training or {}) for found in planned(table).values())


def test_the_last_norm_of_a_published_resnets_blocks_starts_at_zero() -> None:
    """As in timm (`zero_init_last`); ResNet-18 is He et al.'s, and smaller scales are as they were recorded."""
    from adan_bench.data.images import ImageData
    from adan_bench.workloads.parts.networks import BUILDERS

    def last_norms(name: str, size: int) -> list[bool]:
        sizes = ImageSizes(8, (1, 2, 1, 1), 0, 0, 0, 0.02)
        data: Any = ImageData(size, 3, 10, *[lambda *_: None] * 4, "")
        network = BUILDERS[MODELS[name].family](MODELS[name].setting, sizes, data)
        norms = [block.layer for stage in network.resnet.encoder.stages for block in stage.layers]
        last = [[m for m in layer.modules() if isinstance(m, torch.nn.BatchNorm2d)] for layer in norms]
        assert all(bool((norm.weight == 1).all()) for all_of_block in last for norm in all_of_block[:-1])
        return [bool((of_block[-1].weight == 0).all()) for of_block in last]

    assert last_norms("resnet50", 224) == [True] * 5
    assert last_norms("resnet101", 224) == [True] * 5
    assert not any(last_norms("resnet18", 224) + last_norms("resnet50", 32))


# Learning rates that no source has


def test_rates_without_a_source_are_chosen_by_trials() -> None:
    """Under a loss that is a mean over 1,000 classes: SGD-M and SAM in Table 2, SGD-M and Adai in Table 16."""
    cells = {("cnn", row): column for row in ("SAM", "SGD-M") for column in ("ResNet-50, 100 epochs",)}
    cells |= {("vit-s", row): "300 epochs" for row in ("SGD-M", "Adai")}
    for (table, row), column in cells.items():
        arm = planned(table)[row, column].arm
        rates = [trial.base.settings["lr"] for trial in arm.choosers]
        assert len(rates) == 5
        assert max(rates) / min(rates) == 256
        assert all(trial.base.role == "tune" and trial.seeds == [1000] for trial in arm.choosers)
        assert all(trial.base.steps == arm.base.steps // 10 and not trial.choosers for trial in arm.choosers)
        assert "lr" in arm.base.origin.guesses
        assert "trials choose" in arm.base.origin.source
    twelve = [found for (row, column), found in planned("cnn").items() if row in ("SAM", "SGD-M")]
    assert len(twelve) == 12
    assert all(found.arm.choosers for found in twelve)
    assert not config("vit-s", "AdamW (default)", "300 epochs").origin.trials


def trial_table(**more: Any) -> Any:
    stated = {"optimizer": "adan", "settings": {"lr": 0.5}, "source": "here", "guess": "lr", "min_lr": 0.005}
    return made_up(
        [{"head": "a", "workload": "plain"}], [ADAN], settings=[{**stated, "rates": [0.1, 0.2, 0.4], **more}]
    )


def test_the_best_trial_gives_the_rate(regressions: Path, tmp_path: Path) -> None:
    """Diverged ones do not count; where all diverge the cell says so. The lowest rate stays what it was."""
    options = chosen(script=regressions, scale="paper")
    found = plan([trial_table()], options, tmp_path, seeds=1)
    arm = found.cells[0].arm
    assert [trial.base.settings["lr"] for trial in arm.choosers] == [0.1, 0.2, 0.4]

    def write(trial: PaperArm, status: str, share: float) -> None:
        store, facts = RunStore(trial.path(1000)), get_workload("plain", "paper").facts()
        store.create(trial.base, facts, {"name": "adan", "passes": 1}, {})
        store.append({"kind": "eval", "step": 60, "seconds": 1.0, "share": share})
        store.finish({"status": status, "step": 60, "seconds": 1.0, "final": {"share": share}, "best": None})

    arm.settle()
    assert not arm.settled
    assert "was not run" in arm.blocked(0)[1]
    for trial, status, share in zip(arm.choosers, ("finished", "finished", "diverged"), (0.5, 0.7, 0.9), strict=True):
        write(trial, status, share)
    assert arm.blocked(0) is None
    arm.settle()
    config = arm.base
    assert (config.settings["lr"], config.origin.trials, config.origin.at_edge) == (0.2, 3, False)
    assert config.floor * config.settings["lr"] == pytest.approx(0.005)
    again = plan([trial_table(rates=[3.0, 4.0])], options, tmp_path, seeds=1)
    for trial in again.cells[0].arm.choosers:
        write(trial, "diverged", 0.0)
    assert collect(again.cells[0], {}).why == "all 2 trials of its learning rate diverged"


def test_a_rate_that_is_given_is_not_looked_for(regressions: Path, tmp_path: Path) -> None:
    options = chosen(script=regressions, scale="paper")
    for changed, rate, trials in (({"lr": 0.3}, 0.3, 0), ({"eps": 0.1}, 0.5, 3)):
        arm = plan([trial_table()], options, tmp_path, seeds=1, changed={"adan": changed}).cells[0].arm
        assert (arm.base.settings["lr"], len(arm.choosers)) == (rate, trials)


@pytest.mark.usefixtures("inline_pool")
def test_trials_are_run_before_their_run(regressions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adan_bench.studies.plan.TRIAL", 30)
    summary = reproduce([trial_table(steps=60)], chosen(script=regressions, scale="paper"), tmp_path, seeds=1)
    found = cell(summary, "Adan", "a")
    assert found["status"] == "done", found["why"]
    assert found["config"]["settings"]["lr"] in (0.1, 0.2, 0.4)
    assert found["config"]["origin"]["trials"] == 3
    assert len(list((tmp_path / "trials").rglob("result.json"))) == 3
    (section,) = report.sections(summary, {"made-up": trial_table()})
    assert "here, lr chosen by 3 trials" in section.settings[0][1]


def test_guesses_about_humaneval_are_said() -> None:
    how = {**ASKED, **HUMANEVAL["paper"]}
    (note,) = (note for note in tables()["gpt2"].notes if "HumanEval as in" in note)
    assert f"{how['samples']} samples of at most {how['tokens']} tokens each are guesses" in note
