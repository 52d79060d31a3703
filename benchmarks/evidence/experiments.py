"""The paper's experiments one by one: what was run of each here, and what the paper has beyond that."""

from __future__ import annotations

from dataclasses import dataclass

from evidence.compare import Records, compared, lost
from evidence.jobs import succeeded
from evidence.search import Follow, Study
from evidence.sections.parts import joined, table
from evidence.sections.pretraining import above_chance
from evidence.studies import (
    BATCH_SIZE,
    BATCH_SIZE_B1,
    BERT,
    BERT_AGAIN,
    BETAS,
    COLA,
    COLA_AGAIN,
    COLA_OWN,
    COLA_OWN_AGAIN,
    COMPONENTS,
    CONVNEXT,
    CONVNEXT_AGAIN,
    CORA,
    DETR,
    FORMATS,
    FOUR_BIT,
    GPT,
    GPT_30M,
    GPT_30M_AGAIN,
    GPT_30M_HALF,
    GPT_HALF,
    HOPPER,
    LSTM,
    LSTM_AGAIN,
    LSTM_FIXED,
    LSTM_LAYERS,
    LSTM_PUBLISHED,
    MAE,
    MAE_AGAIN,
    MAE_FINE_TUNED,
    MAE_FULL,
    MAE_FULL_FINE_TUNED,
    MOE,
    RESNET,
    RESNET_AGAIN,
    RESNET_OTHERS,
    RESNET_PUBLISHED,
    ROBOTS,
    SENSITIVITY,
    SST2,
    SST2_AGAIN,
    SST2_OWN,
    SST2_OWN_AGAIN,
    TIANSHOU,
    TRANSFORMER_XL,
    TRANSFORMER_XL_ADAMW,
    TRANSFORMER_XL_HALF,
    VIT_25,
    VIT_50,
    VIT_50_LAMB,
    VIT_100,
    VIT_100_LAMB,
)


@dataclass(frozen=True)
class Experiment:
    """A row of the paper. beyond: what no study here has of it, and where it is known what that would take."""

    what: str
    where: str
    studies: tuple[Study | Follow, ...]
    beyond: str


EXPERIMENTS = (
    Experiment(
        "CNNs in the vanilla setting",
        "Tables 3 and 4",
        (RESNET, RESNET_AGAIN, RESNET_OTHERS, RESNET_PUBLISHED),
        "ImageNet, which was not available",
    ),
    Experiment(
        "CNNs in Settings I and II",
        "Tables 2 and 21",
        (CONVNEXT, CONVNEXT_AGAIN),
        "ImageNet; ResNets, which are Setting I",
    ),
    Experiment(
        "ViT",
        "Tables 5 and 16",
        (VIT_25, VIT_50, VIT_50_LAMB, VIT_100, VIT_100_LAMB),
        "ImageNet; Swin",
    ),
    Experiment(
        "MAE with fine-tuning",
        "Table 6",
        (MAE, MAE_FINE_TUNED, MAE_AGAIN, MAE_FULL, MAE_FULL_FINE_TUNED),
        "ImageNet, 300 and 800 epochs",
    ),
    Experiment("batch sizes", "Table 7", (BATCH_SIZE, BATCH_SIZE_B1), "ImageNet, batch sizes of up to 32k"),
    Experiment(
        "Deformable DETR",
        "Table 8",
        (DETR,),
        "COCO and a ResNet-50 pre-trained on ImageNet, neither of which was available; 50 epochs",
    ),
    Experiment("Mask R-CNN", "Table 9", (), "no study: BCCD has boxes but no masks; COCO was not available"),
    Experiment(
        "LSTM",
        "Table 10",
        (LSTM, LSTM_AGAIN, LSTM_PUBLISHED, LSTM_FIXED, *LSTM_LAYERS),
        "two and three layers",
    ),
    Experiment(
        "BERT on GLUE",
        "Table 11",
        (BERT, COLA, SST2, COLA_OWN, SST2_OWN, BERT_AGAIN, COLA_AGAIN, SST2_AGAIN, COLA_OWN_AGAIN, SST2_OWN_AGAIN),
        "BERT-base, the other tasks",
    ),
    Experiment(
        "GPT-2 on code",
        "Table 12",
        (GPT, GPT_HALF, GPT_30M, GPT_30M_HALF, GPT_30M_AGAIN),
        "345 M parameters, 150,000 steps, pass@k",
    ),
    Experiment(
        "Transformer-XL",
        "Table 13",
        (TRANSFORMER_XL, TRANSFORMER_XL_ADAMW, TRANSFORMER_XL_HALF),
        "WikiText-103, which was not available",
    ),
    Experiment("graphs", "Table 14", (CORA,), "ogbn-proteins, which was not available"),
    Experiment("mixtures of experts", "Table 15", (MOE,), "0.5 to 4 B parameters"),
    Experiment("betas", "Table 19", (BETAS,), "the same on a mixture of experts"),
    Experiment("parts of Adan and restarts", "Tables 20 and 22", (COMPONENTS,), "Nesterov's term; the paper's models"),
    Experiment("PPO", "Figure 2", (*TIANSHOU, HOPPER, *ROBOTS), "three million steps, ten seeds"),
    Experiment("learning rates", "", SENSITIVITY, "nothing"),
    Experiment("formats", "", (*FORMATS, *FOUR_BIT), "nothing"),
)


def runs(study: Study | Follow, records: Records) -> str:
    """How many runs a study has, its trials apart, and of how many where some are missing; "" where all are."""
    each = study.entries if isinstance(study, Study) else study.variants
    total = len(study.seeds) * len(each)
    count = sum(job.key in records and succeeded(records[job.key]) for job in study.reported(records))
    if not count:
        return ""
    gone = sum(diverged for _, diverged, _ in lost(study, records))
    return (
        f"`{study.name}` {count}" + (f" of {total}" if count < total else "") + (f", {gone} diverged" if gone else "")
    )


def listed(records: Records) -> str:
    rows = [
        [row.what, row.where, ", ".join(filter(None, (runs(s, records) for s in row.studies))) or "none", row.beyond]
        for row in EXPERIMENTS
    ]
    return table(["experiment", "in the paper", "studies and runs here", "not covered"], rows)


def untested(records: Records) -> list[str]:
    """What of the paper no study here has enough runs of to be compared; pre-training alone does not count."""
    studies = [study for row in EXPERIMENTS for study in row.studies]
    before = {study.start.study.name for study in studies if isinstance(study, Study) and study.start}
    none = [
        f"{row.what} ({row.where})"
        for row in EXPERIMENTS
        if row.where and not any(above_chance(study, records) for study in row.studies if study.name not in before)
    ]
    published = (("ResNet-34", RESNET_PUBLISHED), ("the LSTM", LSTM_PUBLISHED))
    done = [name for name, study in published if compared(study, records)]
    short = [name for name, _ in published if name not in done]
    rest = f"anything else at the paper's scale than 200 epochs of {joined(done)}" if done else "the paper's scale"
    return [*none, *([f"200 epochs of {joined(short)}"] if short else []), rest]
