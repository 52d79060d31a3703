"""Mask R-CNN with a ConvNeXt backbone: on COCO as MMDetection trains it, else on generated scenes of shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from adan_bench.data.coco import FILES, TRAIN_IMAGES
from adan_bench.spec import Context, Settings, Task, UsageError
from adan_bench.workloads.registry import workload

BACKBONES: dict[str, dict[str, Any]] = {
    "smoke": {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 64, 64], "drop_path_rate": 0.0},
    "small": {"depths": [2, 2, 2, 2], "hidden_sizes": [48, 96, 192, 384], "drop_path_rate": 0.1},
    "paper": {"depths": [3, 3, 9, 3], "hidden_sizes": [96, 192, 384, 768], "drop_path_rate": 0.4},  # ConvNeXt-T
}
CHANNELS = {"smoke": (32, 64), "small": (128, 512), "paper": (256, 1024)}  # of the pyramid, of the box head
SCENES = {"smoke": (64, (128, 32)), "small": (128, (4_000, 500)), "paper": (0, (0, 0))}  # pixels, numbers of scenes
SIDES = {"smoke": (64, 64), "small": (128, 128), "paper": (800, 1333)}  # of held-out images: the shorter, the longer
PROPOSALS = {"smoke": (50, 16), "small": (500, 128), "paper": (2_000, 512)}  # kept, and sampled for the heads
ANCHORS = {"smoke": 8, "small": 16, "paper": 32}  # pixels, on the finest level
LAYER_DECAY, LAYERS = 0.95, 7  # of the learning rate in a pre-trained backbone


@workload(
    "mask-rcnn",
    metric="mask AP",
    higher_is_better=True,
    target=0.15,
    steps=60,
    eval_every=30,
    batch_size=4,
    scales={
        "small": {"target": 0.5, "steps": 4_000, "eval_every": 400, "batch_size": 16},
        "paper": {
            "target": 0.417,  # AdamW, the paper's table of Mask R-CNN
            "steps": 36 * TRAIN_IMAGES // 16,
            "eval_every": TRAIN_IMAGES // 16,
            "batch_size": 16,
            "needs": FILES,
        },
    },
)
def mask_rcnn(context: Context) -> Task:
    """Mask R-CNN (ConvNeXt-T backbone) on COCO; smaller ones on generated scenes of shapes; needs torchvision."""
    from adan_bench.data.coco import Batches, average_precision, held_out, splits, whole

    train, valid, note = splits(context, *SCENES[context.scale])
    model = build(context.scale, len(train.categories), None if context.init is None else context.weights())
    examples = Batches(train, context, masks=True)

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
                    result = {
                        "image_id": example["image_id"],
                        "category_id": valid.categories[k - 1],
                        "score": score,
                    }
                    boxes.append({**result, "bbox": [x0, y0, x1 - x0, y1 - y0]})
                    masks.append({**result, "segmentation": codec.encode(np.asfortranarray(mask))})
        return {
            f"{name} {key}": value
            for name, found, kind in (("mask", masks, "segm"), ("box", boxes, "bbox"))
            for key, value in average_precision(valid, found, kind).items()
        }

    pretrained = context.init is not None
    note += "" if pretrained else "; the backbone starts at random"
    return Task(model, batches, loss, evaluate, note, groups=lambda m, s: groups(m, s, pretrained))


def build(scale: str, categories: int, backbone_weights: Mapping[str, Tensor] | None = None) -> nn.Module:
    """The detector; the weights are those of transformers' ConvNeXt as an image classifier."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError) as error:  # one that is built for CUDA fails beside a CPU build of torch
        raise UsageError(
            f"mask-rcnn needs a torchvision that fits this torch ({error}); run: pip install 'adan[vision]', "
            "and beside a CPU build of torch take a CPU build of torchvision"
        ) from error
    import transformers
    from torchvision.models.detection import MaskRCNN
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
    from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
    from torchvision.models.detection.transform import GeneralizedRCNNTransform
    from torchvision.ops import FeaturePyramidNetwork
    from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

    from adan_bench.data.coco import MEAN, STD

    library: Any = transformers
    sizes = BACKBONES[scale]
    channels, hidden = CHANNELS[scale]

    class Pyramid(nn.Module):
        out_channels = channels

        def __init__(self) -> None:
            super().__init__()
            stages = ["stage1", "stage2", "stage3", "stage4"]
            config = library.ConvNextConfig(out_features=stages, layer_scale_init_value=1.0, **sizes)
            self.body = library.ConvNextBackbone(config)
            self.fpn = FeaturePyramidNetwork(sizes["hidden_sizes"], channels, LastLevelMaxPool())

        def forward(self, images: Tensor) -> dict[str, Tensor]:
            maps = self.body(images).feature_maps
            found: dict[str, Tensor] = self.fpn({str(i): part for i, part in enumerate(maps)})
            return found

    class Transform(GeneralizedRCNNTransform):  # type: ignore[misc]
        def resize(self, image: Tensor, target: Any = None) -> Any:
            return (image, target) if self.training else super().resize(image, target)  # the loader has scaled it

    backbone = Pyramid()
    if backbone_weights is not None:
        own = {name.removeprefix("convnext."): value for name, value in backbone_weights.items()}
        kept = {k: v for k, v in own.items() if not k.startswith(("classifier", "layernorm"))}
        missing, unexpected = backbone.body.load_state_dict(kept, strict=False)
        strange = [*unexpected, *(name for name in missing if "hidden_states_norms" not in name)]
        if strange:  # of a classifier only the norms of the stages are missing: it has one norm, at its end
            raise UsageError(
                f"--init: these are not the weights of a ConvNeXt of this size ({strange[0]} does not fit)"
            )
    short, long = SIDES[scale]
    levels = [(ANCHORS[scale] * 2**i,) for i in range(5)]
    proposals, sampled = PROPOSALS[scale]
    model = MaskRCNN(
        backbone,
        rpn_pre_nms_top_n_train=proposals,
        rpn_post_nms_top_n_train=proposals,
        rpn_pre_nms_top_n_test=proposals // 2,
        rpn_post_nms_top_n_test=proposals // 2,
        rpn_batch_size_per_image=sampled // 2,
        box_batch_size_per_image=sampled,
        rpn_anchor_generator=AnchorGenerator(tuple(levels), ((0.5, 1.0, 2.0),) * 5),
        box_head=TwoMLPHead(channels * 7**2, hidden),
        box_predictor=FastRCNNPredictor(hidden, categories + 1),
        mask_head=MaskRCNNHeads(channels, (channels,) * 4, 1),
        mask_predictor=MaskRCNNPredictor(channels, channels, categories + 1),
    )
    model.transform = Transform(short, long, MEAN, STD)
    assert isinstance(model, nn.Module)
    return model


def groups(model: nn.Module, settings: Settings, pretrained: bool) -> list[dict[str, Any]]:
    """No decay of biases and norms; a pre-trained backbone learns the more slowly the nearer a layer is to the image.

    https://github.com/open-mmlab/mmdetection/blob/main/configs/convnext/mask-rcnn_convnext-t-p4-w7_fpn_amp-ms-crop-3x_coco.py
    """
    found: dict[tuple[int, bool], list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        found.setdefault((layer(name) if pretrained else LAYERS, parameter.dim() > 1), []).append(parameter)
    return [
        {
            "params": parameters,
            "lr": settings["lr"] * LAYER_DECAY ** (LAYERS - depth),
            "weight_decay": settings.get("weight_decay", 0.0) if decays else 0.0,
        }
        for (depth, decays), parameters in found.items()
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
