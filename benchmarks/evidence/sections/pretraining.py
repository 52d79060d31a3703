"""Pre-training without labels, then fine-tuning: BERT on GLUE, MAE on CIFAR-10."""

from __future__ import annotations

from adan_bench.records.stats import MIN_SEEDS
from evidence.compare import Group, Records, compared
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
    COLA,
    COLA_OWN,
    MAE,
    MAE_AGAIN,
    MAE_FINE_TUNED,
    MAE_FULL,
    MAE_FULL_FINE_TUNED,
    SST2,
    SST2_OWN,
    VIT_25,
)

MASKED = Unit("test loss, nats per masked token", 1, 4, " nats", "loss")
RECONSTRUCTION = Unit("test reconstruction loss", 1, 4, "", "loss")
MATTHEWS = Unit("Matthews correlation, %", 100, 2, " points", "points")
#: A task counts where the interval of every optimizer's mean lies this far above what guessing gives.
CLEARLY = 0.05
CHANCE = {COLA.name: 0.0, COLA_OWN.name: 0.0, SST2.name: 0.5, SST2_OWN.name: 0.5}


def above_chance(study: Study | Follow, records: Records) -> list[Group]:
    """The groups of a study that can be compared; none where one of them is not clearly above chance."""
    found = compared(study, records)
    lows = [low for group in found if (low := group.final().low) is not None]
    return found if study.name not in CHANCE or min(lows, default=0.0) > CHANCE[study.name] + CLEARLY else []


def left_out(name: str, study: Study | Follow, unit: Unit, records: Records) -> list[str]:
    """Why a study is not among the results; nothing where it was not run."""
    if not (found := compared(study, records)):
        return []
    listed = joined([unit.spread(group.final()) for group in found])
    chance = unit(CHANCE[study.name])
    return [
        f"{name} is left out of the table: {unit.name.removesuffix(', %')} of {listed}%, not clearly above the "
        f"{chance}% of guessing."
    ]


def bert(records: Records) -> Section | None:
    found = compared(BERT, records)
    if not found:
        return None
    section = Section("A small BERT", [], "results-bert.svg")
    facts = found[0].records[0]["environment"].get("data", {}).get("english", "English text")
    section.body.append(
        f"BERT of {found[0].size}: four layers of width 256, a vocabulary of 8,000. It is pre-trained on "
        f"{facts.partition(' of installed')[0]} of installed packages: 8,000 steps of 128 × 128 tokens, of which 15% "
        "are prediction targets, 80% of these masked and 10% replaced; cosine schedule after 5% of warm-up, clipping "
        "at 1. Tuned by five rates at 4,000 steps. "
        f"{minutes(records, *(study.name for study in (BERT, COLA, COLA_OWN, SST2, SST2_OWN)))}."
    )
    added = "; seeds beyond the third were added when three had been seen" if found[0].n > MIN_SEEDS else ""
    section.body += [f"**Pre-training**{added}", comparison(found, MASKED)]
    section.panels.append(curves("pre-training", "step", MASKED, [curve(group, MASKED) for group in found], share=0.4))
    tasks = (
        (COLA, COLA_OWN, "CoLA", MATTHEWS, "development split"),
        (SST2, SST2_OWN, "SST-2", ACCURACY, "whole sentences, test split"),
    )
    for study, own, name, unit, split in tasks:
        if those := above_chance(study, records):
            title = f"**{name}**, 10 epochs of batches of 32, {split}; all start from what Adam pre-trained from seed 0"
            section.body += [title, comparison(those, unit)]
            section.panels.append(curves(name, "epoch", unit, [curve(group, unit) for group in those]))
            if both := above_chance(own, records):
                section.body += [
                    f"{name} as in the paper, at these settings: each optimizer fine-tunes what it has pre-trained",
                    comparison(both, unit),
                ]
            else:
                section.body += left_out(f"{name} as in the paper", own, unit, records)
        else:
            section.body += left_out(name, study, unit, records)
    printed = "; ".join(
        f"{task}: Adan {paper('bert', 'Adan', task)}, Adam {paper('bert', 'Adam (reproduced)', task)}"
        for task in ("CoLA", "SST-2")
    )
    section.body.append(
        f"The paper's Table 11 has BERT-base, pre-trained and fine-tuned by the same optimizer. {printed}."
    )
    return section


def masked_images(records: Records) -> Section | None:
    studies = MAE_FULL, MAE_FULL_FINE_TUNED
    before, after = (compared(study, records) for study in studies)
    if not before or not after:
        return None
    section = Section("Masked autoencoding, then fine-tuning", [], "results-mae.svg")
    section.body.append(
        "The ViT above is pre-trained to reconstruct the three quarters of an image's patches that are masked, "
        "normalized, with a decoder of two layers of width 128: 50 epochs, random crops and flips. Then it is "
        "fine-tuned for 10 epochs as the ViT above is trained, by the same optimizer and from the same seed. "
        f"Pre-training is tuned by its loss at {MAE_FULL.length} epochs, fine-tuning by accuracy, from the weights of "
        "seed 0, which have seen the validation split's images but not their labels. "
        f"{minutes(records, *(study.name for study in studies))}."
    )
    parts = ("Pre-training, 50 epochs", before, RECONSTRUCTION), ("Fine-tuning, 10 epochs", after, ACCURACY)
    for title, found, unit in parts:
        section.body += [f"**{title}**", comparison(found, unit)]
        section.panels.append(curves(title, "epoch", unit, [curve(group, unit) for group in found]))
    if scratch := [group for group in compared(VIT_25, records) if group.optimizer in ("adan", "adamw")]:
        listed = joined([f"{ACCURACY(group.final().mean)} with {NAMES[group.optimizer]}" for group in scratch])
        section.body.append(f"Without pre-training, 25 epochs reach {listed}.")
    first = (
        "had trials at 10 epochs, and for Adan the default b3 of 0.99 where the paper takes 0.9 for MAE; its AdamW "
        "chose what the one above did"
    )
    for study, why, unit in (
        (MAE, first, RECONSTRUCTION),
        (MAE_FINE_TUNED, "went on from there", ACCURACY),
        (MAE_AGAIN, "with b3 = 0.9 and seven trials, at 10 epochs, too, chose b1 = 0.9", RECONSTRUCTION),
    ):
        if compared(study, records):
            section.body.append(other_search(study, why, unit, records))
    section.body.append(
        "The paper's Table 6 has ViT-B on ImageNet: with 300 epochs of pre-training Adan "
        f"{paper('mae', 'Adan', 'MAE ViT-B, 300 epochs')}, AdamW "
        f"{paper('mae', 'AdamW', 'MAE ViT-B, 300 epochs').rstrip('*')}."
    )
    return section
