"""The image models: published sizes at paper scale, learning at smoke scale, the settings in place."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.learning import sizes, trainer

from adan_bench.data.augment import StochasticDepth
from adan_bench.data.batching import epoch_order
from adan_bench.data.images import image_data
from adan_bench.data.settings import SETTING_I, SETTING_II, Setting
from adan_bench.training.schedules import schedule
from adan_bench.workloads.images import MODELS
from adan_bench.workloads.parts.networks import BUILDERS
from adan_bench.workloads.registry import get_workload


@pytest.mark.parametrize("name", ["resnet50", "convnext-t", "vit-s", "swin-t"])
def test_small_images_fit_the_models_at_full_width(name: str) -> None:
    data: Any = SimpleNamespace(size=32, channels=3, classes=1000)
    model = BUILDERS[MODELS[name].family](MODELS[name].setting, sizes(name, "small"), data).eval()
    with torch.no_grad():
        assert model(torch.zeros(1, 3, 32, 32)).logits.shape == (1, 1000)


def test_stochastic_depth_grows_to_the_setting_s() -> None:
    for name, largest in (("resnet50", 0.05), ("vit-s", 0.1), ("vit-s-setting-i", 0.05), ("swin-t", 0.2)):
        shares = [m.share for m in trainer(name, "adan").model.modules() if isinstance(m, StochasticDepth)]
        assert shares[0] == 0.0
        assert shares[-1] == pytest.approx(largest)
        assert shares == sorted(shares)
    swin = trainer("swin-b", "adan").model
    assert max(getattr(m, "drop_prob", 0.0) for m in swin.modules()) == pytest.approx(0.5)


def test_what_decays_and_what_is_clipped() -> None:
    assert trainer("resnet50", "adan").task.max_grad_norm == 5.0
    assert len(trainer("resnet50", "adan").optimizer.param_groups) == 1
    vit = trainer("vit-s", "adamw")
    assert vit.task.max_grad_norm is None
    assert [group["weight_decay"] for group in vit.optimizer.param_groups] == [0.02, 0.0]
    assert trainer("vit-s", "adam").optimizer.param_groups[0]["weight_decay"] == 0.0


def test_the_note_says_what_ran() -> None:
    note = trainer("vit-s", "adan").task.note
    for part in ("digits", "Training Setting II", "Mixup 0.8 or CutMix 1.0", "Random Erasing 0.25", "smoothing 0.1"):
        assert part in note
    assert "RandAugment" not in note


def test_budgets_of_the_paper() -> None:
    vit, eighteen = get_workload("vit-s", "paper"), get_workload("resnet18", "paper")
    assert (vit.steps, vit.batch_size) == (300 * 625, 2048)
    assert (eighteen.steps, eighteen.batch_size) == (90 * 5004, 256)
    cifar = get_workload("cifar-resnet34", "paper")
    factor = schedule("step", cifar.steps)
    assert (cifar.steps, cifar.batch_size) == (200 * 390, 128)
    assert [factor(390 * epoch) for epoch in (0, 149, 150, 199)] == [1.0, 1.0, 0.1, 0.1]


def test_options_of_a_published_run() -> None:
    """The fields of its training setting give way to those of a run."""
    options = {"stochastic_depth": 0.3, "decay_all": True, "loss": "bce", "repeats": 3}
    task = get_workload("vit-s").task(batch_size=8, training=options)
    assert "binary cross entropy" in task.note
    assert task.groups is None
    assert get_workload("vit-s").task(batch_size=8).groups is not None


def test_augmentation_and_clipping_of_a_published_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options of the run, else of the model, reach the images that it trains on and is evaluated by."""
    seen: list[Setting] = []

    def data(context: Any, setting: Setting) -> Any:
        seen.append(setting)
        return image_data(context, setting)

    monkeypatch.setattr("adan_bench.workloads.parts.classification.image_data", data)
    get_workload("vit-s").task(batch_size=8, training={"repeats": 3, "magnitude": 7, "center": 0.8})
    assert get_workload("resnet50").task(batch_size=8).max_grad_norm == 5.0
    assert seen == [
        replace(SETTING_II, magnitude=7, center=0.8, repeats=3, stochastic_depth=0.1),
        replace(SETTING_I, center=0.95, stochastic_depth=0.05, max_grad_norm=5.0, decay_all=True),
    ]


def test_repeated_augmentation() -> None:
    """Each image comes three times in a row, in an epoch of the usual length."""
    order = epoch_order(12, 6, seed=0, repeats=3)
    batches = [order(position).tolist() for position in (0, 1)]
    for batch in batches:
        assert [batch[0]] * 3 + [batch[3]] * 3 == batch
    assert len({image for batch in batches for image in batch}) == 4
    whole = [epoch_order(12, 12, seed=seed)(epoch).tolist() for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    assert len({*map(tuple, whole)}) == 3  # another order in every epoch and with every seed
    assert [sorted(order) for order in whole] == [list(range(12))] * 3
