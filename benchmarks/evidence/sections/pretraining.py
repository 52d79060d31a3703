"""Pre-training without labels, then fine-tuning: BERT on GLUE, MAE on CIFAR-10."""

from __future__ import annotations

from evidence.compare import Group, Records, compared
from evidence.problems.language import SOURCES
from evidence.search import Follow, Study
from evidence.sections.parts import (
    ACCURACY,
    NAMES,
    Section,
    Unit,
    comparison,
    curve,
    curves,
    joined,
    minutes,
    other_search,
    paper,
)
from evidence.studies import (
    BERT,
    BERT_AGAIN,
    COLA,
    COLA_AGAIN,
    COLA_OWN,
    COLA_OWN_AGAIN,
    MAE,
    MAE_AGAIN,
    MAE_FINE_TUNED,
    MAE_FULL,
    MAE_FULL_FINE_TUNED,
    SST2,
    SST2_AGAIN,
    SST2_OWN,
    SST2_OWN_AGAIN,
    VIT_25,
)

MASKED = Unit("test loss, nats per masked token", 1, 4, " nats", "loss")
RECONSTRUCTION = Unit("test reconstruction loss", 1, 4, "", "loss")
MATTHEWS = Unit("Matthews correlation, %", 100, 2, " points", "points")
#: A task counts where the interval of every optimizer's mean lies this far above what guessing gives.
CLEARLY = 0.05
CHANCE = {"cola": 0.0, "sst2": 0.5}


def above_chance(study: Study | Follow, records: Records) -> list[Group]:
    """The groups of a study that can be compared; none where one of a task's is not clearly above chance."""
    results = compared(study, records)
    chances = [CHANCE[group.options["task"]] for group in results if "task" in group.options]
    lows = [low for group in results if (low := group.final().low) is not None]
    return results if not chances or min(lows) > chances[0] + CLEARLY else []


def left_out(name: str, study: Study | Follow, unit: Unit, records: Records) -> list[str]:
    """Why a study is not among the results; nothing where it was not run."""
    if not (results := compared(study, records)):
        return []
    listed = joined([f"{NAMES[group.optimizer]} {unit.spread(group.final())}" for group in results])
    chance = unit(CHANCE[results[0].options["task"]])
    return [
        f"{name} is left out of the first table, whose rows require every optimizer's interval to lie at least "
        f"{CLEARLY * 100:.0f} points above chance ({chance}%). {unit.name.partition(',')[0].capitalize()}, %: {listed}."
    ]


def bert(records: Records) -> Section | None:
    results = compared(BERT_AGAIN, records)
    if not results:
        return None
    section = Section("A small BERT", [], "results-bert.svg")
    text = results[0].options["text"]
    size = results[0].records[0]["environment"].get("data", {}).get(text, "").partition(" bytes")[0]
    spent = minutes(records, BERT_AGAIN, COLA_AGAIN, COLA_OWN_AGAIN, SST2_AGAIN, SST2_OWN_AGAIN)
    section.body.append(
        f"BERT with {results[0].size}: four layers of width 256, a vocabulary of 8,000. It is pre-trained on {size} "
        f"bytes of English from {SOURCES[text]}: 8,000 steps of 128 × 128 tokens, of which 15% are prediction targets, "
        "80% of these masked and 10% replaced; gradient clipping at 1. Adam's weight "
        f"decay is decoupled, as AdamW's is. Tuned over five learning rates at {BERT_AGAIN.length:,} steps. {spent}."
    )
    section.body += ["**Pre-training**", comparison(results, MASKED)]
    section.panels.append(
        curves("pre-training", "step", MASKED, [curve(group, MASKED) for group in results], share=0.4)
    )
    tasks = (
        (COLA_AGAIN, COLA_OWN_AGAIN, "CoLA", MATTHEWS, "development split"),
        (SST2_AGAIN, SST2_OWN_AGAIN, "SST-2", ACCURACY, "whole sentences, test split"),
    )
    for study, own, name, unit, split in tasks:
        if those := above_chance(study, records):
            title = f"**{name}**, 10 epochs, batch size 32, {split}; all start from Adam's pre-training with seed 0"
            section.body += [title, comparison(those, unit)]
            section.panels.append(curves(name, "epoch", unit, [curve(group, unit) for group in those]))
            if both := above_chance(own, records):
                section.body += [
                    f"{name} as in the paper, at these settings: each optimizer fine-tunes its own pre-trained model",
                    comparison(both, unit),
                ]
            else:
                section.body += left_out(f"{name} as in the paper", own, unit, records)
        else:
            section.body += left_out(name, study, unit, records)
    first = f"read less English, from {SOURCES['english']}, and was tuned at {BERT.tune_length:,} steps"
    if compared(BERT, records):
        section.searches.append(other_search(BERT, first, MASKED, records))
        for other, unit in ((COLA, MATTHEWS), (COLA_OWN, MATTHEWS), (SST2, ACCURACY), (SST2_OWN, ACCURACY)):
            section.searches.append(other_search(other, "continued from there", unit, records))
    printed = "; ".join(
        f"{task}: Adan {paper('bert', 'Adan', task)}, Adam {paper('bert', 'Adam (reproduced)', task)}"
        for task in ("CoLA", "SST-2")
    )
    section.body.append(
        f"The paper's Table 11 reports, for BERT-base pre-trained and fine-tuned by the same optimizer, {printed}."
    )
    return section


def masked_images(records: Records) -> Section | None:
    studies = MAE_FULL, MAE_FULL_FINE_TUNED
    before, after = (compared(study, records) for study in studies)
    if not before or not after:
        return None
    section = Section("Masked autoencoding, then fine-tuning", [], "results-mae.svg")
    section.body.append(
        "The ViT above is pre-trained to reconstruct the masked three quarters of an image's patches, normalized, "
        "with a decoder of two layers of width 128: 50 epochs, random crops and flips. It is then fine-tuned for 10 "
        "epochs, in the same way as the ViT above, by the same optimizer and from the same seed. Pre-training is "
        f"tuned by its loss at {MAE_FULL.length} epochs, fine-tuning by accuracy, from the weights of seed 0, which "
        "have seen the validation split's images but not their labels. "
        f"{minutes(records, *studies)}."
    )
    parts = ("Pre-training, 50 epochs", before, RECONSTRUCTION), ("Fine-tuning, 10 epochs", after, ACCURACY)
    for title, results, unit in parts:
        section.body += [f"**{title}**", comparison(results, unit)]
        section.panels.append(curves(title, "epoch", unit, [curve(group, unit) for group in results]))
    if scratch := [group for group in compared(VIT_25, records) if group.optimizer in ("adan", "adamw")]:
        listed = joined([f"{ACCURACY(group.final().mean)} with {NAMES[group.optimizer]}" for group in scratch])
        section.body.append(f"Without pre-training, 25 epochs reach {listed}.")
    first = (
        "had trials at 10 epochs, and for Adan the default b3 of 0.99 where the paper uses 0.9 for MAE; for AdamW it "
        "chose the same settings as above"
    )
    for study, why, unit in (
        (MAE, first, RECONSTRUCTION),
        (MAE_FINE_TUNED, "continued from there", ACCURACY),
        (MAE_AGAIN, "had b3 = 0.9 and seven trials, also at 10 epochs, and chose b1 = 0.9", RECONSTRUCTION),
    ):
        if compared(study, records):
            section.searches.append(other_search(study, why, unit, records))
    section.body.append(
        "The paper's Table 6 reports, for ViT-B on ImageNet with 300 epochs of pre-training, Adan "
        f"{paper('mae', 'Adan', 'MAE ViT-B, 300 epochs')}, AdamW "
        f"{paper('mae', 'AdamW', 'MAE ViT-B, 300 epochs').rstrip('*')}."
    )
    return section
