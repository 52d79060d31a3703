"""The studies themselves: problems, lengths, optimizers and where their searches start."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from adan_bench.tables import tables
from evidence.search import TUNING_SEED, Entry, Follow, Start, Study, Variant


def adan(lr: float, *, b1: float, other: float, decay: float, other_decay: float) -> Entry:
    settings = {"betas": [b1, 0.92, 0.99], "weight_decay": decay}
    return Entry("adan", lr, settings, ({"betas": [other, 0.92, 0.99]}, {"weight_decay": other_decay}))


def adam_like(name: str, lr: float, *, b2: float, other: float, decay: float, other_decay: float) -> Entry:
    """Adam's alternatives are b2 and the decay, as Adan's are b1 and the decay: what the papers tune."""
    settings = {"betas": [0.9, b2], "weight_decay": decay}
    return Entry(name, lr, settings, ({"betas": [0.9, other]}, {"weight_decay": other_decay}))


VIT_25 = Study(
    "vit-25",
    "vit",
    {"batch_size": 256},
    25,
    "epochs",
    (
        adan(2e-3, b1=0.98, other=0.95, decay=0.02, other_decay=0.1),
        adam_like("adamw", 5e-4, b2=0.999, other=0.98, decay=0.05, other_decay=0.2),
        adam_like("lamb", 5e-3, b2=0.999, other=0.98, decay=0.05, other_decay=0.2),
    ),
    range(5),
)


def _longer(name: str, epochs: int, *optimizers: str) -> Follow:
    changes = {"length": epochs, "evaluations": 50}
    return Follow(name, VIT_25, tuple(Variant(optimizer, changes=changes) for optimizer in optimizers))


#: AdamW with twice the epochs is also what Adan's runs of `vit-25` are to equal.
VIT_50, VIT_100 = _longer("vit-50", 50, "adan", "adamw"), _longer("vit-100", 100, "adan", "adamw")
VIT_50_LAMB, VIT_100_LAMB = _longer("vit-50-lamb", 50, "lamb"), _longer("vit-100-lamb", 100, "lamb")

GPT = Study(
    "gpt",
    "gpt",
    {"batch_size": 64},
    2_000,
    "steps",
    (
        adan(2e-3, b1=0.9, other=0.95, decay=0.02, other_decay=0.1),
        adam_like("adamw", 5e-4, b2=0.99, other=0.95, decay=0.1, other_decay=0.02),
        adam_like("adam", 5e-4, b2=0.99, other=0.95, decay=0.0, other_decay=1e-6),
    ),
    range(5),
    evaluations=20,
)
GPT_HALF = Follow("gpt-half", GPT, (Variant("adan", changes={"length": 1_000}),), range(5))
GPT_30M = Study(
    "gpt-30m",
    "gpt",
    {"batch_size": 32, "width": 512, "layers": 8, "heads": 8, "context": 512},
    3_000,
    "steps",
    (
        adan(2e-3, b1=0.9, other=0.95, decay=0.02, other_decay=0.1),
        adam_like("adamw", 1e-3, b2=0.99, other=0.95, decay=0.1, other_decay=0.02),
    ),
    range(5),
    tune_length=1_000,
    trials=5,
    evaluations=20,
)
#: The search again, at full length: at a third of it, two of AdamW's rates were level.
GPT_30M_AGAIN = replace(
    GPT_30M,
    name="gpt-30m-again",
    entries=(GPT_30M.entries[0], adam_like("adamw", 7e-4, b2=0.99, other=0.95, decay=0.1, other_decay=0.02)),
    tune_length=None,
)
GPT_30M_HALF = Follow("gpt-30m-half", GPT_30M, (Variant("adan", changes={"length": 1_500}),), range(5))

#: Which b1 for which length: three rates each, the best of which counts.
B1_LENGTH = Follow(
    "b1-length-gpt",
    GPT,
    tuple(
        Variant("adan", {"betas": [b1, 0.92, 0.99]}, factor, {"length": steps})
        for steps in (500, 1_000, 4_000)
        for b1 in (0.9, 0.95, 0.98)
        for factor in (0.5, 1.0, 2.0)
    ),
    (TUNING_SEED,),
)

RESNET = Study(
    "resnet34-30",
    "resnet34",
    {"batch_size": 128},
    30,
    "epochs",
    (
        adan(2.5e-3, b1=0.98, other=0.95, decay=0.02, other_decay=0.1),
        adam_like("adamw", 5e-4, b2=0.999, other=0.99, decay=0.1, other_decay=0.5),
        Entry("sgd", 0.05, {"weight_decay": 5e-4}, ({"nesterov": True}, {"weight_decay": 1e-3})),
    ),
    tune_length=5,
    evaluations=30,
)
#: The search again, at half the length: in the first one, at a sixth, Adan had decays far below AdamW's share of the
#: weights per step, led until epoch 24 and then hardly gained.
RESNET_AGAIN = replace(
    RESNET,
    name="resnet34-30-again",
    entries=(
        adan(2.5e-3, b1=0.98, other=0.95, decay=0.1, other_decay=0.3),
        adam_like("adamw", 1e-3, b2=0.999, other=0.99, decay=0.5, other_decay=0.2),
        Entry("sgd", 0.05, {"weight_decay": 5e-4, "nesterov": True}, ({"nesterov": False}, {"weight_decay": 1e-3})),
    ),
    tune_length=15,
)
#: Tuned in the same way, and shown beside those.
RESNET_OTHERS = replace(
    RESNET_AGAIN,
    name="resnet34-30-others",
    entries=(
        adam_like("adam", 5e-4, b2=0.999, other=0.99, decay=5e-4, other_decay=1e-4),
        adam_like("lamb", 5e-3, b2=0.999, other=0.99, decay=0.1, other_decay=0.5),
    ),
)
CONVNEXT = Study(
    "convnext-25",
    "convnext",
    {"batch_size": 256},
    25,
    "epochs",
    (
        adan(2e-3, b1=0.98, other=0.95, decay=0.02, other_decay=0.1),
        adam_like("adamw", 1e-3, b2=0.999, other=0.98, decay=0.05, other_decay=0.2),
    ),
    range(5),
    tune_length=10,
    trials=5,
)
#: The search again, at full length: the first one, at 10 epochs, ended at its largest rate for both.
CONVNEXT_AGAIN = replace(
    CONVNEXT,
    name="convnext-25-again",
    entries=(
        adan(0.016, b1=0.98, other=0.95, decay=0.02, other_decay=0.1),
        adam_like("adamw", 8e-3, b2=0.999, other=0.98, decay=0.05, other_decay=0.2),
    ),
    tune_length=None,
)
#: The square-root rule from the batch of 256 at which the ViT is tuned.
BATCH_SIZES = (128, 256, 1_024, 4_096)
BATCH_SIZE = Follow(
    "batch-size-vit",
    VIT_25,
    tuple(
        Variant(name, {}, math.sqrt(size / 256), {"options": {"batch_size": size}})
        for size in BATCH_SIZES
        for name in ("adan", "adamw", "lamb")
    ),
)
#: With the b1 for few steps: 25 epochs are 1,200 and 300 of them.
BATCH_SIZE_B1 = Follow(
    "batch-size-vit-b1",
    VIT_25,
    tuple(
        Variant("adan", {"betas": [0.9, 0.92, 0.99]}, math.sqrt(size / 256), {"options": {"batch_size": size}})
        for size in (1_024, 4_096)
    ),
)
#: Pre-training is tuned by the reconstruction loss, at a fifth of its length.
MAE = Study(
    "mae-50",
    "mae",
    {"batch_size": 256},
    50,
    "epochs",
    (
        adan(2e-3, b1=0.98, other=0.9, decay=0.02, other_decay=0.1),
        adam_like("adamw", 1e-3, b2=0.95, other=0.999, decay=0.05, other_decay=0.2),
    ),
    tune_length=10,
    trials=5,
    evaluations=10,
)
MAE_FINE_TUNED = Study(
    "mae-50-fine-tuned",
    "vit",
    {"batch_size": 256},
    10,
    "epochs",
    (
        adan(1e-3, b1=0.98, other=0.9, decay=0.02, other_decay=0.1),
        adam_like("adamw", 5e-4, b2=0.999, other=0.98, decay=0.05, other_decay=0.2),
    ),
    trials=5,
    evaluations=10,
    start=Start(MAE),
)
#: The search again: AdamW had the b2 that MAE's authors use, Adan not the b3 of 0.9 that its paper has for MAE.
MAE_AGAIN = replace(
    MAE,
    name="mae-50-again",
    entries=(
        Entry(
            "adan",
            2e-3,
            {"betas": [0.98, 0.92, 0.9], "weight_decay": 0.02},
            ({"betas": [0.9, 0.92, 0.9]}, {"weight_decay": 0.1}),
        ),
        MAE.entries[1],
    ),
    trials=7,
)
#: And once more, at full length: at a fifth of it, tuning chooses a smaller b1 than is good at the end.
MAE_FULL = replace(MAE_AGAIN, name="mae-50-full", tune_length=None, trials=5)
MAE_FULL_FINE_TUNED = replace(MAE_FINE_TUNED, name="mae-50-full-fine-tuned", start=Start(MAE_FULL))
LSTM = Study(
    "lstm-8",
    "lstm",
    {"layers": 1, "scale": "small"},
    8,
    "epochs",
    (
        adan(5e-3, b1=0.98, other=0.9, decay=0.02, other_decay=0.1),
        adam_like("adamw", 1e-3, b2=0.999, other=0.99, decay=0.02, other_decay=0.1),
        adam_like("adam", 1e-3, b2=0.999, other=0.99, decay=0.0, other_decay=1.2e-6),
        Entry("sgd", 15.0, {"momentum": 0.0, "weight_decay": 1.2e-6}, ({"momentum": 0.5}, {"weight_decay": 1e-5})),
        Entry(
            "adabelief",
            1e-3,
            {"betas": [0.9, 0.999], "eps": 1e-12, "weight_decay": 1.2e-6},
            ({"eps": 1e-16}, {"weight_decay": 0.02}),
        ),
    ),
    tune_length=4,
    evaluations=8,
)
#: The search again, from where the first one ended: for three of them at its largest rate, for Adan at the smaller b1,
#: which it had tried at one rate only.
LSTM_AGAIN = replace(
    LSTM,
    name="lstm-8-again",
    entries=(
        adan(0.02, b1=0.9, other=0.8, decay=0.02, other_decay=0.1),
        adam_like("adamw", 8e-3, b2=0.999, other=0.99, decay=0.1, other_decay=0.3),
        adam_like("adam", 8e-3, b2=0.999, other=0.99, decay=1.2e-6, other_decay=1e-5),
        Entry("sgd", 60.0, {"momentum": 0.0, "weight_decay": 1e-5}, ({"momentum": 0.5}, {"weight_decay": 1e-4})),
        Entry(
            "adabelief",
            8e-3,
            {"betas": [0.9, 0.999], "eps": 1e-12, "weight_decay": 0.02},
            ({"eps": 1e-16}, {"weight_decay": 0.1}),
        ),
    ),
    seeds=range(5),
)
LSTM_LAYERS = tuple(
    Follow(
        f"lstm-{layers}-layers",
        LSTM_AGAIN,
        tuple(Variant(entry.optimizer, changes={"options": {"layers": layers}}) for entry in LSTM_AGAIN.entries),
    )
    for layers in (2, 3)
)


_TABLES = tables()


def as_published(table: str, optimizer: str, there: str = "", **further: Any) -> Entry:
    """The harness's settings for the first cell of an optimizer's row. there: its name in that table, if another."""
    column = _TABLES[table].columns[0]
    settings = _TABLES[table].published(there or optimizer, column.workload, column).run["settings"]
    return Entry(optimizer, settings.pop("lr"), {**settings, **further})


#: The published length, schedule and settings. Adan's rate is not published.
RESNET_PUBLISHED = Study(
    "resnet34-200",
    "resnet34",
    {"batch_size": 128, "schedule": _TABLES["cifar10"].run["schedule"], "warmup": 0.0},
    200,
    "epochs",
    (
        as_published("cifar10", "adan"),
        as_published("cifar10", "adamw"),
        as_published("cifar10", "sgd", "sgd-momentum"),
    ),
    trials=0,
    evaluations=50,
)
#: The same, but for rows of random length and SGD's switch to averaging.
LSTM_PUBLISHED = Study(
    "lstm-200",
    "lstm",
    {"layers": 1, "scale": "small", "schedule": _TABLES["lstm"].run["schedule"], "warmup": 0.0},
    200,
    "epochs",
    (
        *(as_published("lstm", name) for name in ("adan", "adamw", "adam")),
        as_published("lstm", "sgd", momentum=0.0),
        as_published("lstm", "adabelief"),
    ),
    trials=0,
    evaluations=50,
)
#: As in AdaBelief's code, by which the paper's table was made: the recurrent weights keep their initial values.
LSTM_FIXED = replace(LSTM_PUBLISHED, name="lstm-200-fixed", options={**LSTM_PUBLISHED.options, "fixed_recurrent": True})

TRANSFORMER_XL = Study(
    "transformer-xl",
    "transformer-xl",
    {"batch_size": 20},
    20_000,
    "steps",
    (
        adan(5e-4, b1=0.9, other=0.98, decay=0.02, other_decay=0.1),
        adam_like("adam", 1.25e-4, b2=0.999, other=0.99, decay=0.0, other_decay=1e-6),
    ),
    trials=5,  # as long as the runs: rates that are fine for 4,000 steps fail later
    evaluations=20,
)
#: Tuned in the same way, and shown beside those.
TRANSFORMER_XL_ADAMW = replace(
    TRANSFORMER_XL,
    name="transformer-xl-adamw",
    entries=(adam_like("adamw", 1.25e-4, b2=0.999, other=0.99, decay=0.1, other_decay=0.01),),
)
TRANSFORMER_XL_HALF = Follow("transformer-xl-half", TRANSFORMER_XL, (Variant("adan", changes={"length": 10_000}),))


def published_adam(lr: float, decay: float) -> Entry:
    """Fairseq's Adam, with which the paper trains BERT: its decay is decoupled."""
    settings = {"betas": [0.9, 0.98], "eps": 1e-6, "weight_decay": decay, "decoupled_weight_decay": True}
    return Entry("adam", lr, settings, ({"betas": [0.9, 0.999]}, {"weight_decay": 0.1 if decay < 0.1 else 0.01}))


BERT = Study(
    "bert",
    "bert",
    {"batch_size": 128},
    8_000,
    "steps",
    (adan(2e-3, b1=0.98, other=0.9, decay=0.02, other_decay=0.1), published_adam(1e-3, 0.01)),
    range(5),
    tune_length=4_000,  # a tiny one was at 6.0 nats after 1,500 steps, where frequencies alone give 6.4
    trials=5,
    evaluations=20,
)
#: With more text, and trials as long as the runs.
BERT_AGAIN = replace(
    BERT, name="bert-again", options={**BERT.options, "text": "debian"}, seeds=range(3), tune_length=None
)


def fine_tuned(bert: Study, task: str) -> Study:
    """All start from the BERT that Adam pre-trained from seed 0."""
    return Study(
        bert.name.replace("bert", f"bert-{task}"),
        "glue",
        {**bert.options, "task": task, "batch_size": 32},
        10,
        "epochs",
        (adan(4e-4, b1=0.98, other=0.9, decay=0.01, other_decay=0.1), published_adam(2e-4, 0.1)),
        range(5),
        evaluations=10,
        start=Start(bert, "adam"),
    )


def own(study: Study, bert: Study) -> Follow:
    """The paper's way: each optimizer fine-tunes what it has pre-trained, seed by seed."""
    return Follow(f"{study.name}-own", study, (Variant("adan"), Variant("adam")), start=Start(bert))


COLA, SST2 = (fine_tuned(BERT, task) for task in ("cola", "sst2"))
COLA_AGAIN, SST2_AGAIN = (fine_tuned(BERT_AGAIN, task) for task in ("cola", "sst2"))
COLA_OWN, SST2_OWN = (own(study, BERT) for study in (COLA, SST2))
COLA_OWN_AGAIN, SST2_OWN_AGAIN = (own(study, BERT_AGAIN) for study in (COLA_AGAIN, SST2_AGAIN))

#: What states of fewer bits cost in quality. The fp32 runs are the study's own where the length is.
_SHORT_VIT = {"length": 10, "evaluations": 10}
_FORMATS: tuple[tuple[str, Study, Mapping[str, Any]], ...] = (
    ("lstm-8", LSTM, {}),
    ("gpt", GPT, {}),
    ("vit-10", VIT_25, _SHORT_VIT),
)
FORMATS, FOUR_BIT = (
    tuple(
        Follow(
            f"{kind}-{name}",
            study,
            (Variant("adan", changes=changes), Variant("adan", {"state_format": state_format}, changes=changes)),
            range(5),
        )
        for name, study, changes in _FORMATS
    )
    for kind, state_format in (("formats", "8bit"), ("four-bit", "4bit"))
)

#: Two decades around each optimizer's usual rate, on the tuning seed, with the betas and decay that tuning chose.
_RATES = (1e-4, 1.8e-4, 3e-4, 5.6e-4, 1e-3, 1.8e-3, 3e-3, 5.6e-3, 1e-2, 1.8e-2, 3e-2, 5.6e-2, 1e-1)
SENSITIVITY = tuple(
    Follow(
        f"sensitivity-{study.name}",
        study,
        tuple(
            Variant(name, {"lr": _RATES[first + offset + i]})
            for i in range(9)
            for name, offset in (("adan", 2), ("adamw", 0))
        ),
        (TUNING_SEED,),
    )
    for study, first in ((GPT, 0), (VIT_25, 0), (LSTM_AGAIN, 2), (RESNET, 0))
)

_TINY = {"batch_size": 32, "width": 128, "layers": 4, "heads": 4, "context": 128}
TINY_GPT = Study(
    "gpt-tiny",
    "gpt",
    _TINY,
    2_000,
    "steps",
    (
        adan(4e-3, b1=0.9, other=0.95, decay=0.02, other_decay=0.1),
        adam_like("adamw", 2e-3, b2=0.99, other=0.95, decay=0.1, other_decay=0.02),
    ),
    range(5),
    evaluations=20,
)
#: The paper's grid: b1 and b3 of Adan, b1 and b2 of AdamW, each at the rate that tuning chose for its optimizer.
BETAS = Follow(
    "betas-gpt-tiny",
    TINY_GPT,
    tuple(
        Variant(name, {"betas": [b1, *between, last]})
        for name, between in (("adan", (0.92,)), ("adamw", ()))
        for last in (0.95, 0.99)
        for b1 in (0.9, 0.94, 0.98)
    ),
)
#: What the parts of Adan add: decay as AdamW's, the proximal decay, restarts after each sixth of a run.
COMPONENTS = Follow(
    "components-gpt-tiny",
    TINY_GPT,
    (
        Variant("adamw"),
        Variant("adan", {"no_prox": True}),
        Variant("adan"),
        Variant("adan", {"restart": {"every": 333}}),
    ),
    range(5),
)
MOE = replace(TINY_GPT, name="moe", options={**_TINY, "experts": 8})

CORA = Study(
    "cora",
    "cora",
    {"layers": 14, "channels": 64},
    300,
    "steps",
    (
        adan(5e-3, b1=0.98, other=0.9, decay=0.02, other_decay=0.2),
        adam_like("adam", 2e-3, b2=0.999, other=0.99, decay=0.0, other_decay=5e-4),
        adam_like("adamw", 2e-3, b2=0.999, other=0.99, decay=0.02, other_decay=0.2),
    ),
    range(10),
    evaluations=30,
)

DETR = Study(
    "detr-bccd",
    "detr",
    {"batch_size": 16},
    1_000,
    "steps",
    (
        adan(4e-3, b1=0.9, other=0.98, decay=0.02, other_decay=0.1),
        adam_like("adamw", 7e-4, b2=0.999, other=0.99, decay=1e-4, other_decay=0.02),
    ),
    range(5),
    trials=5,
    evaluations=5,
)

_PPO = {"scale": "paper", "batch_size": 64, "schedule": "linear", "warmup": 0.0}
_ROLLOUT = 320  # updates; 2,048 steps of the simulator
HOPPER = Study(
    "ppo-hopper",
    "harness",
    {**_PPO, "workload": "ppo-hopper"},
    245 * _ROLLOUT,
    "steps",
    (
        Entry("adan", 3e-4, {"betas": [0.98, 0.92, 0.99]}, ({"betas": [0.9, 0.92, 0.99]}, {"eps": 1e-5})),
        Entry("adam", 1.5e-4, {"betas": [0.9, 0.999]}, ({"betas": [0.9, 0.99]}, {"eps": 1e-5})),
    ),
    range(5),
    tune_length=49 * _ROLLOUT,
    trials=4,
    evaluations=16,
    lane="cpu",
)
ROBOTS = tuple(
    Follow(
        f"ppo-{robot}",
        HOPPER,
        tuple(Variant(name, changes={"options": {"workload": f"ppo-{robot}"}}) for name in ("adan", "adam")),
        range(5),
    )
    for robot in ("walker2d", "halfcheetah", "ant")
)
#: The same tuned on this robot, with all seven trials.
HALFCHEETAH = replace(HOPPER, name="ppo-halfcheetah-tuned", options={**_PPO, "workload": "ppo-halfcheetah"}, trials=7)

#: PPO as Tianshou has it, which the harness's is now: the rate falls once per rollout. The studies above are of the PPO
#: that it had before; their runs are kept, and no more can be made.
_TIANSHOU = {**_PPO, "schedule": "linear:245"}
TIANSHOU_HOPPER = replace(HOPPER, name="tianshou-hopper", options={**_TIANSHOU, "workload": "ppo-hopper"})
TIANSHOU: tuple[Study | Follow, ...] = (
    TIANSHOU_HOPPER,
    *(
        Follow(
            f"tianshou-{robot}",
            TIANSHOU_HOPPER,
            tuple(Variant(name, changes={"options": {"workload": f"ppo-{robot}"}}) for name in ("adan", "adam")),
            range(5),
        )
        for robot in ("halfcheetah", "walker2d", "ant")
    ),
)

#: In the order in which they are worth GPU time.
_ORDER: tuple[Study | Follow, ...] = (
    VIT_25,
    VIT_50,
    GPT,
    GPT_HALF,
    LSTM,
    LSTM_AGAIN,
    *FOUR_BIT,
    *FORMATS,
    *SENSITIVITY,
    CORA,
    DETR,
    TINY_GPT,
    MOE,
    COMPONENTS,
    BETAS,
    B1_LENGTH,
    VIT_50_LAMB,
    VIT_100,
    VIT_100_LAMB,
    RESNET,
    RESNET_AGAIN,
    RESNET_OTHERS,
    CONVNEXT,
    CONVNEXT_AGAIN,
    BERT,
    COLA,
    SST2,
    COLA_OWN,
    SST2_OWN,
    BERT_AGAIN,
    COLA_AGAIN,
    SST2_AGAIN,
    COLA_OWN_AGAIN,
    SST2_OWN_AGAIN,
    MAE,
    MAE_FINE_TUNED,
    MAE_AGAIN,
    MAE_FULL,
    MAE_FULL_FINE_TUNED,
    GPT_30M,
    GPT_30M_HALF,
    GPT_30M_AGAIN,
    BATCH_SIZE,
    BATCH_SIZE_B1,
    TRANSFORMER_XL,
    TRANSFORMER_XL_ADAMW,
    TRANSFORMER_XL_HALF,
    LSTM_PUBLISHED,
    LSTM_FIXED,
    RESNET_PUBLISHED,
    *LSTM_LAYERS,
    *TIANSHOU,
)
STUDIES = {study.name: study for study in _ORDER}
