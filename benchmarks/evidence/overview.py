"""All comparisons at a glance: Adan against the best baseline, study by study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from adan_bench.reports.palette import COLORS
from evidence.compare import Group, Records, Verdict, best_baseline, compared, paired, verdict, welch
from evidence.figures import Effect, Forest
from evidence.search import Follow, Study
from evidence.sections.images import VIT, by_batch_size
from evidence.sections.others import PPO, environment_of
from evidence.sections.parts import (
    ACCURACY,
    BOX_AP,
    EARLY,
    LOSS,
    NAMES,
    PERPLEXITY,
    REWARD,
    Unit,
    early,
    latest,
    table,
    together,
)
from evidence.sections.pretraining import MASKED, MATTHEWS, RECONSTRUCTION, above_chance, chain
from evidence.studies import (
    CONVNEXT_AGAIN,
    CORA,
    DETR,
    GPT,
    GPT_30M,
    GPT_30M_AGAIN,
    LSTM_AGAIN,
    LSTM_PUBLISHED,
    MAE_FULL,
    MAE_FULL_FINE_TUNED,
    MOE,
    RESNET_AGAIN,
    RESNET_OTHERS,
    RESNET_PUBLISHED,
    TINY_GPT,
    TRANSFORMER_XL,
    VIT_25,
)

SHADES = {"better": COLORS[3][0], "worse": COLORS[0][0], "not significant": "#888888"}
#: What a forest shows on one axis: its label, and where it ends.
AXES = {
    "points": ("improvement in accuracy, correlation or AP, points", 8.0),
    "loss": ("reduction of loss in nats (MAE: squared error) or of the logarithm of perplexity", 0.1),
    "reward": ("improvement in episode reward, % of the baseline's", 60.0),
}
LEGEND = (
    "± is the half-width of a mean's 95% interval over seeds. Brackets give the 95% interval of the difference, by "
    "Welch's t test, corrected for the study's comparisons; not significant: it includes zero. ↑ higher is better, ↓ "
    "lower. Untuned: published settings, except for Adan's rate, which is not published."
)


@dataclass(frozen=True)
class Row:
    """Adan and the best baseline after the same number of steps.

    baselines: how many there are. tables: how many such rows one table of the page compares.
    """

    name: str
    unit: Unit
    adan: Group
    best: Group
    baselines: int
    tables: int

    @property
    def tests(self) -> int:
        return self.tables * self.baselines

    @cached_property
    def lead(self) -> Verdict:
        return verdict(self.adan, self.best, self.tests)

    @property
    def axis(self) -> str:
        return "loss" if self.unit.family == "perplexity" else self.unit.family

    @property
    def effect(self) -> Effect:
        """The lead on its axis, positive where Adan is better."""
        mine, theirs = (list(group.by_seed().values()) for group in (self.adan, self.best))
        if self.unit.family == "perplexity":
            mine, theirs = ([math.log(value) for value in values] for values in (mine, theirs))
        found = welch(mine, theirs, self.tests)
        share = {"points": 100.0, "loss": 1.0, "reward": 100 / abs(self.best.final().mean)}[self.axis]
        share *= 1 if self.adan.higher else -1
        low, high = sorted(round(share * end, 4) for end in (found.low, found.high) if end is not None)
        mean = round(share * found.mean, 4)
        digits = {"points": 2, "loss": 4, "reward": 0}[self.axis]
        text = f"{mean:+.{digits}f} vs {NAMES[self.best.optimizer]}".replace("-", "−")
        return Effect(self.name, mean, low, high, SHADES[self.lead.word], text)


def row(name: str, found: Sequence[Group], unit: Unit, tables: int = 1) -> list[Row]:
    """found: Adan's group first, or none."""
    return [Row(name, unit, found[0], best_baseline(found), len(found) - 1, tables)] if found else []


def rows(records: Records) -> list[Row]:
    """All comparisons whose optimizers have enough seeds."""

    def plain(name: str, study: Study | Follow, unit: Unit, also: Study | Follow | None = None) -> list[Row]:
        return row(name, together(study, also, records), unit)

    sizes = by_batch_size(records)
    made = [r for epochs, (study, lamb) in VIT.items() for r in plain(f"ViT, {epochs} epochs", study, ACCURACY, lamb)]
    for size, found in sizes.items():
        if size != VIT_25.options["batch_size"]:
            made += row(f"ViT, batch size {size:,}", found, ACCURACY, len(sizes))
    made += plain("ResNet-34, 30 epochs", RESNET_AGAIN, ACCURACY, RESNET_OTHERS)
    made += plain("ResNet-34, 200 epochs, untuned", RESNET_PUBLISHED, ACCURACY)
    made += plain("ConvNeXt", CONVNEXT_AGAIN, ACCURACY)
    made += plain("MAE, pre-training", MAE_FULL, RECONSTRUCTION)
    made += plain("MAE, fine-tuned", MAE_FULL_FINE_TUNED, ACCURACY)
    made += plain("GPT, 25.7 M", latest(records, GPT_30M, GPT_30M_AGAIN), LOSS)
    made += plain("GPT, 10.9 M", GPT, LOSS)
    made += plain("GPT, 0.9 M", TINY_GPT, LOSS)
    made += plain("mixture of experts", MOE, LOSS)
    made += plain("LSTM, 8 epochs", LSTM_AGAIN, PERPLEXITY)
    made += plain("LSTM, 200 epochs, untuned", LSTM_PUBLISHED, PERPLEXITY)
    made += plain("Transformer-XL", TRANSFORMER_XL, PERPLEXITY)
    bert = chain(records)
    made += plain("BERT, pre-training", bert.bert, MASKED)
    made += row("BERT, CoLA", above_chance(bert.cola, records), MATTHEWS)
    made += row("BERT, CoLA from its own pre-training", above_chance(bert.cola_own, records), MATTHEWS)
    made += row("BERT, SST-2", above_chance(bert.sst2, records), ACCURACY)
    made += row("BERT, SST-2 from its own pre-training", above_chance(bert.sst2_own, records), ACCURACY)
    made += plain("Deformable DETR", DETR, BOX_AP)
    made += plain("DeepGCN", CORA, ACCURACY)
    for whose, studies in PPO.items():
        by_environment = {environment_of(study): found for study in studies if (found := compared(study, records))}
        for name, found in by_environment.items():
            made += row(f"{whose}, {name}", found, REWARD, len(by_environment))
    return made


def summary(found: list[Row]) -> str:
    lines = []
    for r in found:
        n = "/".join(dict.fromkeys(group.counted for group in (r.adan, r.best)))
        values = [r.unit.spread(group.final()) for group in (r.adan, r.best)]
        change = f"{r.unit.change(r.lead.difference)}: {r.lead.word}"
        arrow = "↑" if r.adan.higher else "↓"
        best = f"{NAMES[r.best.optimizer]} {values[1]}"
        lines.append([f"{r.name}: {r.unit.name} {arrow}", values[0], best, str(r.baselines), n, change])
    return table(["", "Adan", "best baseline", "baselines", "seeds", "difference"], lines)


def forests(found: list[Row]) -> list[Forest]:
    effects: dict[str, list[Effect]] = {axis: [] for axis in AXES}
    for r in found:
        effects[r.axis].append(r.effect)
    return [Forest(*AXES[axis], those) for axis, those in effects.items() if those]


def counts(found: list[Row]) -> str:
    better, worse, neither = (sum(r.lead.word == word for r in found) for word in SHADES)
    return (
        f"In {len(found)} comparisons with the best baseline at equal steps, Adan was **better in {better}** and "
        f"**worse in {worse}**; in {neither} the difference was not significant."
    )


def verdicts(found: list[Row]) -> str:
    """Where Adan was better than the best baseline, where worse, and where the difference was not significant."""
    heads, cells = [], []
    for word, head in (("better", "better"), ("not significant", "no significant difference"), ("worse", "worse")):
        models: dict[str, list[str]] = {}
        for r in found:
            if r.lead.word == word:
                model, _, detail = r.name.partition(", ")
                models.setdefault(model, []).extend([detail] if detail else [])
        listed = [model + (f" ({', '.join(details)})" if details else "") for model, details in models.items()]
        heads.append(f"{head} in {sum(r.lead.word == word for r in found)}")
        cells.append("<br>".join(listed) or "none")
    return table(heads, [cells])


def by_pairs(found: list[Row]) -> str:
    """The rows that a test paired by seed would read otherwise."""
    words = [paired(r.adan, r.best, r.tests).word for r in found]
    changed = [f"{r.name} ({word})" for r, word in zip(found, words, strict=True) if word != r.lead.word]
    return f"{len(changed)} of the {len(found)} rows above would read otherwise: {'; '.join(changed) or 'none'}"


def with_all_rows(found: list[Row]) -> str:
    """The verdicts if the correction were over all rows, too."""
    words = [verdict(r.adan, r.best, len(found) * r.baselines).word for r in found]
    kept = {word: [r.name for r, said in zip(found, words, strict=True) if said == word] for word in SHADES}
    return (
        f"better in {len(kept['better'])} ({'; '.join(kept['better'])}) and worse in {len(kept['worse'])} "
        f"({'; '.join(kept['worse'])})"
    )


def early_on(found: list[Row]) -> str:
    classifiers = [r for r in found if r.unit is ACCURACY]
    pairs = [early([r.adan, r.best])[1] for r in classifiers]
    ahead = [
        r.name
        for r, (mine, theirs) in zip(classifiers, pairs, strict=True)
        if mine is not None and (theirs is None or mine < theirs)
    ]
    near = f"{EARLY:.0%} of the better final accuracy"
    return (
        f"Adan is the first to reach {near} in {len(ahead)} of {len(pairs)} comparisons of image, text and graph "
        f"classifiers, {sum(name.startswith('ViT') for name in ahead)} of them on the ViT."
    )
