"""Image classifiers on CIFAR-10."""

from __future__ import annotations

import statistics

from adan_bench.records.stats import MIN_SEEDS
from evidence.compare import Group, Records, best_baseline, compared, groups, verdict
from evidence.figures import Line
from evidence.search import Follow, Study
from evidence.sections.parts import (
    ACCURACY,
    NAMES,
    Section,
    add_study,
    color,
    curves,
    half_length,
    joined,
    minutes,
    other_search,
    paper,
    recipes,
    table,
    together,
)
from evidence.studies import (
    BATCH_SIZE,
    BATCH_SIZE_B1,
    BATCH_SIZES,
    CONVNEXT,
    CONVNEXT_AGAIN,
    RESNET,
    RESNET_AGAIN,
    RESNET_OTHERS,
    RESNET_PUBLISHED,
    VIT_25,
    VIT_50,
    VIT_50_LAMB,
    VIT_100,
    VIT_100_LAMB,
)

#: By epochs; LAMB at the longer ones is a study of its own.
VIT: dict[int, tuple[Study | Follow, Follow | None]] = {
    25: (VIT_25, None),
    50: (VIT_50, VIT_50_LAMB),
    100: (VIT_100, VIT_100_LAMB),
}


def vision(records: Records) -> Section | None:
    results = compared(VIT_25, records)
    if not results:
        return None
    section = Section("A vision transformer on CIFAR-10", [], "results-vit.svg")
    intro = (
        "ViT with {size}, batch size 256, gradient clipping at 1, random crops, flips and cutout, label smoothing 0.1. "
        "**25 epochs**,"
    )
    for epochs, (study, lamb) in VIT.items():
        text = intro if study is VIT_25 else f"**{epochs} epochs**, with the settings tuned at 25,"
        if not add_study(study, ACCURACY, section, text, records, lamb, title=f"{epochs} epochs"):
            continue
        if epochs // 2 in VIT and (shorter := together(*VIT[epochs // 2], records)):
            half_length(section, shorter[0], together(study, lamb, records), ACCURACY, shorter[1:])
    figures = [paper("vit-s", row, f"{n} epochs") for n, row in ((150, "Adan"), (150, "AdamW (default)"))]
    section.body.append(
        f"The paper's Table 16 reports, for ViT-S on ImageNet, after 150 epochs Adan {figures[0]}, AdamW {figures[1]}; "
        f"AdamW after 300 epochs {paper('vit-s', 'AdamW (default)', '300 epochs').rstrip('*')}."
    )
    return section


def by_batch_size(records: Records) -> dict[int, list[Group]]:
    """The optimizers, Adan first, at those sizes at which all of them have enough seeds."""
    enough = [group for group in groups(BATCH_SIZE, records) if group.n >= MIN_SEEDS]
    by_size = {size: [group for group in enough if group.options["batch_size"] == size] for size in BATCH_SIZES}
    return {size: those for size, those in by_size.items() if len(those) == len(VIT_25.entries)}


def over_sizes(results: list[Group], label: str, dashed: bool = False) -> Line:
    finals = [list(group.by_seed().values()) for group in results]
    means, low, high = ([round(100 * f(values), 4) for values in finals] for f in (statistics.fmean, min, max))
    sizes = [float(group.options["batch_size"]) for group in results]
    return Line(color(results[0].optimizer), label, sizes, means, low, high, dashed, points=True)


def batch_sizes(records: Records) -> Section | None:
    by_size = by_batch_size(records)
    if len(by_size) < 2:
        return None
    section = Section("Batch sizes", [], "results-batch-size.svg")
    section.body.append(
        "The ViT above for 25 epochs at each size; learning rates tuned at 256 and multiplied by the square root of "
        f"the ratio of the sizes, all else as tuned. {minutes(records, BATCH_SIZE)}. The runs at 256 are three of "
        "the seeds above; fewer seeds and a correction for more comparisons widen their intervals."
    )
    names = [entry.optimizer for entry in VIT_25.entries]
    rows = []
    for size, (adan, *others) in by_size.items():
        row = [f"{size:,}", f"{adan.records[0]['steps']:,}"]
        row += [f"{ACCURACY.spread(group.final())} (n = {group.counted})" for group in (adan, *others)]
        for group in others:
            lead = verdict(adan, group, len(by_size) * len(others))
            row.append(f"{ACCURACY.change(lead.difference)}: {lead.word}")
        rows.append(row)
    head = ["batch size", "steps", *(NAMES[name] for name in names)]
    section.body.append(table([*head, *(f"Adan minus {NAMES[name]}" for name in names[1:])], rows))
    lines = [over_sizes([results[at] for results in by_size.values()], NAMES[name]) for at, name in enumerate(names)]
    smaller = [g for g in groups(BATCH_SIZE_B1, records) if g.n >= MIN_SEEDS and g.options["batch_size"] in by_size]
    if smaller:
        lines.append(over_sizes(smaller, "Adan, b1 = 0.9", dashed=True))
        listed = []
        for group in smaller:
            size = group.options["batch_size"]
            best = best_baseline(by_size[size])
            lead, alone = (verdict(group, best, tests) for tests in (len(smaller) * (len(by_size[size]) - 1), 1))
            listed.append(
                f"{ACCURACY.spread(group.final())} at {size:,}, {ACCURACY.change(lead.difference)} compared "
                f"with {NAMES[best.optimizer]}: {lead.word}"
                + (f" ({alone.word} without the correction)" if alone.word != lead.word else "")
            )
        section.body.append(
            "**With b1 = 0.9**, as [the guide](tuning.md) recommends for short runs, all else as above, Adan reaches "
            f"{'; '.join(listed)} (n = {'; '.join(dict.fromkeys(group.counted for group in smaller))})."
        )
    panel = curves("25 epochs", "batch size", ACCURACY, lines, share=0)
    panel.log_x = True
    section.panels.append(panel)
    printed = "; ".join(
        f"{optimizer} " + ", ".join(paper("batch-size", optimizer, f"batch {k}k") for k in (1, 2, 4, 8, 16, 32))
        for optimizer in ("Adan", "LAMB")
    )
    section.body.append(
        f"The paper's Table 7 reports, for ViT-S on ImageNet and batch sizes of 1k, 2k, 4k, 8k, 16k, 32k, {printed}."
    )
    return section


def best_on_the_way(results: list[Group]) -> str:
    """The largest mean of each optimizer. The test split chooses it, so no verdict is made of it."""
    best = []
    for group in results:
        mean, epoch = max((statistics.fmean(values), epoch) for epoch, values in group.curve())
        best.append(f"{NAMES[group.optimizer]} {100 * mean:.2f} (epoch {epoch:.0f})")
    return f"At the best epoch rather than the last, chosen on the test split: {joined(best)}."


def convolutions(records: Records) -> Section | None:
    section = Section("CNNs on CIFAR-10", [], "results-cnn.svg")
    vanilla = (
        "**ResNet-34** with {size}, batch size 128, 30 epochs (the paper: 200), tuned at "
        f"{RESNET_AGAIN.tune_length}; random crops and flips."
    )
    published = (
        "**200 epochs**, schedule and settings as published by AdaBelief's authors, from whom the paper takes them. "
        "Nothing was tuned here. Adan's rate is not published; this one is ten times AdamW's, as its authors advise. "
        "The rate is divided by ten after 150 epochs, without warm-up."
    )
    modern = "**ConvNeXt** with {size}, batch size 256, 25 epochs, tuned at 25, otherwise as the ViT, without clipping."
    if add_study(RESNET_AGAIN, ACCURACY, section, vanilla, records, RESNET_OTHERS, "ResNet-34, 30 epochs"):
        why = (
            "was tuned at 5 epochs, and lr × decay of every trial of Adan was less than half that of AdamW's chosen "
            "settings"
        )
        section.searches.append(other_search(RESNET, why, ACCURACY, records))
    if add_study(RESNET_PUBLISHED, ACCURACY, section, published, records, title="ResNet-34, 200 epochs"):
        section.body.append(recipes(compared(RESNET_PUBLISHED, records)))
        section.body.append(best_on_the_way(compared(RESNET_PUBLISHED, records)))
    if section.panels:
        names = [NAMES[entry.optimizer] for study in (RESNET, RESNET_OTHERS) for entry in study.entries]
        listed = joined([f"{name} {paper('cifar10', name, 'ResNet-34, CIFAR-10')}" for name in names])
        section.body.append(
            f"The paper's Table 4 reports, after 200 epochs, {listed}, on the original images: only differences can be "
            "compared with ours."
        )
    if add_study(CONVNEXT_AGAIN, ACCURACY, section, modern, records, title="ConvNeXt, 25 epochs"):
        why = "was tuned at 10 epochs and chose the largest rate that it tried for both"
        section.searches.append(other_search(CONVNEXT, why, ACCURACY, records))
        printed = [paper("cnn", name, "ConvNeXt-T, 150 epochs") for name in ("Adan", "AdamW")]
        section.body.append(
            f"The paper's Table 2 reports, for ConvNeXt-T on ImageNet after 150 epochs, Adan {printed[0]}, AdamW "
            f"{printed[1]}."
        )
    return section if section.panels else None
