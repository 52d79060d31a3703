"""The authors' configurations, copied from their files by other means than the tables: every planned run has them.

sail-sg/Adan at commit 2c65bea: CV/timm/exp_results/**/args_*.yaml and NLP/BERT/config/finetuning/*.yaml.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from adan_bench.config import RunConfig
from adan_bench.studies.plan import plan
from adan_bench.tables import tables
from adan_bench.workloads.images import MODELS

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


@cache
def planned(table: str) -> dict[tuple[str, str], RunConfig]:
    cells = plan([tables()[table]], RunConfig(scale="paper"), Path("runs")).cells
    return {(cell.row.head, cell.column.head): cell.arm.base for cell in cells if cell.arm}


@pytest.mark.parametrize("line", TIMM.strip().splitlines())
def test_images(line: str) -> None:
    table, column, *values = line.split()
    run = planned(table)["Adan", column.replace("_", " ").replace(",", ", ") + " epochs"]
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
def test_glue(line: str) -> None:
    column, row, lr, betas, decay, clip, schedule = line.split()
    run = planned("bert")[row.replace("_", " "), column.replace("_", " ")]
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
