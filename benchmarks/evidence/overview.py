"""All comparisons at a glance: Adan against the best baseline, study by study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from adan_bench.records.stats import MIN_SEEDS
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
from evidence.sections.pretraining import MASKED, MATTHEWS, RECONSTRUCTION, above_chance
from evidence.studies import (
    BATCH_SIZE,
    BERT,
    BERT_AGAIN,
    COLA,
    COLA_AGAIN,
    COLA_OWN,
    COLA_OWN_AGAIN,
    CONVNEXT,
    CONVNEXT_AGAIN,
    CORA,
    DETR,
    GPT,
    GPT_30M,
    GPT_30M_AGAIN,
    LSTM,
    LSTM_AGAIN,
    LSTM_FIXED,
    LSTM_PUBLISHED,
    MAE,
    MAE_FINE_TUNED,
    MAE_FULL,
    MAE_FULL_FINE_TUNED,
    MOE,
    RESNET,
    RESNET_AGAIN,
    RESNET_OTHERS,
    RESNET_PUBLISHED,
    SST2,
    SST2_AGAIN,
    SST2_OWN,
    SST2_OWN_AGAIN,
    TINY_GPT,
    TRANSFORMER_XL,
    TRANSFORMER_XL_ADAMW,
    VIT_25,
)

SHADES = {"better": COLORS[3][0], "worse": COLORS[0][0], "not significant": "#888888"}
#: What a forest shows on one axis: its label, and where it ends.
AXES = {
    "points": ("improvement in accuracy, correlation or AP, points", 8.0),
    "loss": ("reduction of loss in nats (MAE: squared error) or of the logarithm of perplexity", 0.1),
    "reward": ("improvement in episode reward, % of the baseline's", 60.0),
}
#: How settings were chosen, as a column of the table says it, and in a sentence.
TUNED = {
    "at full length": "tuned for the same training at its full length",
    "shorter trials": "tuned in shorter trials",
    "elsewhere": "tuned elsewhere (another length, batch size, environment or start)",
    "no": "published, not tuned",
}
LEGEND = (
    "± is the half-width of a mean's 95% interval over seeds. Brackets give the 95% interval of the difference, by "
    "Welch's t test, corrected for the study's comparisons; not significant: it includes zero. ↑ higher is better, ↓ "
    "lower. Untuned: published settings, except for Adan's rate for the ResNet, which is not published. In the figure, "
    "green is better, orange worse and grey not significant; an arrow means that the interval goes on, an open circle "
    "that the mean lies beyond the axis."
)
#: Beyond which share of a result an interval says little.
WIDE = 0.2
#: The searches whose results were known when those on the page were begun.
FIRST: dict[str, Study | Follow] = {
    "ResNet-34, 30 epochs": RESNET,
    "ConvNeXt": CONVNEXT,
    "MAE, pre-training": MAE,
    "MAE, fine-tuned": MAE_FINE_TUNED,
    "LSTM, 8 epochs": LSTM,
    "BERT, pre-training": BERT,
    "BERT, CoLA": COLA,
    "BERT, CoLA from its own pre-training": COLA_OWN,
    "BERT, SST-2": SST2,
    "BERT, SST-2 from its own pre-training": SST2_OWN,
}


@dataclass(frozen=True)
class Row:
    """Adan and the best baseline after the same number of steps.

    baselines: how many there are. tables: how many such rows one table of the page compares.
    """

    name: str
    unit: Unit
    study: Study | Follow
    adan: Group
    best: Group
    baselines: int
    tables: int

    @property
    def tests(self) -> int:
        return self.tables * self.baselines

    @property
    def tuned(self) -> str:
        """How its settings were chosen, a key of TUNED."""
        if isinstance(self.study, Follow):
            return "elsewhere"
        if not self.study.trials:
            return "no"
        return "shorter trials" if self.study.tune_length else "at full length"

    @cached_property
    def lead(self) -> Verdict:
        return verdict(self.adan, self.best, self.tests)

    @property
    def width(self) -> float:
        """Half the interval of the difference, over the baseline's mean."""
        half = self.lead.difference.half
        return math.inf if half is None else half / abs(self.best.final().mean)

    @property
    def axis(self) -> str:
        return "loss" if self.unit.family == "perplexity" else self.unit.family

    @property
    def effect(self) -> Effect:
        """The lead on its axis, positive where Adan is better."""
        mine, theirs = (list(group.by_seed().values()) for group in (self.adan, self.best))
        if self.unit.family == "perplexity":
            mine, theirs = ([math.log(value) for value in values] for values in (mine, theirs))
        gap = welch(mine, theirs, self.tests)
        share = {"points": 100.0, "loss": 1.0, "reward": 100 / abs(self.best.final().mean)}[self.axis]
        share *= 1 if self.adan.higher else -1
        low, high = sorted(round(share * end, 4) for end in (gap.low, gap.high) if end is not None)
        mean = round(share * gap.mean, 4)
        digits = {"points": 2, "loss": 4, "reward": 0}[self.axis]
        text = f"{mean:+.{digits}f} vs {NAMES[self.best.optimizer]}".replace("-", "−")
        return Effect(self.name, mean, low, high, SHADES[self.lead.word], text)


def row(name: str, study: Study | Follow, results: Sequence[Group], unit: Unit, tables: int = 1) -> list[Row]:
    """results: Adan's group first, or none."""
    return [Row(name, unit, study, results[0], best_baseline(results), len(results) - 1, tables)] if results else []


def rows(records: Records) -> list[Row]:
    """All comparisons whose optimizers have enough seeds."""

    def plain(name: str, study: Study | Follow, unit: Unit, also: Study | Follow | None = None) -> list[Row]:
        return row(name, study, together(study, also, records), unit)

    def task(name: str, study: Study | Follow, unit: Unit) -> list[Row]:
        return row(name, study, above_chance(study, records), unit)

    sizes = by_batch_size(records)
    comparisons = [
        r for epochs, (study, lamb) in VIT.items() for r in plain(f"ViT, {epochs} epochs", study, ACCURACY, lamb)
    ]
    for size, results in sizes.items():
        if size != VIT_25.options["batch_size"]:
            comparisons += row(f"ViT, batch size {size:,}", BATCH_SIZE, results, ACCURACY, len(sizes))
    comparisons += plain("ResNet-34, 30 epochs", RESNET_AGAIN, ACCURACY, RESNET_OTHERS)
    comparisons += plain("ResNet-34, 200 epochs, untuned", RESNET_PUBLISHED, ACCURACY)
    comparisons += plain("ConvNeXt", CONVNEXT_AGAIN, ACCURACY)
    comparisons += plain("MAE, pre-training", MAE_FULL, RECONSTRUCTION)
    comparisons += plain("MAE, fine-tuned", MAE_FULL_FINE_TUNED, ACCURACY)
    comparisons += plain("GPT, 25.7 M", latest(records, GPT_30M, GPT_30M_AGAIN), LOSS)
    comparisons += plain("GPT, 10.9 M", GPT, LOSS)
    comparisons += plain("GPT, 0.9 M", TINY_GPT, LOSS)
    comparisons += plain("mixture of experts", MOE, LOSS)
    comparisons += plain("LSTM, 8 epochs", LSTM_AGAIN, PERPLEXITY)
    comparisons += plain("LSTM, 200 epochs, untuned", LSTM_PUBLISHED, PERPLEXITY)
    comparisons += plain("LSTM, 200 epochs, untuned, recurrent weights fixed", LSTM_FIXED, PERPLEXITY)
    comparisons += plain("Transformer-XL", TRANSFORMER_XL, PERPLEXITY, TRANSFORMER_XL_ADAMW)
    comparisons += plain("BERT, pre-training", BERT_AGAIN, MASKED)
    comparisons += task("BERT, CoLA", COLA_AGAIN, MATTHEWS)
    comparisons += task("BERT, CoLA from its own pre-training", COLA_OWN_AGAIN, MATTHEWS)
    comparisons += task("BERT, SST-2", SST2_AGAIN, ACCURACY)
    comparisons += task("BERT, SST-2 from its own pre-training", SST2_OWN_AGAIN, ACCURACY)
    comparisons += plain("Deformable DETR", DETR, BOX_AP)
    comparisons += plain("DeepGCN", CORA, ACCURACY)
    for whose, studies in PPO.items():
        by_environment = [(study, results) for study in studies if (results := compared(study, records))]
        for study, results in by_environment:
            comparisons += row(f"{whose}, {environment_of(study)}", study, results, REWARD, len(by_environment))
    return comparisons


def summary(comparisons: list[Row]) -> str:
    lines = []
    for r in comparisons:
        n = "/".join(dict.fromkeys(group.counted for group in (r.adan, r.best)))
        values = [r.unit.spread(group.final()) for group in (r.adan, r.best)]
        change = f"{r.unit.change(r.lead.difference)}: {r.lead.word}"
        arrow = "↑" if r.adan.higher else "↓"
        best = f"{NAMES[r.best.optimizer]} {values[1]}" + (f" (of {r.baselines})" if r.baselines > 1 else "")
        lines.append([f"{r.name}: {r.unit.name} {arrow}", values[0], best, n, r.tuned, change])
    return table(["", "Adan", "best baseline", "seeds", "tuned", "difference"], lines)


def forests(comparisons: list[Row]) -> list[Forest]:
    effects: dict[str, list[Effect]] = {axis: [] for axis in AXES}
    for r in comparisons:
        effects[r.axis].append(r.effect)
    return [Forest(*AXES[axis], those) for axis, those in effects.items() if those]


def tally(words: Sequence[str]) -> tuple[int, int, int]:
    """How often better, worse, and neither."""
    better, worse, neither = (sum(said == word for said in words) for word in SHADES)
    return better, worse, neither


def counts(comparisons: list[Row]) -> str:
    better, worse, neither = tally([r.lead.word for r in comparisons])
    single = sum(r.baselines == 1 for r in comparisons)
    wide = sum(r.lead.word == "not significant" and r.width > WIDE for r in comparisons)
    return (
        f"In {len(comparisons)} comparisons with the best baseline at equal steps, Adan was **better in {better}** and "
        f"**worse in {worse}**; in {neither} the difference was not significant, but in {wide} of those the interval "
        f"is wider than ±{WIDE:.0%} of the baseline's result, so they say little. {single} of the {len(comparisons)} "
        "have only one baseline."
    )


def by_tuning(comparisons: list[Row]) -> str:
    """The counts by how settings were chosen."""
    lines = []
    for key, words in TUNED.items():
        if those := [r.lead.word for r in comparisons if r.tuned == key]:
            lines.append([words, str(len(those)), *map(str, tally(those))])
    return table(["settings", "comparisons", "Adan better", "worse", "no significant difference"], lines)


def verdicts(comparisons: list[Row]) -> str:
    """Where Adan was better than the best baseline, where worse, and where the difference was not significant."""
    heads, cells = [], []
    for word, head in (("better", "better"), ("not significant", "no significant difference"), ("worse", "worse")):
        models: dict[str, list[str]] = {}
        for r in comparisons:
            if r.lead.word == word:
                model, _, detail = r.name.partition(", ")
                models.setdefault(model, []).extend([detail] if detail else [])
        listed = []
        for model, details in models.items():
            between = "; " if any(", " in detail for detail in details) else ", "
            listed.append(model + (f" ({between.join(details)})" if details else ""))
        heads.append(f"{head} in {sum(r.lead.word == word for r in comparisons)}")
        cells.append("<br>".join(listed) or "none")
    return table(heads, [cells])


def otherwise(comparisons: list[Row], words: Sequence[str]) -> str:
    """The counts if the verdicts were these, and which rows would change."""
    better, worse, _ = tally(words)
    changed = [f"{r.name}: {word}" for r, word in zip(comparisons, words, strict=True) if word != r.lead.word]
    return f"better in {better}, worse in {worse}" + (f" ({'; '.join(changed)})" if changed else ", no row changed")


def by_pairs(comparisons: list[Row]) -> str:
    """With a test paired by seed."""
    return otherwise(comparisons, [paired(r.adan, r.best, r.tests).word for r in comparisons])


def with_all_rows(comparisons: list[Row]) -> str:
    """With a correction over the comparisons of all rows."""
    tests = sum(r.baselines for r in comparisons)
    return otherwise(comparisons, [verdict(r.adan, r.best, max(tests, r.tests)).word for r in comparisons])


def with_first_searches(comparisons: list[Row], records: Records) -> str:
    """With the first search of what was searched again."""

    def word(r: Row) -> str:
        results = compared(FIRST[r.name], records) if r.name in FIRST else []
        return verdict(results[0], best_baseline(results), len(results) - 1).word if results else r.lead.word

    return otherwise(comparisons, list(map(word, comparisons)))


def with_few_seeds(comparisons: list[Row]) -> str:
    """With no more seeds than are needed to compare at all."""

    def fewest(group: Group) -> Group:
        return replace(group, records=group.records[:MIN_SEEDS])

    return otherwise(comparisons, [verdict(fewest(r.adan), fewest(r.best), r.tests).word for r in comparisons])


def early_on(comparisons: list[Row]) -> str:
    classifiers = [r for r in comparisons if r.unit is ACCURACY]
    places = [[math.inf if at is None else at for at in early([r.adan, r.best])[1]] for r in classifiers]
    ahead = [r.name for r, (mine, theirs) in zip(classifiers, places, strict=True) if mine < theirs]
    behind = sum(mine > theirs for mine, theirs in places)
    level = len(places) - len(ahead) - behind
    return (
        f"In {len(places)} comparisons of image, text and graph classifiers, {EARLY:.0%} of the better final accuracy "
        f"was reached first by Adan in {len(ahead)} ({sum(name.startswith('ViT') for name in ahead)} of them on the "
        f"ViT), by the baseline in {behind}, and by both at the same evaluation in {level}."
    )
