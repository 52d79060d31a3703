"""Deformable-DETR: it reads COCO's folder, takes a pre-trained backbone, and has the published size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.coco_folder import write_coco
from support.learning import resize, trainer

from adan_bench.data import coco
from adan_bench.data.files import BCCD
from adan_bench.errors import UsageError
from adan_bench.workloads.detection import DETR_SMOKE


def test_reads_the_folder_of_coco(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_coco(tmp_path)
    resize(monkeypatch, "deformable-detr", DETR_SMOKE)
    found = trainer("deformable-detr", data=tmp_path, scale="paper", batch_size=2, steps=2)
    batch = found.task.batches(0)
    assert batch["pixels"].shape[-2:] > (479, 479)
    for labels in batch["labels"]:
        assert ((labels["boxes"] > 0) & (labels["boxes"] <= 1)).all()
        assert len(labels["class_labels"]) == len(labels["boxes"])
    found.update()
    assert found.evaluate().keys() == {"box AP", "box AP50", "box AP75"}
    assert found.task.note == (
        "COCO: 4 images to train, 4 held out; the backbone starts at random "
        "(published: ResNet-50 of ImageNet, see --init)"
    )
    with pytest.raises(UsageError, match=r"needs coco/annotations/instances_train2017.json"):
        trainer("deformable-detr", scale="paper")


def test_reads_the_folder_of_bccd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_coco(tmp_path, files=BCCD)
    monkeypatch.setattr(coco, "PHOTOGRAPH", (96, 72))
    resize(monkeypatch, "deformable-detr", DETR_SMOKE, "small")
    found = trainer("deformable-detr", data=tmp_path, scale="small", batch_size=2, steps=2)
    assert found.task.batches(0)["pixels"].shape == (2, 3, 72, 96)
    found.update()
    assert found.evaluate().keys() == {"box AP", "box AP50", "box AP75"}
    assert found.task.note.startswith("BCCD, photographs of blood cells, 96×72 pixels: 4 to train, 4 held out; ")
    (tmp_path / BCCD[1]).unlink()
    resize(monkeypatch, "deformable-detr", replace(DETR_SMOKE, scenes=(32, 4, 2)), "small")
    assert "generated scenes" in trainer("deformable-detr", data=tmp_path, scale="small", batch_size=2).task.note


def test_pretrained_backbone(tmp_path: Path) -> None:
    import transformers

    config = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 64, 64], depths=[1, 1, 1, 1], layer_type="basic", num_labels=5
    )
    classifier = transformers.ResNetForImageClassification(config)
    torch.nn.init.uniform_(classifier.resnet.embedder.embedder.normalization.running_var, 0.5, 2)
    torch.save(classifier.state_dict(), tmp_path / "weights.pt")
    found = trainer("deformable-detr", init=tmp_path)
    backbone = found.model.model.backbone.model
    own, given = backbone.state_dict(), classifier.resnet.state_dict()
    assert all(torch.equal(value, given[name]) for name, value in own.items())
    fixed = {name for name, p in backbone.named_parameters() if not p.requires_grad}
    assert fixed
    assert all(name.startswith(("embedder", "encoder.stages.0")) for name in fixed)
    names = {id(p): name for name, p in found.model.named_parameters()}
    fast, slow = ({names[id(p)] for p in group["params"]} for group in found.optimizer.param_groups)
    assert "model.backbone.model.encoder.stages.3.layers.0.layer.0.convolution.weight" in slow
    assert any("sampling_offsets" in name for name in slow)
    assert not any("backbone" in name for name in fast)
    assert found.updater.base_lr[1] == pytest.approx(0.1 * found.updater.base_lr[0])
    assert "at random" not in found.task.note
    assert found.task.note.endswith("the backbone starts from the weights of --init")
