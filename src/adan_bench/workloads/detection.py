"""Detectors: Mask R-CNN and Deformable-DETR, on COCO as MMDetection trains them.

Smaller ones learn generated scenes of shapes or, Deformable-DETR at small scale, photographs of blood cells.
"""

from __future__ import annotations

from dataclasses import dataclass

from adan_bench.data.files import COCO, COCO_ANNOTATED, COCO_SIZE
from adan_bench.task import Scale
from adan_bench.workloads.registry import built_by, workload


@dataclass(frozen=True)
class RcnnSizes:
    """depths, widths: of the four stages of the backbone; stochastic depth grows to `dropped`.

    channels, hidden: of the pyramid and of the box head; sides: the shorter and the longer of held-out images.
    proposals, sampled: kept, and sampled for the heads; anchor: pixels, on the finest level.
    scenes: pixels of generated ones, how many train, how many are held out.
    """

    depths: list[int]
    widths: list[int]
    dropped: float
    channels: int
    hidden: int
    sides: tuple[int, int]
    proposals: int
    sampled: int
    anchor: int
    scenes: tuple[int, int, int] = (0, 0, 0)


RCNN_SMOKE = RcnnSizes([1, 1, 1, 1], [16, 32, 64, 64], 0.0, 32, 64, (64, 64), 50, 16, 8, (64, 128, 32))
RCNN_SMALL = RcnnSizes([2, 2, 2, 2], [48, 96, 192, 384], 0.1, 128, 512, (128, 128), 500, 128, 16, (128, 4_000, 500))
RCNN_PAPER = RcnnSizes([3, 3, 9, 3], [96, 192, 384, 768], 0.4, 256, 1024, (800, 1333), 2_000, 512, 32)  # ConvNeXt-T

workload(
    "mask-rcnn",
    metric="mask AP",
    higher_is_better=True,
    smoke=Scale(0.15, 60, 4, eval_every=30, sizes=RCNN_SMOKE),
    small=Scale(0.5, 4_000, 16, sizes=RCNN_SMALL),
    # AdamW, the paper's table of Mask R-CNN
    paper=Scale(0.417, 36 * COCO_ANNOTATED // 16, 16, COCO_ANNOTATED // 16, COCO, RCNN_PAPER),
    summary="Mask R-CNN (ConvNeXt-T backbone) on COCO; smaller ones on generated scenes of shapes; needs torchvision",
)(built_by("mask_rcnn", "mask_rcnn"))


@dataclass(frozen=True)
class DetrSizes:
    """layers: of encoder and decoder; scenes: pixels of generated ones, how many train, how many are held out.

    backbone: widths and depths of its four stages of basic blocks; None is ResNet-50.
    """

    width: int
    layers: tuple[int, int]
    heads: int
    inner: int
    queries: int
    levels: int = 4
    dropout: float = 0.1
    backbone: tuple[list[int], list[int]] | None = None
    scenes: tuple[int, int, int] = (0, 0, 0)


DETR_SMOKE = DetrSizes(32, (1, 2), 4, 64, 12, 3, 0.0, ([16, 32, 64, 64], [1, 1, 1, 1]), (64, 256, 48))
# 60 queries: a photograph of BCCD shows up to 30 cells.
DETR_SMALL = DetrSizes(128, (3, 3), 8, 256, 60, backbone=([32, 64, 128, 256], [2, 2, 2, 2]), scenes=(128, 4_000, 500))
DETR_PAPER = DetrSizes(256, (6, 6), 8, 1024, 300)

workload(
    "deformable-detr",
    metric="box AP",
    higher_is_better=True,
    tune_metric="loss",  # average precision says little where it is near zero
    tune_higher_is_better=False,
    smoke=Scale(0.01, 120, 8, eval_every=60, sizes=DETR_SMOKE),
    small=Scale(0.5, 6_000, 16, sizes=DETR_SMALL),
    # AdamW, the paper's table of Deformable-DETR
    paper=Scale(0.445, 50 * COCO_SIZE // 32, 32, eval_every=COCO_SIZE // 32, needs=COCO, sizes=DETR_PAPER),
    summary="Deformable-DETR (ResNet-50 backbone) on COCO; smaller ones on BCCD or generated scenes of shapes",
)(built_by("deformable_detr", "deformable_detr"))
