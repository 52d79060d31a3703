"""Deformable-DETR by transformers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from adan_bench.data.batching import moved
from adan_bench.data.coco import MEAN, STD, Coco, View, average_precision, batches, held_out, padded, scaled, splits
from adan_bench.task import Context, Settings, Task
from adan_bench.workloads.detection import DetrSizes
from adan_bench.workloads.parts.backbones import begins, load_backbone

WEIGHTS = {"loss_ce": 2, "loss_bbox": 5, "loss_giou": 2}  # of the loss and of the matching
SLOW = ("sampling_offsets", "reference_points")  # a tenth of the learning rate; a pre-trained backbone too


def deformable_detr(context: Context) -> Task:
    train, valid, note = splits(context, context.sizes.scenes)
    model = build(context.sizes, len(train.categories), context)
    mean, std = (torch.tensor(values).view(3, 1, 1).to(context.device) for values in (MEAN, STD))

    def normal(pixels: Tensor, there: Tensor) -> Tensor:
        return (pixels / 255 - mean) / std * there.unsqueeze(1)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        there = batch["there"]
        output = model(normal(batch["pixels"], there), pixel_mask=there.long(), labels=batch["labels"])
        parts = output.loss_dict.items()  # of every layer of the decoder: loss_ce, loss_ce_0, …
        total: Tensor = sum(weight * value for kind, weight in WEIGHTS.items() for key, value in parts if kind in key)
        return total

    def resized(size: tuple[int, int]) -> View:
        return View((0, 0, *size), scaled(size) if context.scale == "paper" else size)

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        results: list[dict[str, Any]] = []
        for part in held_out(valid, context.batch_size, resized):
            pixels, there = (tensor.to(context.device) for tensor in padded(part))
            output = model(normal(pixels, there), pixel_mask=there.long())
            for example, logits, boxes in zip(part, output.logits.float(), output.pred_boxes.float(), strict=True):
                scores, best = logits.sigmoid().flatten().topk(min(100, logits.numel()))
                width, height = valid.size(example["image_id"])
                x, y, w, h = (boxes[best // logits.shape[1]] * boxes.new_tensor([width, height, width, height])).T
                corners = torch.stack([x - w / 2, y - h / 2, w, h], 1).tolist()
                labels = (best % logits.shape[1]).tolist()
                results += [
                    {"image_id": example["image_id"], "category_id": valid.categories[k], "bbox": box, "score": score}
                    for k, box, score in zip(labels, corners, scores.tolist(), strict=True)
                ]
        scores = {f"box {name}": value for name, value in average_precision(valid, results, "bbox").items()}
        if context.tuning:
            parts = [moved(judged(i), context.device) for i in range(len(valid.ids) // count)]
            scores["loss"] = sum(loss(model, part).item() for part in parts) / len(parts)
        return scores

    count = min(context.batch_size, len(valid.ids))
    judged = with_targets(valid, dataclasses.replace(context, batch_size=count, rank=0, ranks=1))

    note += f"; {begins(context, 'ResNet-50')}"
    slow = SLOW if context.init is None else (*SLOW, "backbone")
    trained = with_targets(train, context)

    def weight(batch: Any) -> Tensor:
        return torch.tensor(sum(len(target["class_labels"]) for target in batch["labels"]))

    return Task(
        model, trained, loss, evaluate, note, max_grad_norm=0.1, groups=lambda m, s: groups(m, s, slow), weight=weight
    )


def with_targets(split: Coco, context: Context) -> Callable[[int], dict[str, Any]]:
    """Batches as the detector's loss takes them, as a function of the position."""
    examples = batches(split, context)

    def batch(position: int) -> dict[str, Any]:
        part = examples(position)
        pixels, there = padded(part)
        return {"pixels": pixels, "there": there, "labels": [_targets(example) for example in part]}

    return batch


def build(sizes: DetrSizes, categories: int, context: Context | None = None) -> nn.Module:
    """The detector. With `context.init`, a classifier's weights, statistics, stem and first stage are fixed.

    Without them the backbone's normalization must learn: 16 blocks of random weights with fixed statistics explode.
    """
    stages = ["stage2", "stage3", "stage4"]
    blocks = {}  # transformers' ResNetConfig is ResNet-50
    if sizes.backbone is not None:
        widths, depths = sizes.backbone
        blocks = {"embedding_size": widths[0], "hidden_sizes": widths, "depths": depths, "layer_type": "basic"}
    backbone_config = transformers.ResNetConfig(out_features=stages, **blocks)
    config = transformers.DeformableDetrConfig(
        backbone_config=backbone_config,
        d_model=sizes.width,
        encoder_layers=sizes.layers[0],
        decoder_layers=sizes.layers[1],
        encoder_attention_heads=sizes.heads,
        decoder_attention_heads=sizes.heads,
        encoder_ffn_dim=sizes.inner,
        decoder_ffn_dim=sizes.inner,
        num_queries=sizes.queries,
        num_feature_levels=sizes.levels,
        dropout=sizes.dropout,
        class_cost=WEIGHTS["loss_ce"],
        bbox_cost=WEIGHTS["loss_bbox"],
        giou_cost=WEIGHTS["loss_giou"],
        auxiliary_loss=True,
        num_labels=categories,
    )
    model: Any = transformers.DeformableDetrForObjectDetection(config)
    for head in model.class_embed:  # a first guess of 1% for every class, as for focal loss
        nn.init.constant_(head.bias, -math.log(99))
    if context is None or context.init is None:
        model.model.backbone.model = transformers.ResNetBackbone(backbone_config)
    else:
        load_backbone(model.model.backbone.model, context, "ResNet")
        for name, parameter in model.model.backbone.model.named_parameters():
            parameter.requires_grad_(not name.startswith(("embedder", "encoder.stages.0")))
    assert isinstance(model, nn.Module)
    return model


def groups(model: nn.Module, settings: Settings, slow: tuple[str, ...]) -> list[dict[str, Any]]:
    """Parameters whose names hold one of `slow` learn at a tenth of the rate."""
    parts: dict[bool, list[Tensor]] = {False: [], True: []}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parts[any(part in name for part in slow)].append(parameter)
    return [{"params": parts[False]}, {"params": parts[True], "lr": 0.1 * settings["lr"]}]


def _targets(example: Mapping[str, Any]) -> dict[str, Tensor]:
    """Labels, and boxes as center and size in shares of the image."""
    _, height, width = example["pixels"].shape
    x0, y0, x1, y1 = (example["boxes"] / torch.tensor([width, height, width, height])).T
    return {
        "class_labels": example["labels"],
        "boxes": torch.stack([(x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0], 1),
    }
