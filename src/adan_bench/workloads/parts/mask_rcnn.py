"""Mask R-CNN with a ConvNeXt backbone, by torchvision."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import transformers
from torch import Tensor, nn

from adan_bench.data.coco import MEAN, STD, average_precision, held_out, splits, whole
from adan_bench.data.coco import batches as coco_batches
from adan_bench.errors import UsageError
from adan_bench.task import Context, Settings, Task
from adan_bench.workloads.detection import RcnnSizes
from adan_bench.workloads.parts.backbones import begins, load_backbone

LAYER_DECAY, LAYERS = 0.95, 7  # of the learning rate in the backbone


def mask_rcnn(context: Context) -> Task:
    train, valid, note = splits(context, context.sizes.scenes, masks=True)
    model = build(context.sizes, len(train.categories), context)
    examples = coco_batches(train, context, masks=True)

    def batches(position: int) -> list[dict[str, Any]]:
        # torchvision's class 0 is the background
        return [{**example, "labels": example["labels"] + 1} for example in examples(position)]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        parts = model([example["pixels"] / 255 for example in batch], batch)
        total: Tensor = sum(parts.values())
        return total

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        import numpy as np
        from pycocotools import mask as codec

        boxes: list[dict[str, Any]] = []
        masks: list[dict[str, Any]] = []
        for part in held_out(valid, context.batch_size, whole):
            outputs = model([example["pixels"].to(context.device) / 255 for example in part])
            for example, output in zip(part, outputs, strict=True):
                drawn = (output["masks"][:, 0] > 0.5).byte().cpu().numpy()
                labels, scores = output["labels"].tolist(), output["scores"].float().tolist()
                for k, score, (x0, y0, x1, y1), mask in zip(
                    labels, scores, output["boxes"].tolist(), drawn, strict=True
                ):
                    result = {"image_id": example["image_id"], "category_id": valid.categories[k - 1], "score": score}
                    boxes.append({**result, "bbox": [x0, y0, x1 - x0, y1 - y0]})
                    masks.append({**result, "segmentation": codec.encode(np.asfortranarray(mask))})
        return {
            f"{name} {key}": value
            for name, results, kind in (("mask", masks, "segm"), ("box", boxes, "bbox"))
            for key, value in average_precision(valid, results, kind).items()
        }

    note += f"; {begins(context, 'ConvNeXt-T')}"
    return Task(model, batches, loss, evaluate, note, groups=groups)


def build(sizes: RcnnSizes, categories: int, context: Context | None = None) -> nn.Module:
    """The detector; the backbone is that of a classifier where `context.init` names one."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError) as error:  # one that is built for CUDA fails beside a CPU build of torch
        raise UsageError(
            f"mask-rcnn needs a torchvision that fits this torch ({error}); run: "
            "pip install '.[vision]', and beside a CPU build of torch use a CPU build of torchvision"
        ) from error
    from torchvision.models.detection import MaskRCNN
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
    from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
    from torchvision.models.detection.transform import GeneralizedRCNNTransform
    from torchvision.ops import FeaturePyramidNetwork
    from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

    channels = sizes.channels
    shape = {"depths": sizes.depths, "hidden_sizes": sizes.widths, "drop_path_rate": sizes.dropped}

    class Pyramid(nn.Module):
        out_channels = channels

        def __init__(self) -> None:
            super().__init__()
            stages = ["stage1", "stage2", "stage3", "stage4"]
            config = transformers.ConvNextConfig(out_features=stages, layer_scale_init_value=1.0, **shape)
            self.body = transformers.ConvNextBackbone(config)
            self.fpn = FeaturePyramidNetwork(sizes.widths, channels, LastLevelMaxPool())

        def forward(self, images: Tensor) -> dict[str, Tensor]:
            maps = self.body(images).feature_maps
            pyramid: dict[str, Tensor] = self.fpn({str(i): part for i, part in enumerate(maps)})
            return pyramid

    class Transform(GeneralizedRCNNTransform):  # type: ignore[misc]
        def resize(self, image: Tensor, target: Any = None) -> Any:
            return (image, target) if self.training else super().resize(image, target)  # the loader has scaled it

    backbone = Pyramid()
    if context is not None and context.init is not None:
        load_backbone(backbone.body, context, "ConvNeXt", absent="hidden_states_norms")  # a classifier has one norm
    levels = [(sizes.anchor * 2**i,) for i in range(5)]
    proposals, sampled = sizes.proposals, sizes.sampled
    model = MaskRCNN(
        backbone,
        rpn_pre_nms_top_n_train=proposals,
        rpn_post_nms_top_n_train=proposals // 2,
        rpn_pre_nms_top_n_test=proposals // 2,
        rpn_post_nms_top_n_test=proposals // 2,
        rpn_batch_size_per_image=sampled // 2,
        box_batch_size_per_image=sampled,
        rpn_anchor_generator=AnchorGenerator(tuple(levels), ((0.5, 1.0, 2.0),) * 5),
        box_head=TwoMLPHead(channels * 7**2, sizes.hidden),
        box_predictor=FastRCNNPredictor(sizes.hidden, categories + 1),
        mask_head=MaskRCNNHeads(channels, (channels,) * 4, 1),
        mask_predictor=MaskRCNNPredictor(channels, channels, categories + 1),
    )
    model.transform = Transform(*sizes.sides, MEAN, STD)
    assert isinstance(model, nn.Module)
    return model


def groups(model: nn.Module, settings: Settings) -> list[dict[str, Any]]:
    """No decay of biases and norms; a layer of the backbone learns the more slowly the nearer it is to the image.

    https://github.com/open-mmlab/mmdetection/blob/main/configs/convnext/mask-rcnn_convnext-t-p4-w7_fpn_amp-ms-crop-3x_coco.py
    """
    by_layer: dict[tuple[int, bool], list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        by_layer.setdefault((layer(name), parameter.dim() > 1), []).append(parameter)
    return [
        {
            "params": parameters,
            "lr": settings["lr"] * LAYER_DECAY ** (LAYERS - depth),
            "weight_decay": settings.get("weight_decay", 0.0) if decays else 0.0,
        }
        for (depth, decays), parameters in by_layer.items()
    ]


def layer(name: str) -> int:
    """Which of the layers 0 to 7 a parameter belongs to; 7 is all that stands on the backbone."""
    place = re.match(r"backbone\.body\.(?:embeddings|encoder\.stages\.(\d)\.(?:layers\.(\d+))?)", name)
    if place is None:
        return LAYERS
    stage, block = (None if part is None else int(part) for part in place.groups())
    if stage is None:
        return 0
    return {0: 1, 1: 2, 2: 3 + (block or 0) // 3, 3: LAYERS - 1}[stage]
