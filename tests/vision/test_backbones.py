"""Published files of ImageNet weights load into the detectors' backbones, which then compute the same features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from adan_bench.errors import UsageError
from adan_bench.task import Context
from adan_bench.workloads.parts.backbones import load_backbone

STAGES = ["stage1", "stage2", "stage3", "stage4"]


def file_of(model: nn.Module, path: Path, wrapped: bool = False) -> Context:
    state = model.state_dict()
    torch.save({"model": state} if wrapped else state, path)
    return Context(0, 1, init=path)


def lively(model: Any) -> Any:
    """With statistics, norms and scales that are not those of a fresh model, so that a mix-up shows."""
    for name, value in model.state_dict().items():
        if (value.is_floating_point() and value.dim() <= 1) or "layer_scale" in name:
            value.copy_(torch.rand(value.shape) + 0.5)
    return model.eval()


def last_features(backbone: Any, images: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = backbone.eval()(images).feature_maps[-1]
    return found


@pytest.mark.parametrize("source", ["torchvision", "timm"])
def test_resnet50(source: str, tmp_path: Path) -> None:
    import timm
    import torchvision
    import transformers

    torch.manual_seed(0)
    images = torch.randn(2, 3, 64, 64)
    model = lively(torchvision.models.resnet50() if source == "torchvision" else timm.create_model("resnet50"))
    backbone = transformers.ResNetBackbone(transformers.ResNetConfig(out_features=STAGES))
    load_backbone(backbone, file_of(model, tmp_path / "resnet50.pth"), "ResNet")
    body = nn.Sequential(*list(model.children())[:-2]) if source == "torchvision" else model.forward_features
    with torch.no_grad():
        torch.testing.assert_close(last_features(backbone, images), body(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("source", ["torchvision", "timm", "authors", "mmpretrain"])
def test_convnext(source: str, tmp_path: Path) -> None:
    """The last stage's map stands before the norms that the detector has and a classifier does not."""
    import timm
    import torchvision
    import transformers

    torch.manual_seed(0)
    images = torch.randn(2, 3, 64, 64)
    torchvisions = source == "torchvision"
    model = lively(torchvision.models.convnext_tiny() if torchvisions else timm.create_model("convnext_tiny"))
    config = transformers.ConvNextConfig(out_features=STAGES, hidden_sizes=[96, 192, 384, 768])
    backbone = transformers.ConvNextBackbone(config)
    for norm in backbone.hidden_states_norms.values():
        norm.forward = lambda x: x
    context = file_of(model, tmp_path / "convnext.pth", wrapped=source == "authors")
    if source in ("authors", "mmpretrain"):
        from timm.models.convnext import checkpoint_filter_fn  # which knows the names of both

        ours = {name: renamed(name, source == "mmpretrain") for name in model.state_dict()}
        state = {ours[name]: value for name, value in model.state_dict().items()}
        torch.save({"model": state} if source == "authors" else {"state_dict": state}, tmp_path / "convnext.pth")
        if source == "authors":
            assert checkpoint_filter_fn(dict(state), model).keys() == model.state_dict().keys()
    load_backbone(backbone, context, "ConvNeXt", absent="hidden_states_norms")
    body = model.features if torchvisions else nn.Sequential(model.stem, model.stages)
    with torch.no_grad():
        torch.testing.assert_close(last_features(backbone, images), body(images), rtol=1e-4, atol=1e-4)
    other = transformers.ConvNextBackbone(transformers.ConvNextConfig(out_features=STAGES, hidden_sizes=[64] * 4))
    with pytest.raises(UsageError, match=r"not the weights of a ConvNeXt of this size \(.* has another shape\)"):
        load_backbone(other, context, "ConvNeXt", absent="hidden_states_norms")
    with pytest.raises(UsageError, match=r"not the weights of a ResNet of this size \(.* is missing\)"):
        load_backbone(transformers.ResNetBackbone(transformers.ResNetConfig(out_features=STAGES)), context, "ResNet")


def renamed(name: str, mmpretrain: bool) -> str:
    """Its name in the authors' file (github.com/facebookresearch/ConvNeXt) or in MMPretrain's."""
    import re

    name = name.replace("stem.", "downsample_layers.0.").replace("head.fc.", "head.").replace("head.norm.", "norm.")
    name = re.sub(r"stages\.(\d)\.downsample\.", r"downsample_layers.\1.", name)
    name = re.sub(r"stages\.(\d)\.blocks\.", r"stages.\1.", name)
    ours = ("depthwise_conv", "pointwise_conv") if mmpretrain else ("dwconv", "pwconv")
    name = name.replace("conv_dw", ours[0]).replace("mlp.fc", ours[1])
    return f"backbone.{name}" if mmpretrain else name
