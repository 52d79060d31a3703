"""Images with boxes and masks in COCO's format: folders or generated scenes, batches, and scores by pycocotools."""

from __future__ import annotations

import contextlib
import io
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adan_bench.config import cores
from adan_bench.data.batching import decoders, epoch_order, generator, prefetch
from adan_bench.data.files import BCCD
from adan_bench.data.files import COCO as COCO_FILES
from adan_bench.errors import UsageError, reading
from adan_bench.task import Context

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, as both detectors take them
SHORT_SIDES = range(480, 801, 32)
LONG_SIDE = 1333
PHOTOGRAPH = (320, 240)  # pixels to which those of blood cells are scaled
HELD_OUT = 6  # from trials, one of so many images
SHAPES = {"circle": 16, "square": 4, "triangle": 3}  # corners

Example = dict[str, Any]


class Coco:
    """One split: images, annotations and categories as COCO's json has them, and how to read an image."""

    def __init__(self, content: Mapping[str, Any], read: Callable[[str], Any]) -> None:
        from pycocotools.coco import COCO

        self.index = COCO()
        self.index.dataset = content
        with _silent():
            self.index.createIndex()
        self.read = read
        self.ids = sorted(self.index.imgs)
        self.categories = sorted(self.index.cats)

    def example(self, image_id: int, view: View, masks: bool = False) -> Example:
        """The image as bytes, its boxes (x0, y0, x1, y1), labels and masks in a view; crowds are left out."""
        import numpy as np
        from PIL import Image

        entry = self.index.imgs[image_id]
        width, height = view.size
        image = self.read(entry["file_name"]).resize(view.size, Image.Resampling.BILINEAR, box=view.window)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        objects = [a for a in self.index.imgToAnns[image_id] if not a.get("iscrowd")]
        corners = [(x, y, x + w, y + h) for x, y, w, h in (a["bbox"] for a in objects)]
        boxes = view.move(torch.tensor(corners, dtype=torch.float32).view(-1, 2, 2)).view(-1, 4)
        boxes = boxes.clamp(min=0).minimum(torch.tensor([width, height, width, height]))
        rows = ((boxes[:, 2:] - boxes[:, :2]) >= 1).all(1)
        example = {
            "image_id": image_id,
            "pixels": pixels.flip(2) if view.flip else pixels,
            "boxes": boxes[rows],
            "labels": torch.tensor([self.categories.index(a["category_id"]) for a in objects], dtype=torch.long)[rows],
        }
        if masks:
            kept = [a for a, keep in zip(objects, rows.tolist(), strict=True) if keep]
            drawn = [_mask(a["segmentation"], entry, view) for a in kept]
            example["masks"] = torch.stack(drawn) if drawn else torch.zeros(0, height, width, dtype=torch.uint8)
        return example

    def size(self, image_id: int) -> tuple[int, int]:
        entry = self.index.imgs[image_id]
        return entry["width"], entry["height"]

    def subset(self, ids: Sequence[int]) -> Coco:
        chosen, content = set(ids), self.index.dataset
        images = [entry for entry in content["images"] if entry["id"] in chosen]
        annotations = [a for a in content["annotations"] if a["image_id"] in chosen]
        return Coco({**content, "images": images, "annotations": annotations}, self.read)

    def in_memory(self, size: tuple[int, int]) -> Coco:
        """All images decoded, scaled to one size, with their boxes; masks are left out."""
        from PIL import Image

        content = self.index.dataset
        names = [entry["file_name"] for entry in content["images"]]
        with ThreadPoolExecutor(cores()) as pool:
            pictures = pool.map(lambda name: self.read(name).resize(size, Image.Resampling.BILINEAR), names)
            held = dict(zip(names, pictures, strict=True))
        annotations = []
        for annotation in content["annotations"]:
            width, height = self.size(annotation["image_id"])
            across, down = size[0] / width, size[1] / height
            x, y, w, h = annotation["bbox"]
            rest = {key: value for key, value in annotation.items() if key != "segmentation"}
            box = [x * across, y * down, w * across, h * down]
            annotations.append({**rest, "bbox": box, "area": annotation["area"] * across * down})
        images = [{**entry, "width": size[0], "height": size[1]} for entry in content["images"]]
        return Coco({**content, "images": images, "annotations": annotations}, held.__getitem__)


@dataclass(frozen=True)
class View:
    """A window of the image in its own pixels, the size to which it is scaled, and whether it is mirrored."""

    window: tuple[float, float, float, float]
    size: tuple[int, int]
    flip: bool = False

    def move(self, points: Tensor) -> Tensor:
        """Points (…, 2) of the image in the pixels of the view; a box's two corners keep their order."""
        x0, y0, x1, y1 = self.window
        width, height = self.size
        scale = torch.tensor([width / (x1 - x0), height / (y1 - y0)])
        moved = (points - torch.tensor([x0, y0])) * scale
        if self.flip:
            moved[..., 0] = width - moved[..., 0]
            if points.dim() == 3:
                moved[..., 0] = moved[..., 0].flip(-1)
        return moved


def whole(size: tuple[int, int]) -> View:
    """The image as it is."""
    return View((0, 0, *size), size)


def scaled(size: tuple[float, float], short: int = SHORT_SIDES[-1], long: int = LONG_SIDE) -> tuple[int, int]:
    """The size with the shorter side `short`, unless the longer one would exceed `long`."""
    factor = min(short / min(size), long / max(size))
    return max(1, round(size[0] * factor)), max(1, round(size[1] * factor))


def detr_view(size: tuple[int, int], draws: Tensor) -> View:
    """What DETR and MMDetection's improved settings train on; draws: eight uniform numbers.

    Half of the images are mirrored. Half are scaled to a random shorter side of 480 to 800; of the others, scaled to
    400, 500 or 600, a part of 384 to 600 pixels a side is cut out first.
    https://github.com/open-mmlab/mmdetection/blob/main/configs/detr/detr_r50_8xb2-150e_coco.py
    """
    flip, cut, first, wide, high, left, top, last = draws.tolist()
    window = (0.0, 0.0, float(size[0]), float(size[1]))
    if cut < 0.5:
        factor = (400, 500, 600)[int(3 * first)] / min(size)
        part = [min(n, (384 + int(217 * u)) / factor) for n, u in zip(size, (wide, high), strict=True)]
        x, y = ((n - p) * u for n, p, u in zip(size, part, (left, top), strict=True))
        window = (x, y, x + part[0], y + part[1])
    short = SHORT_SIDES[int(len(SHORT_SIDES) * last)]
    return View(window, scaled((window[2] - window[0], window[3] - window[1]), short), flip < 0.5)


def _mask(segmentation: Any, entry: Mapping[str, Any], view: View) -> Tensor:
    """One annotation's mask in the pixels of the view, from polygons or COCO's run lengths."""
    import numpy as np
    from PIL import Image
    from pycocotools import mask as codec

    width, height = view.size
    if isinstance(segmentation, list):
        moved = [view.move(torch.tensor(part).view(-1, 2)).flatten().tolist() for part in segmentation]
        return torch.from_numpy(_decoded(codec.merge(codec.frPyObjects(moved, height, width))))
    if isinstance(segmentation["counts"], list):
        segmentation = codec.frPyObjects(segmentation, entry["height"], entry["width"])
    image = Image.fromarray(_decoded(segmentation)).resize(view.size, Image.Resampling.NEAREST, box=view.window)
    mask = torch.from_numpy(np.array(image))
    return mask.flip(1) if view.flip else mask


def _decoded(lengths: Any) -> Any:
    from pycocotools import mask as codec

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)  # pycocotools 2.0.11, NumPy 2
        return codec.decode(lengths)


# Where the images come from


def splits(context: Context, generated: tuple[int, int, int], masks: bool = False) -> tuple[Coco, Coco, str]:
    """What trains, what is held out, and a note: COCO at the scale "paper", BCCD at "small" where it is there.

    generated: otherwise, the pixels of a scene, how many train and how many are held out.
    masks: they are needed, and BCCD has none.

    A trial trains on five sixths of what trains, and is evaluated on the rest.
    """
    size, *counts = generated
    if context.scale == "paper":
        train, held_out = (folder(context.path(name)) for name in COCO_FILES)
        if masks:  # as MMDetection trains Mask R-CNN; its Deformable-DETR has filter_empty_gt=False
            train.ids = [image_id for image_id in train.ids if train.index.imgToAnns.get(image_id)]
        what, unit = "COCO", " images"
    elif context.scale == "small" and not masks and all(map(context.has, BCCD)):
        train, held_out = (folder(context.path(name)).in_memory(PHOTOGRAPH) for name in BCCD)
        what, unit = "BCCD, photographs of blood cells, {}×{} pixels".format(*PHOTOGRAPH), ""
    else:
        train, held_out = (scenes(count, size, seed) for seed, count in enumerate(counts))
        what, unit = "generated scenes of shapes", ""
    if context.tuning:
        apart = train.ids[::HELD_OUT]
        train, held_out = train.subset(sorted({*train.ids} - {*apart})), train.subset(apart)
    return train, held_out, f"{what}: {len(train.ids):,}{unit} to train, {len(held_out.ids):,} held out"


def folder(annotations: Path) -> Coco:
    """The split that `annotations` (…/annotations/instances_NAME.json) describes; its images lie in …/NAME."""
    from PIL import Image

    images = annotations.parents[1] / annotations.stem.removeprefix("instances_")
    with reading(annotations, "not COCO's json with images, annotations and categories"):
        content = json.loads(annotations.read_bytes())
        wrong = [key for key in ("images", "annotations", "categories") if not isinstance(content[key], list)]
    if wrong or not content["images"]:
        raise UsageError(f"{annotations}: {', '.join(wrong) or 'images'} must be a list that holds something")
    if not images.is_dir():
        raise UsageError(f"{annotations} describes images of the folder {images}, which is not there; unpack it there")

    def read(name: str) -> Any:
        path, remedy = images / name, f"unpack {images.name}.zip again"
        with reading(path, "missing or no image", remedy), Image.open(path) as image:
            return image.convert("RGB")

    return Coco(content, read)


def scenes(count: int, size: int, seed: int) -> Coco:
    """Pictures of one to three shapes that do not touch: red circles, green squares, blue triangles on gray noise."""
    import numpy as np
    from PIL import Image, ImageDraw

    random = np.random.default_rng(seed)
    pictures: dict[str, Any] = {}
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number in range(count):
        name = f"{number:06d}.png"
        picture = Image.fromarray(random.integers(90, 130, (size, size, 3), dtype=np.uint8))
        boxes: list[tuple[float, ...]] = []
        for _ in range(random.integers(1, 4)):
            kind = int(random.integers(3))
            radius = size * random.uniform(0.14, 0.26)
            x, y = random.uniform(radius, size - radius, 2)
            sides = list(SHAPES.values())[kind]
            turns = 2 * math.pi * (np.arange(sides) + 0.5) / sides
            points = np.stack([x + radius * np.sin(turns), y + radius * np.cos(turns)], 1)
            (x0, y0), (x1, y1) = points.min(0).tolist(), points.max(0).tolist()
            if any(x0 < b[2] and b[0] < x1 and y0 < b[3] and b[1] < y1 for b in boxes):
                continue
            boxes.append((x0, y0, x1, y1))
            color = random.integers(0, 60, 3)
            color[kind] = random.integers(180, 256)
            ImageDraw.Draw(picture).polygon([tuple(p) for p in points.tolist()], fill=tuple(color.tolist()))
            place = {"bbox": [x0, y0, x1 - x0, y1 - y0], "area": (x1 - x0) * (y1 - y0)}
            place["segmentation"] = [points.flatten().tolist()]
            numbers = {"id": len(annotations) + 1, "image_id": number + 1, "category_id": kind + 1}
            annotations.append({**numbers, **place, "iscrowd": 0})
        pictures[name] = picture
        images.append({"id": number + 1, "file_name": name, "width": size, "height": size})
    categories = [{"id": i + 1, "name": name} for i, name in enumerate(SHAPES)]
    return Coco({"images": images, "annotations": annotations, "categories": categories}, pictures.__getitem__)


# Batches


def batches(coco: Coco, context: Context, masks: bool = False) -> Callable[[int], list[Example]]:
    """Lists of examples as a function of the position; photographs are read ahead by threads."""
    order, own = epoch_order(len(coco.ids), context.batch_size, context.seed), context.own()
    paper = context.scale == "paper"

    def view(size: tuple[int, int], draws: Tensor) -> View:  # what is small already is mirrored alone
        return detr_view(size, draws) if paper else replace(whole(size), flip=bool(draws[0] < 0.5))

    def batch(position: int) -> list[Example]:
        draws = torch.rand(context.batch_size, 8, generator=generator(context.seed, position, 1))
        ids = [coco.ids[i] for i in own(order(position)).tolist()]
        return [
            coco.example(image_id, view(coco.size(image_id), draw), masks)
            for image_id, draw in zip(ids, own(draws), strict=True)
        ]

    return prefetch(batch, ahead=2 * decoders(), threads=decoders()) if paper else batch


def held_out(coco: Coco, size: int, view: Callable[[tuple[int, int]], View]) -> Iterator[list[Example]]:
    """All images of a split, `size` at a time, read by threads where there is more than one such batch."""
    with ThreadPoolExecutor(decoders() if len(coco.ids) > size else 1) as pool:
        for i in range(0, len(coco.ids), size):
            ids = coco.ids[i : i + size]
            yield list(pool.map(lambda image_id: coco.example(image_id, view(coco.size(image_id))), ids))


def padded(examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
    """The images in the upper left corners of one tensor of bytes, and where each of them is."""
    height, width = (max(e["pixels"].shape[i] for e in examples) for i in (1, 2))
    pixels = torch.zeros(len(examples), 3, height, width, dtype=torch.uint8)
    there = torch.zeros(len(examples), height, width, dtype=torch.bool)
    for i, example in enumerate(examples):
        _, h, w = example["pixels"].shape
        pixels[i, :, :h, :w] = example["pixels"]
        there[i, :h, :w] = True
    return pixels, there


# Scores


def average_precision(truth: Coco, results: Sequence[Mapping[str, Any]], kind: str) -> dict[str, float]:
    """COCO's mean average precision; kind: "bbox" or "segm"; results: in COCO's format for results.

    AP is the mean over the overlaps 0.50, 0.55, …, 0.95 and the categories; AP50 and AP75 are those at one overlap.
    """
    from pycocotools.cocoeval import COCOeval

    if not results:
        return {"AP": 0.0, "AP50": 0.0, "AP75": 0.0}
    with _silent():
        evaluation = COCOeval(truth.index, truth.index.loadRes(list(results)), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return {name: float(value) for name, value in zip(("AP", "AP50", "AP75"), evaluation.stats, strict=False)}


def _silent() -> contextlib.redirect_stdout[io.StringIO]:
    return contextlib.redirect_stdout(io.StringIO())  # pycocotools prints its progress
