"""Every model has the published number of parameters, or that of the stored runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from support.learning import sizes
from torch import nn

from adan_bench.data import graphs
from adan_bench.studies import speed
from adan_bench.workloads.detection import DETR_PAPER
from adan_bench.workloads.images import MODELS, SMALL_VIT
from adan_bench.workloads.language import ENGLISH
from adan_bench.workloads.parts import bert, deformable_detr, gpt, mae
from adan_bench.workloads.parts.deepgcn import CitationGCN, DeepGCN
from adan_bench.workloads.parts.lstm import LSTM
from adan_bench.workloads.parts.networks import BUILDERS, vit_config
from adan_bench.workloads.parts.transformer import (
    BERT,
    GPT,
    MaskedAutoencoder,
    MaskedLanguage,
    SentenceClassifier,
    SmallConvNeXt,
    ViT,
)
from adan_bench.workloads.parts.transformer_xl import TransformerXL
from adan_bench.workloads.words import LstmSizes

IMAGES: Any = SimpleNamespace(size=224, channels=3, classes=1000)
CIFAR: Any = SimpleNamespace(size=32, channels=3, classes=10)


def network(name: str, data: Any = IMAGES) -> nn.Module:
    return BUILDERS[MODELS[name].family](MODELS[name].setting, sizes(name), data)


def mae_vit(name: str) -> nn.Module:
    return transformers.ViTMAEForPreTraining(mae.mae_config(sizes(name), IMAGES))


def mixture(name: str) -> nn.Module:
    return transformers.MixtralForCausalLM(gpt.mixtral_config(sizes(name), 32_000))


def small_gpt(name: str) -> nn.Module:
    return GPT(sizes(name, "small"))


def transformer_xl() -> TransformerXL:
    return TransformerXL(267_735, sizes("transformer-xl"))


#: Of a layer of DeepGCN: an MLP of 64·128 + 128·64 weights, two norms, a temperature, an encoder of edges.
LAYER = 2 * 64 * 128 + 2 * (128 + 64) + 1 + 65 * 64
#: By the source of the numbers: the name, what makes the model, its parameters and how exact the source is.
MODELS_AND_SIZES: dict[str, list[tuple[str, Callable[[], nn.Module], float, float]]] = {
    "their authors and timm, in millions for 1,000 classes": [
        (name, partial(network, name), 1e6 * millions, 1e4)
        for name, millions in [
            *(("resnet18", 11.69), ("resnet50", 25.56), ("resnet101", 44.55), ("convnext-t", 28.59)),
            *(("convnext-s", 50.22), ("vit-s", 22.05), ("vit-s-setting-i", 22.05), ("vit-b", 86.57)),
            *(("swin-t", 28.29), ("swin-s", 49.61), ("swin-b", 87.77)),
        ]
    ],
    "MAE's authors": [
        ("mae-pretrain-vit-b", partial(mae_vit, "mae-pretrain-vit-b"), 111.9e6, 1e5),
        ("mae-pretrain-vit-l", partial(mae_vit, "mae-pretrain-vit-l"), 329.5e6, 1e5),
        ("mae-finetune-vit-b", lambda: mae.Classifier(vit_config(sizes("mae-pretrain-vit-b"), IMAGES)), 86.6e6, 1e5),
        ("mae-finetune-vit-l", lambda: mae.Classifier(vit_config(sizes("mae-pretrain-vit-l"), IMAGES)), 304.3e6, 1e5),
    ],
    "AdaBelief, and AWD-LSTM, which prints that of three layers for Penn Treebank": [
        ("cifar-resnet34", lambda: network("cifar-resnet34", CIFAR), 21_282_122, 0),
        ("lstm-1", lambda: LSTM(10_000, 1, LstmSizes()), 5_293_200, 0),
        ("lstm-2", lambda: LSTM(10_000, 2, LstmSizes()), 13_632_400, 0),
        ("lstm-3", lambda: LSTM(10_000, 3, LstmSizes()), 24_221_600, 0),
    ],
    "the Adan authors' logs, and their vocabularies of 50,000": [
        ("transformer-xl", transformer_xl, 151_107_538, 0),
        ("its layers", lambda: transformer_xl().layers, 41_066_400, 0),
        ("bert", lambda: transformers.BertForMaskedLM(bert.bert_config(sizes("bert-pretrain"), 50_000)), 124.7e6, 1e6),
        ("gpt2", lambda: transformers.GPT2LMHeadModel(gpt.gpt2_config(sizes("gpt2-code"), 50_000)), 355.7e6, 3e6),
        ("moe", partial(mixture, "moe"), 0.5e9, 5e6),
        ("moe-8x0.3b", partial(mixture, "moe-8x0.3b"), 2e9, 2e7),
        ("moe-8x0.6b", partial(mixture, "moe-8x0.6b"), 4e9, 4e7),
    ],
    "the release of Deformable-DETR, 40 million in all, of which ResNet-50 without its classifier has 23.5": [
        ("deformable-detr", lambda: deformable_detr.build(DETR_PAPER, 80), 40e6, 4e5),
        ("its backbone", lambda: deformable_detr.build(DETR_PAPER, 80).model.backbone, 23.5e6, 2e5),
    ],
    "the stored runs": [
        ("cifar-vit", lambda: ViT(SMALL_VIT, 32, 3, 10), 4_770_570, 0),
        ("cifar-mae", lambda: MaskedAutoencoder(ViT(SMALL_VIT, 32, 3, 0), 128, 2), 5_212_208, 0),
        ("cifar-convnext", lambda: SmallConvNeXt(sizes("cifar-convnext", "small"), 3, 10), 8_534_474, 0),
        ("pycode-gpt-1m", partial(small_gpt, "pycode-gpt-1m"), 875_520, 0),
        ("pycode-gpt-11m", partial(small_gpt, "pycode-gpt-11m"), 10_942_720, 0),
        ("pycode-gpt-26m", partial(small_gpt, "pycode-gpt-26m"), 25_744_640, 0),
        ("pycode-moe", partial(small_gpt, "pycode-moe"), 4_547_072, 0),
        ("english-bert", lambda: MaskedLanguage(BERT(ENGLISH)), 5_314_624, 0),
        ("english-cola", lambda: SentenceClassifier(BERT(ENGLISH), 2), 5_240_834, 0),
        ("cora", lambda: CitationGCN(torch.zeros(2, 0, dtype=torch.long), 1433, 64, 14, 7), 329_813, 0),
    ],
    "the paper's Table 18 and 19, images rounded down to millions": [
        (name, speed.MODELS[name].build, 1e6 * millions, tolerance)
        for name, millions, tolerance in [
            *(("ResNet-50", 25.5, 5e5), ("ResNet-101", 44.5, 5e5), ("ViT-B", 86.5, 5e5), ("Swin-B", 87.5, 5e5)),
            *(("ConvNeXt-B", 88.5, 5e5), ("Swin-L", 196.5, 5e5), ("ConvNeXt-L", 197.5, 5e5), ("ViT-L", 304.5, 5e5)),
            *(("GPT-2-670M", 670, 6e6), ("GPT-2-1B", 1024, 1e7), ("MoE-8x0.1B", 500, 5e6), ("MoE-8x0.3B", 2000, 2e7)),
        ]
    ],
}


@pytest.mark.parametrize(
    ("make", "size", "tolerance"),
    [pytest.param(*model, id=name) for models in MODELS_AND_SIZES.values() for name, *model in models],
)
def test_size(make: Callable[[], nn.Module], size: float, tolerance: float) -> None:
    with torch.device("meta"):
        model = make()
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(size, abs=tolerance, rel=0)


def test_size_of_deepgcn() -> None:
    """24 layers and encoders of species; the graph, which is planted, has no place on the meta device."""
    model = DeepGCN(graphs.planted(40, 6, 112), 24, 64)
    expected = 24 * LAYER + 9 * 8 + 17 * 64 + 9 * 64 + 65 * 112
    assert sum(p.numel() for p in model.parameters()) == expected


def test_every_model_of_the_speed_study_is_among_them() -> None:
    (*_, of_the_paper) = MODELS_AND_SIZES.values()
    assert [name for name, *_ in of_the_paper] == list(speed.MODELS)
