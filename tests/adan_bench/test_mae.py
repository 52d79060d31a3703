"""MAE: the published sizes, what is hidden, and that fine-tuning begins where pre-training ended."""

from __future__ import annotations

from math import cos, sin
from pathlib import Path
from typing import Any

import pytest
import torch
from support.learning import prepared, settings, trainer

from adan_bench.errors import UsageError
from adan_bench.records.store import RunStore
from adan_bench.training.trainer import run
from adan_bench.workloads.parts.mae import waves


def test_masks_depend_on_the_position_and_evaluation_on_nothing() -> None:
    found = trainer("mae-pretrain-vit-b")
    one, two = (prepared(found.task, 3, "cpu") for _ in range(2))
    assert torch.equal(one[1], two[1])
    assert not torch.equal(one[1], prepared(found.task, 4, "cpu")[1])
    before = torch.get_rng_state()
    assert found.evaluate() == found.evaluate()
    assert torch.equal(before, torch.get_rng_state())
    mask = found.model(*one[:1], noise=one[1]).mask
    assert mask.mean().item() == 0.75


def test_places_differ_at_the_start() -> None:
    """Were the embeddings of position left at 0, the best prediction would be the same everywhere."""
    model: Any = trainer("mae-pretrain-vit-b").model
    for table in (model.vit.embeddings.position_embeddings, model.decoder.decoder_pos_embed):
        assert not table.requires_grad
        assert torch.count_nonzero(table[0, 0]) == 0
        assert torch.pdist(table[0]).min().item() > 0.5
    assert model.decoder.mask_token.std().item() == pytest.approx(0.02, rel=0.3)
    for layer in (module for module in model.modules() if isinstance(module, torch.nn.Linear)):
        limit = (6 / sum(layer.weight.shape)) ** 0.5  # Xavier's
        assert 0.8 * limit < layer.weight.abs().max().item() <= limit
        assert not layer.bias.any()
    assert waves(2, 4).tolist() == [pytest.approx([sin(x), cos(x), sin(y), cos(y)]) for y in (0, 1) for x in (0, 1)]


def test_fine_tuning_begins_where_pre_training_ended(tmp_path: Path) -> None:
    run(settings("mae-pretrain-vit-b", steps=3, keep_weights=True), RunStore(tmp_path / "b"))
    weights = torch.load(tmp_path / "b" / "weights.pt", weights_only=True)
    found = trainer("mae-finetune-vit-b", init=tmp_path / "b")
    assert found.workload.after == "mae-pretrain-vit-b"
    assert found.task.note.endswith("from pre-trained weights")
    state = found.model.state_dict()
    shared = [name for name in state if name.startswith("vit.")]
    assert len(shared) > 30
    assert all(torch.equal(state[name], weights[name]) for name in shared)
    assert trainer("mae-finetune-vit-b").task.note.endswith("from random weights")
    with pytest.raises(UsageError, match=r"its weights are not those of this encoder \(.*; name a run of the pre-tr"):
        trainer("mae-finetune-vit-l", init=tmp_path / "b")


def test_learning_rates_fall_towards_the_input() -> None:
    found = trainer("mae-finetune-vit-b")
    rates = {id(p): group["lr"] for group in found.optimizer.param_groups for p in group["params"]}
    assert len(rates) == len(list(found.model.parameters()))
    lr = found.config.settings["lr"]
    assert found.optimizer.param_groups[0]["lr"] == lr
    model: Any = found.model
    assert rates[id(model.head.weight)] == rates[id(model.norm.weight)] == lr
    assert rates[id(model.vit.embeddings.cls_token)] == pytest.approx(lr * 0.65**3)  # two blocks, then the head
    shares = sorted({round(rate / lr, 6) for rate in rates.values()})
    assert shares == pytest.approx([0.65**3, 0.65**2, 0.65, 1.0], abs=1e-6)
    assert {group["weight_decay"] for group in found.optimizer.param_groups} == {0.0, 0.02}
