"""COCO's format: a folder as COCO is unpacked, generated scenes, augmentation, scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.coco_folder import write_coco

from adan_bench.data.coco import (
    Coco,
    View,
    average_precision,
    batches,
    detr_view,
    folder,
    held_out,
    padded,
    scaled,
    splits,
    whole,
)
from adan_bench.data.coco import scenes as make_scenes
from adan_bench.data.files import COCO
from adan_bench.errors import UsageError
from adan_bench.task import Context
from adan_bench.workloads.registry import get_workload


@pytest.fixture
def scenes() -> Coco:
    return make_scenes(8, 64, seed=0)


def results(coco: Coco, shift: float = 0.0) -> list[dict[str, Any]]:
    """The annotations as a detector would give them, moved by some pixels."""
    return [
        {
            "image_id": a["image_id"],
            "category_id": a["category_id"],
            "bbox": [a["bbox"][0] + shift, *a["bbox"][1:]],
            "segmentation": coco.index.annToRLE(a),
            "score": 0.9,
        }
        for a in coco.index.dataset["annotations"]
    ]


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_average_precision(scenes: Coco, kind: str) -> None:
    perfect = results(scenes)
    assert average_precision(scenes, perfect, kind) == pytest.approx({"AP": 1, "AP50": 1, "AP75": 1})
    assert average_precision(scenes, [], kind) == {"AP": 0, "AP50": 0, "AP75": 0}
    wrong = [{**found, "category_id": found["category_id"] % 3 + 1} for found in perfect]
    assert average_precision(scenes, wrong, kind)["AP"] == 0
    if kind == "bbox":
        moved = average_precision(scenes, results(scenes, shift=3.0), kind)
        assert moved["AP50"] > moved["AP"] > 0
        assert moved["AP75"] < 1


def test_sizes() -> None:
    assert scaled((640, 480)) == (1067, 800)
    assert scaled((480, 640), 512) == (512, 683)
    assert scaled((2000, 500)) == (1333, 333)


def test_boxes_and_masks_move_together(scenes: Coco) -> None:
    """In every view, the mask of a shape fills its box."""
    cut = 0
    for i, image_id in enumerate(scenes.ids):
        draws = torch.rand(8, generator=torch.Generator().manual_seed(i))
        view = detr_view(scenes.size(image_id), draws)
        cut += view.window != (0, 0, 64, 64)
        example = scenes.example(image_id, view, masks=True)
        assert example["pixels"].shape[1:] == (view.size[1], view.size[0]) == example["masks"].shape[1:]
        factor = view.size[0] / (view.window[2] - view.window[0])
        for box, mask in zip(example["boxes"], example["masks"], strict=True):
            rows, columns = mask.any(1).nonzero(), mask.any(0).nonzero()
            found = torch.stack([columns[0, 0], rows[0, 0], columns[-1, 0] + 1, rows[-1, 0] + 1])
            assert (found - box).abs().max() <= max(1.5, 0.1 * factor)
    assert cut > 0


def test_mirrored(scenes: Coco) -> None:
    image_id = scenes.ids[0]
    plain = scenes.example(image_id, whole((64, 64)), masks=True)
    other = scenes.example(image_id, View((0, 0, 64, 64), (64, 64), flip=True), masks=True)
    assert torch.equal(other["pixels"], plain["pixels"].flip(2))
    assert torch.equal(other["boxes"][:, 0], 64 - plain["boxes"][:, 2])
    differ = (other["masks"] != plain["masks"].flip(2)).float().mean()
    assert differ < 0.02  # pycocotools rounds the edges of polygons to one side


def test_run_lengths_and_crowds(scenes: Coco) -> None:
    content = json.loads(json.dumps(scenes.index.dataset))
    for annotation in content["annotations"]:
        found = scenes.index.annToRLE(annotation)
        annotation["segmentation"] = {"size": found["size"], "counts": found["counts"].decode()}
    crowd = content["annotations"][0]
    crowd["iscrowd"] = 1
    other = Coco(content, scenes.read)
    view = View((4, 4, 60, 60), (112, 112), flip=True)
    for image_id in scenes.ids:
        a, b = (coco.example(image_id, view, masks=True) for coco in (scenes, other))
        if image_id == crowd["image_id"]:
            assert len(b["labels"]) == len(a["labels"]) - 1
        else:
            assert torch.equal(a["boxes"], b["boxes"])
            assert (a["masks"] != b["masks"]).float().mean() < 0.02


def test_in_memory_is_scaled_with_its_boxes(scenes: Coco) -> None:
    """As if every image had been scaled when it was read."""
    small = scenes.in_memory((48, 32))
    assert small.ids == scenes.ids
    for image_id in scenes.ids:
        assert small.size(image_id) == (48, 32)
        for flip in (False, True):
            a = scenes.example(image_id, View((0, 0, 64, 64), (48, 32), flip))
            b = small.example(image_id, View((0, 0, 48, 32), (48, 32), flip))
            assert torch.equal(a["pixels"], b["pixels"])
            assert torch.equal(a["labels"], b["labels"])
            assert torch.allclose(a["boxes"], b["boxes"], atol=1e-4)
    found = [{**a, "score": 0.9} for a in small.index.dataset["annotations"]]
    assert average_precision(small, found, "bbox")["AP"] == pytest.approx(1)


def test_subset(scenes: Coco) -> None:
    some = scenes.subset(scenes.ids[::3])
    assert some.ids == scenes.ids[::3]
    assert {a["image_id"] for a in some.index.dataset["annotations"]} <= set(some.ids)
    assert average_precision(some, results(some), "bbox")["AP"] == pytest.approx(1)
    assert len(scenes.ids) == 8


def test_batches_are_a_function_of_the_position(tmp_path: Path) -> None:
    """Read ahead by threads, augmented as published, in any order."""
    write_coco(tmp_path)
    coco = folder(tmp_path / COCO[0])
    context = Context(0, 2, tmp_path, scale="paper")
    forth, back = batches(coco, context, masks=True), batches(coco, context, masks=True)
    expected = [forth(i) for i in range(5)]
    for i in reversed(range(5)):
        for a, b in zip(expected[i], back(i), strict=True):
            assert all(torch.equal(torch.as_tensor(a[key]), torch.as_tensor(b[key])) for key in a)
    assert {min(e["pixels"].shape[1:]) for batch in expected for e in batch} <= set(range(480, 801, 32))
    assert sorted(e["image_id"] for batch in expected[:2] for e in batch) == coco.ids  # an epoch


def test_images_without_annotations_train_one_detector_alone(tmp_path: Path) -> None:
    """MMDetection leaves them out for Mask R-CNN (filter_empty_gt), and not for Deformable-DETR."""
    write_coco(tmp_path)
    for name in COCO:
        content = json.loads((tmp_path / name).read_bytes())
        content["annotations"] = [a for a in content["annotations"] if a["image_id"] != 2]
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    for masks, ids in ((True, [1, 3, 4]), (False, [1, 2, 3, 4])):
        train, held_out, note = splits(Context(0, 2, tmp_path, scale="paper"), (64, 4, 4), masks)
        assert (train.ids, held_out.ids) == (ids, [1, 2, 3, 4])
        assert f"COCO: {len(ids)} images to train, 4 held out" in note
    epochs = {name: get_workload(name, "paper") for name in ("mask-rcnn", "deformable-detr")}
    assert epochs["mask-rcnn"].steps == 36 * 117_266 // 16
    assert epochs["deformable-detr"].steps == 50 * 118_287 // 32


def test_held_out_and_padded(scenes: Coco) -> None:
    parts = list(held_out(scenes, 3, lambda size: View((0, 0, *size), (32, 48))))
    assert [e["image_id"] for part in parts for e in part] == scenes.ids
    small = scenes.example(scenes.ids[0], whole((64, 64)))
    pixels, there = padded([small, parts[0][0]])
    assert pixels.shape == (2, 3, 64, 64)
    assert there.sum((1, 2)).tolist() == [64 * 64, 32 * 48]
    assert torch.equal(pixels[1, :, :48, :32], parts[0][0]["pixels"])


def test_damage_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no coco/annotations/instances_train2017.json"):
        Context(0, 2, tmp_path).path(COCO[0])
    write_coco(tmp_path)
    coco = folder(tmp_path / COCO[0])
    picture = tmp_path / "coco" / "train2017" / coco.index.imgs[coco.ids[0]]["file_name"]
    picture.write_bytes(picture.read_bytes()[:200])
    with pytest.raises(UsageError, match=r"\.jpg: missing or no image .*; unpack train2017.zip again"):
        coco.example(coco.ids[0], whole((64, 64)))
    for text in ("{", "[]", '{"images": []}', '{"images": [], "annotations": [], "categories": []}'):
        (tmp_path / COCO[0]).write_text(text, encoding="utf-8")
        with pytest.raises(UsageError, match=r"instances_train2017.json: "):
            folder(tmp_path / COCO[0])
    (tmp_path / "coco" / "val2017").rename(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=r"describes images of the folder .*val2017, which is not there"):
        folder(tmp_path / COCO[1])
