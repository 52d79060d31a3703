"""A tiny data folder laid out as COCO is unpacked, or BCCD: annotations as json, images as jpg."""

from __future__ import annotations

import json
from pathlib import Path

from adan_bench.data.coco import scenes
from adan_bench.data.files import COCO


def write_coco(data: Path, count: int = 4, files: tuple[str, ...] = COCO) -> None:
    for seed, name in enumerate(files):
        made = scenes(count, 64, seed)
        content = made.index.dataset
        images = (data / name).parents[1] / name.split("_")[-1].removesuffix(".json")
        images.mkdir(parents=True)
        for entry in content["images"]:
            picture = made.read(entry["file_name"])
            entry["file_name"] = entry["file_name"].replace(".png", ".jpg")
            picture.save(images / entry["file_name"], quality=95)
        (data / name).parent.mkdir(exist_ok=True)
        (data / name).write_text(json.dumps(content), encoding="utf-8")
