"""All comparisons at a glance: Adan beside the best of the others, study by study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from adan_bench.reports.palette import COLORS
from evidence.compare import Group, Records, Verdict, best_other, compared, verdict
from evidence.figures import Effect, Forest
from evidence.search import Follow, Study
from evidence.sections.images import by_batch_size
from evidence.sections.others import PPO, robot_of
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
    joined,
    latest,
    table,
)
from evidence.sections.pretraining import DRAWN, MASKED, MATTHEWS, autoencoders, shown
from evidence.studies import (
    BERT,
    COLA,
    COLA_OWN,
    CONVNEXT,
    CONVNEXT_AGAIN,
    CORA,
    DETR,
    GPT,
    GPT_30M,
    LSTM_AGAIN,
    LSTM_PUBLISHED,
    MOE,
    RESNET,
    RESNET_AGAIN,
    RESNET_LONGER,
    RESNET_OTHERS,
    SST2,
    SST2_OWN,
    TINY_GPT,
    TRANSFORMER_XL,
    VIT_25,
    VIT_50,
    VIT_100,
)

VIT: dict[int, Study | Follow] = {25: VIT_25, 50: VIT_50, 100: VIT_100}
WIDEST = 12.0  # percent; what lies beyond is cut off
SHADES = {"better": COLORS[3][0], "worse": COLORS[0][0], "not separated": "#888888"}


@dataclass(frozen=True)
class Comparison:
    """Adan and the best of the others at equal length."""

    name: str
    unit: Unit
    adan: Group
    best: Group
    lead: Verdict

    @property
    def effect(self) -> Effect:
        """The difference in percent of the other's result, positive where Adan is better."""
        share = (100 if self.lead.higher else -100) / abs(self.best.final().mean)
        found = self.lead.difference
        ends = sorted(round(share * end, 2) for end in (found.low, found.high) if end is not None)
        color = SHADES[self.lead.word]
        return Effect(self.name, round(share * found.mean, 2), ends[0], ends[1], color, NAMES[self.best.optimizer])


def beside_best(name: str, found: Sequence[Group], unit: Unit, tables: int = 1) -> Iterator[Comparison]:
    """found: Adan's group first, or none. tables: how many such groups one table of the page compares."""
    if found:
        best = best_other(found)
        yield Comparison(name, unit, found[0], best, verdict(found[0], best, tables * (len(found) - 1)))


def comparisons(records: Records) -> list[Comparison]:
    """All of them whose optimizers have enough seeds."""
    before, after = autoencoders(records)
    sizes = by_batch_size(records)
    resnet = compared(latest(records, RESNET, RESNET_AGAIN), records)
    convnext = latest(records, CONVNEXT, CONVNEXT_AGAIN)
    rows: list[tuple[str, list[Group], Unit]] = [
        ("ResNet-34, 30 epochs", resnet and [*resnet, *compared(RESNET_OTHERS, records)], ACCURACY),
        ("ResNet-34, 200 epochs", compared(RESNET_LONGER, records), ACCURACY),
        ("ConvNeXt", compared(convnext, records), ACCURACY),
        ("MAE, pre-training", compared(before, records), DRAWN),
        ("MAE, fine-tuned", compared(after, records), ACCURACY),
        ("GPT, 25.7 M", compared(GPT_30M, records), LOSS),
        ("GPT, 10.9 M", compared(GPT, records), LOSS),
        ("GPT, 0.9 M", compared(TINY_GPT, records), LOSS),
        ("mixture of experts", compared(MOE, records), LOSS),
        ("LSTM, 8 epochs", compared(LSTM_AGAIN, records), PERPLEXITY),
        ("LSTM, 200 epochs, published settings", compared(LSTM_PUBLISHED, records), PERPLEXITY),
        ("Transformer-XL", compared(TRANSFORMER_XL, records), PERPLEXITY),
        ("BERT, pre-training", compared(BERT, records), MASKED),
        ("BERT, CoLA", shown(COLA, records), MATTHEWS),
        ("BERT, CoLA from its own pre-training", shown(COLA_OWN, records), MATTHEWS),
        ("BERT, SST-2", shown(SST2, records), ACCURACY),
        ("BERT, SST-2 from its own pre-training", shown(SST2_OWN, records), ACCURACY),
        ("Deformable DETR", compared(DETR, records), BOX_AP),
        ("DeepGCN", compared(CORA, records), ACCURACY),
    ]
    rows += [(f"{whose}, {robot_of(s)}", compared(s, records), REWARD) for whose, those in PPO.items() for s in those]
    lengths = [(f"ViT, {epochs} epochs", compared(s, records), ACCURACY) for epochs, s in VIT.items()]
    made = [found for row in lengths for found in beside_best(*row)]
    for size, groups in sizes.items():
        if size != VIT_25.options["batch_size"]:  # else a row above
            made += beside_best(f"ViT, batches of {size:,}", groups, ACCURACY, len(sizes))
    return made + [found for row in rows for found in beside_best(*row)]


def summary(records: Records) -> str:
    rows = []
    for c in comparisons(records):
        n = "/".join(dict.fromkeys(str(group.n) for group in (c.adan, c.best)))
        values = [c.unit.spread(group.final()) for group in (c.adan, c.best)]
        change = f"{c.unit.change(c.lead.difference)}: {c.lead.word}"
        rows.append([f"{c.name}: {c.unit.name}", values[0], f"{NAMES[c.best.optimizer]} {values[1]}", n, change])
    return table(["", "Adan", "best other", "seeds", "difference"], rows)


def forest(records: Records) -> Forest:
    label = "difference in percent of the other's result, 95% interval; to the right Adan is better"
    return Forest(label, WIDEST, [c.effect for c in comparisons(records)])


def counts(records: Records) -> str:
    found = comparisons(records)
    listed = joined([f"**{word}** in {sum(c.lead.word == word for c in found)}" for word in SHADES])
    return f"Of {len(found)} comparisons with the best of the others at equal length, Adan was {listed}."


def places(records: Records) -> list[str]:
    """Where Adan was better, worse, and not separated from the best of the others; where it was ahead early."""
    found = comparisons(records)
    lines = []
    for word in SHADES:
        models: dict[str, list[str]] = {}
        for c in found:
            if c.lead.word == word:
                model, _, detail = c.name.partition(", ")
                models.setdefault(model, []).extend([detail] if detail else [])
        listed = [model + (f" ({', '.join(details)})" if details else "") for model, details in models.items()]
        lines.append(f"**{word.capitalize()}**: {'; '.join(listed) or 'none'}.")
    pairs = [early([c.adan, c.best])[1] for c in found if c.unit is ACCURACY]
    ahead = sum(mine is not None and (theirs is None or mine < theirs) for mine, theirs in pairs)
    near = f"{EARLY:.0%} of the better final result"
    return [
        *lines,
        f"**Early**: in {ahead} of the {len(pairs)} that measure accuracy, Adan is the first to reach {near}.",
    ]
