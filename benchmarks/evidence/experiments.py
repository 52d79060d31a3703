"""The paper's experiments one by one: what was run of each here, and what the rest would take."""

from __future__ import annotations

from dataclasses import dataclass

from evidence.compare import Records
from evidence.sections.language import PTB_EPOCH
from evidence.sections.parts import on_gpu, table
from evidence.sections.pretraining import shown
from evidence.studies import (
    BATCH_SIZE,
    BERT,
    BETAS,
    COLA,
    COLA_OWN,
    COMPONENTS,
    CONVNEXT,
    CORA,
    DETR,
    FORMATS,
    FOUR_BIT,
    GPT,
    GPT_30M,
    GPT_30M_HALF,
    GPT_HALF,
    HOPPER,
    LSTM,
    LSTM_AGAIN,
    MAE,
    MAE_FINE_TUNED,
    MOE,
    RESNET,
    ROBOTS,
    SENSITIVITY,
    SST2,
    SST2_OWN,
    TIANSHOU,
    TRANSFORMER_XL,
    VIT_25,
    VIT_50,
    Follow,
    Study,
)

CIFAR_EPOCH = 390  # steps with batches of 128

#: Steps per second of one H200 with several runs at a time: results/bench-harness.json, and for the ViT and the GPT of
#: these studies what their records add up to.
RATES = {"resnet34": 237, "lstm": 1_041, "vit": 230, "gpt": 190, "gpt-tiny": 1_370}


def cost(problem: str, steps: float) -> str:
    return on_gpu(steps / RATES[problem])


@dataclass(frozen=True)
class Experiment:
    """A row of the paper. missing: what was not run of it, and what that would take."""

    what: str
    where: str
    studies: tuple[Study | Follow, ...]
    missing: str


EXPERIMENTS = (
    Experiment(
        "CNNs in the vanilla setting",
        "Tables 3 and 4",
        (RESNET,),
        f"ResNet-34 is tuned at 5 epochs (21 trials); its nine runs of 30 (`resnet34-30`): "
        f"{cost('resnet34', 9 * 30 * CIFAR_EPOCH)}; of 200: {cost('resnet34', 9 * 200 * CIFAR_EPOCH)}",
    ),
    Experiment(
        "ConvNeXt in Setting II",
        "Table 2",
        (CONVNEXT,),
        f"`convnext-25`, 10 trials of 10 epochs and 6 runs, at the ViT's rate: {cost('vit', 10 * 1_750 + 6 * 4_875)}",
    ),
    Experiment("ViT", "Tables 5 and 16", (VIT_25, VIT_50), f"100 epochs (`vit-100`): {cost('vit', 6 * 19_500)}"),
    Experiment(
        "MAE with fine-tuning",
        "Table 6",
        (MAE, MAE_FINE_TUNED),
        "`mae-50`, 10 trials of 10 and 6 runs of 50 epochs, and `mae-50-fine-tuned`, 10 trials and 6 runs of 10, at "
        f"the ViT's rate: {cost('vit', 10 * 1_750 + 6 * 9_750 + 10 * 1_750 + 6 * 1_950)}",
    ),
    Experiment("batch sizes", "Table 7", (BATCH_SIZE,), f"`batch-size-vit`, 27 runs: {cost('vit', 27 * 4_875)}"),
    Experiment(
        "Deformable DETR",
        "Table 8",
        (DETR,),
        "COCO and a ResNet-50 pre-trained on ImageNet, neither of which was at hand; 50 epochs",
    ),
    Experiment("Mask R-CNN", "Table 9", (), "no study: BCCD has boxes but no masks; COCO was not at hand"),
    Experiment(
        "LSTM",
        "Table 10",
        (LSTM, LSTM_AGAIN),
        f"200 epochs (`lstm-200`): {cost('lstm', 15 * 200 * PTB_EPOCH)}; two and three layers "
        "(`lstm-2-layers`, `lstm-3-layers`)",
    ),
    Experiment(
        "BERT on GLUE",
        "Table 11",
        (BERT, COLA, SST2, COLA_OWN, SST2_OWN),
        "`bert`, 10 trials of 4,000 and 6 runs of 8,000 steps, at the ViT's rate, whose batches have as many tokens: "
        f"{cost('vit', 10 * 4_000 + 6 * 8_000)}; `bert-cola` and `bert-sst2`, 14 trials and 10 runs of 10 epochs each, "
        "and `bert-cola-own` and `bert-sst2-own`, 6 runs each, at the tiny GPT's rate: "
        f"{cost('gpt-tiny', 140 * 233 + 160 * 267 + 300 * 216)}",
    ),
    Experiment(
        "GPT-2 on code",
        "Table 12",
        (GPT, GPT_HALF, GPT_30M, GPT_30M_HALF),
        "`gpt-30m` and `gpt-30m-half`, 10 trials of 1,000 and 6 runs of 3,000 steps, 3 of 1,500, whose steps have 2.4 "
        f"times the arithmetic of the smaller GPT's: {cost('gpt', 2.4 * (10 * 1_000 + 6 * 3_000 + 3 * 1_500))}; 345 M "
        "parameters, 150,000 steps, pass@k",
    ),
    Experiment(
        "Transformer-XL",
        "Table 13",
        (TRANSFORMER_XL,),
        "`transformer-xl`, 14 trials of 4,000 and 6 runs of 20,000 steps, at the GPT's rate: "
        + cost("gpt", 14 * 4_000 + 6 * 20_000),
    ),
    Experiment("graphs", "Table 14", (CORA,), "ogbn-proteins, which was not at hand"),
    Experiment(
        "mixtures of experts",
        "Table 15",
        (MOE,),
        "0.5 to 4 B parameters",
    ),
    Experiment(
        "betas",
        "Table 19",
        (BETAS,),
        "the same on a mixture of experts",
    ),
    Experiment(
        "parts of Adan and restarts",
        "Tables 20 and 22",
        (COMPONENTS,),
        "the same on the paper's models",
    ),
    Experiment(
        "PPO",
        "Figure 2",
        (*TIANSHOU, HOPPER, *ROBOTS),
        "Ant with Tianshou's PPO (`tianshou-ant`); three million steps, ten seeds",
    ),
    Experiment(
        "learning rates",
        "",
        SENSITIVITY,
        f"ViT (`sensitivity-vit-25`): {cost('vit', 17 * 4_375)}; ResNet-34 at 5 epochs (`sensitivity-resnet34-30`): "
        f"{cost('resnet34', 18 * 5 * 351)}",
    ),
    Experiment("formats", "", (*FORMATS, *FOUR_BIT), "nothing"),
)


def made(study: Study | Follow, records: Records) -> str:
    """How many runs a study has, its trials apart; the empty string where it has none."""
    trials = isinstance(study, Study)
    jobs = [r["job"] for r in records.values() if r["job"]["study"] == study.name and r["status"] == "finished"]
    count = sum(not (trials and job["tuning"]) for job in jobs)
    return f"`{study.name}` {count}" if count else ""


def listed(records: Records) -> str:
    rows = []
    for row in EXPERIMENTS:
        here = ", ".join(text for study in row.studies if (text := made(study, records)))
        rows.append([row.what, row.where, here or "none", row.missing])
    return table(["experiment", "in the paper", "studies and runs here", "not run"], rows)


def untested(records: Records) -> list[str]:
    """Experiments of the paper of which no study here has enough runs to be compared; pre-training alone is none."""
    studies = [study for row in EXPERIMENTS for study in row.studies]
    before = {study.start.study.name for study in studies if isinstance(study, Study) and study.start}
    return [
        f"{row.what} ({row.where})"
        for row in EXPERIMENTS
        if row.where and not any(shown(study, records) for study in row.studies if study.name not in before)
    ]
