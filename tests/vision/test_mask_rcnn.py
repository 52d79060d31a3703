"""Mask R-CNN: it learns, resumes exactly, reads COCO's folder, takes a pre-trained backbone, has the published size."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.coco_folder import write_coco
from support.learning import falls, resize, resumes, trainer

from adan_bench.errors import UsageError
from adan_bench.workloads.detection import RCNN_PAPER, RCNN_SMOKE
from adan_bench.workloads.parts import mask_rcnn as rcnn


@pytest.mark.parametrize("optimizer", ["adan", "adamw"])
def test_learns(optimizer: str) -> None:
    assert falls("mask-rcnn", optimizer) < 0.8


def test_resumes_exactly() -> None:
    assert resumes(lambda: trainer("mask-rcnn", steps=6))


def test_detects_shapes() -> None:
    found = trainer("mask-rcnn", steps=60)
    before = found.evaluate()
    for _ in range(60):
        found.update()
    after = found.evaluate()
    assert after.keys() == {f"{kind} {name}" for kind in ("mask", "box") for name in ("AP", "AP50", "AP75")}
    assert before["mask AP"] < 0.02
    assert after["mask AP"] > 0.1
    assert after["box AP"] > 0.1


def test_published_size() -> None:
    """ConvNeXt-T without its classifier has 27.8 million parameters; MMDetection's Mask R-CNN with it 48 million."""
    with torch.device("meta"):
        model: Any = rcnn.build(RCNN_PAPER, 80)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(48e6, rel=0.01)
    assert sum(p.numel() for p in model.backbone.body.parameters()) == pytest.approx(27.8e6, rel=0.01)
    names = [name for name, _ in model.named_parameters()]
    assert {rcnn.layer(name) for name in names} == set(range(8))
    assert rcnn.layer("backbone.body.embeddings.patch_embeddings.weight") == 0
    assert rcnn.layer("backbone.body.encoder.stages.2.layers.8.dwconv.weight") == 5
    assert rcnn.layer("backbone.body.encoder.stages.3.downsampling_layer.1.weight") == 6
    assert rcnn.layer("backbone.body.hidden_states_norms.stage1.weight") == 7
    assert rcnn.layer("backbone.fpn.inner_blocks.0.0.weight") == 7


def test_reads_the_folder_of_coco(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_coco(tmp_path)
    resize(monkeypatch, "mask-rcnn", replace(RCNN_SMOKE, sides=RCNN_PAPER.sides, anchor=RCNN_PAPER.anchor))
    found = trainer("mask-rcnn", data=tmp_path, scale="paper", batch_size=2, steps=2)
    for example in found.task.batches(0):
        assert min(example["pixels"].shape[1:]) >= 480
        assert example["masks"].shape[1:] == example["pixels"].shape[1:]
        assert example["labels"].min() >= 1
    found.update()
    assert found.evaluate().keys() >= {"mask AP", "box AP"}
    assert found.task.note.startswith("COCO: 4 images to train")


def test_pretrained_backbone(tmp_path: Path) -> None:
    import transformers

    config = transformers.ConvNextConfig(depths=RCNN_SMOKE.depths, hidden_sizes=RCNN_SMOKE.widths, num_labels=5)
    classifier = transformers.ConvNextForImageClassification(config)
    torch.save(classifier.state_dict(), tmp_path / "weights.pt")
    found = trainer("mask-rcnn", init=tmp_path)
    given = classifier.convnext.state_dict()
    own = {n: v for n, v in found.model.backbone.body.state_dict().items() if "hidden_states_norms" not in n}
    assert all(torch.equal(value, given[name]) for name, value in own.items())
    rates = {round(lr / max(found.updater.base_lr), 4) for lr in found.updater.base_lr}
    assert {1.0, 0.95, round(0.95**7, 4)} <= rates
    for group in found.optimizer.param_groups:
        assert (group["weight_decay"] == 0) == all(p.dim() == 1 for p in group["params"])


def test_without_torchvision_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(UsageError, match=r"needs the package torchvision; run: pip install '\.\[paper,vision\]'"):
        trainer("mask-rcnn")
