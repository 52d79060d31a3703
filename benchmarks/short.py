"""How a learning rate that short runs suggest compares with the best of full runs: the table of docs/tuning.md.

Full runs are stored searches and sweeps with the same settings but for the rate; short ones are results/suggest.
`python benchmarks/short.py` prints every rule, and what choosing one on every other workload gives on the rest.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from common import ROOT, table
from results_page import DATA
from stored import studies

from adan import recipes, scaled_lr
from adan.suggestion import LR_RATIO
from adan_bench.config import SHORT, Origin, RunRecord
from adan_bench.records.archive import read_archive
from adan_bench.records.stats import grouped, rank
from adan_bench.studies.suggest import BUDGET, LEAST, MADE, TRIALS, vertex

SHARES = (2, 4, 10)  # percent of a full run: the files of results/suggest
MORE = {"convnext-25-wide": "convnext-25-again"}  # studies with further rates of the same runs
CNNS = ("convnext-25-wide", "resnet34-30-again")
TITLES = {
    "convnext-25-wide": "ConvNeXt",
    "cora": "DeepGCN",
    "gpt": "GPT, 10.9 M",
    "gpt-30m-again": "GPT, 25.7 M",
    "gpt-tiny": "GPT, 0.9 M",
    "lstm-8-again": "LSTM",
    "mae-50-full": "MAE",
    "moe": "mixture of experts",
    "resnet34-30-again": "ResNet-34",
    "transformer-xl": "Transformer-XL",
    "vit-25": "ViT",
}
RECIPES = {"convnext-25-wide": "convnext", "lstm-8-again": "lstm", "mae-50-full": "mae-pretrain"}
RECIPES |= {"resnet34-30-again": "resnet", "transformer-xl": "transformer-xl", "vit-25": "vit"}


@dataclass(frozen=True)
class ShortCase:
    """An optimizer on a workload: full runs by rate, in the order of rates, and short ones by their share."""

    study: str
    optimizer: str
    full: Mapping[float, RunRecord]
    short: Mapping[int, Sequence[RunRecord]]

    @property
    def best(self) -> float:
        """The best rate of full runs, between those tried."""
        ended = {math.log2(rate): rank(run) for rate, run in self.full.items() if math.isfinite(rank(run))}
        return float(2 ** vertex(list(ended), list(ended.values())))

    def regret(self, rate: float) -> tuple[float, bool]:
        """What a rate loses of the best result, by interpolation in log lr, and whether it lies among those tried."""
        rates, ranks = list(self.full), list(map(rank, self.full.values()))
        value = float(np.interp(math.log(rate), list(map(math.log, rates)), ranks))
        return (value - min(ranks)) / abs(min(ranks)), rates[0] <= rate <= rates[-1]


@functools.cache
def cases() -> list[ShortCase]:
    short: dict[tuple[str, str], dict[int, Sequence[RunRecord]]] = {}
    for share in SHARES:
        records, _ = read_archive(ROOT / "results" / "suggest" / f"short-{share}.jsonl")
        for own in grouped(records, lambda r: [r.config.study, r.config.name]):
            short.setdefault((own[0].config.study, own[0].config.name), {})[share] = sorted(own, key=lambda run: run.lr)
    found = []
    for (name, optimizer), by_share in sorted(short.items()):
        fixed = {**next(iter(by_share.values()))[0].config.settings, "lr": None}
        same: dict[float, RunRecord] = {}
        for study in (studies()[n] for n in (name, MORE.get(name), f"sensitivity-{name}") if n in studies()):
            for run in [*study.search.get(optimizer, ()), *(r for g in study.groups for r in g.runs)]:
                alike = {**run.config.settings, "lr": None} == fixed
                if alike and run.config.name == optimizer and run.config.role == "tune":
                    same.setdefault(run.lr, run)
        if len(same) > 3 and optimizer != "adam":
            found.append(ShortCase(name, optimizer, dict(sorted(same.items())), by_share))
    return found


@dataclass(frozen=True)
class ShortRule:
    """share: percent of the full run that the schedule of short ones has; made: how far they go of it."""

    share: int
    made: float
    by_loss: bool = True
    factor: float = 1.0

    @property
    def cost(self) -> float:
        """Gradients of one short run ÷ the full run's."""
        return self.share / 100 * self.made

    def __str__(self) -> str:
        by = "training loss" if self.by_loss else "validation metric"
        return f"{self.made:.0%} of a schedule of {self.share}%, by {by}, × {self.factor:g}"

    def rate(self, case: ShortCase) -> float:
        """What it suggests."""
        runs = [self._cut(run) for run in case.short[self.share]]
        best = vertex([math.log(run.lr) for run in runs], [rank(run) for run in runs])
        return self.factor * math.exp(best)

    def _cut(self, run: RunRecord) -> RunRecord:
        """A run as it would have ended earlier."""
        end = round(self.made * run.config.steps)
        lines = [line for line in run.metrics if line["step"] <= end]
        if self.by_loss:
            return replace(run, config=replace(run.config, stop_after=end, origin=Origin(kind=SHORT)), metrics=lines)
        value = next(line[run.metric] for line in reversed(lines) if line["kind"] == "eval")
        return replace(run, result={**(run.result or {}), "final": {run.metric: value}})


#: What `adan-bench suggest` does.
RULE = ShortRule(10, MADE)
#: Those within the budget of six rates, and those that it leaves out: the whole of 10%.
VARIANTS = [
    ShortRule(share, made, by_loss, factor)
    for share, made in ((2, 1.0), (4, 1.0), (10, MADE), (10, 1.0))
    for by_loss in (True, False)
    for factor in (1.0, 1.25, 1.5)
    if by_loss or made == 1.0  # held-out data was looked at at the quarters alone
]


def long_enough(case: ShortCase) -> bool:
    """Whether short runs of `LEAST` steps are within the budget."""
    return TRIALS * LEAST <= BUDGET * next(iter(case.full.values())).config.steps


def suggested(case: ShortCase | None) -> float | None:
    """What `adan-bench suggest` suggests, where it was tried and does not refuse."""
    return RULE.rate(case) if case is not None and RULE.share in case.short and long_enough(case) else None


def within(rate: float, case: ShortCase) -> bool:
    return abs(math.log2(rate / case.best)) < 1.001


def flat(case: ShortCase) -> float | None:
    """Adan's rate by that of AdamW's full runs."""
    theirs = next((c for c in cases() if (c.study, c.optimizer) == (case.study, "adamw")), None)
    return LR_RATIO * theirs.best if theirs and case.optimizer == "adan" else None


def recipe(case: ShortCase) -> float | None:
    """The paper's rate for Adan, at our batch size by its square-root rule."""
    own = recipes[RECIPES[case.study]] if case.study in RECIPES else None
    if case.optimizer != "adan" or own is None or own.lr is None:
        return None
    size = next(iter(case.full.values())).config.batch_size
    return scaled_lr(size, own.lr, own.batch_size) if own.batch_size else own.lr


def score(rule: ShortRule, some: Sequence[ShortCase]) -> tuple[int, int, float, float]:
    """Cases within a factor of two, all cases, median and largest regret."""
    own = [case for case in some if rule.share in case.short and long_enough(case)]
    regrets = [case.regret(rule.rate(case))[0] for case in own]
    near = sum(within(rule.rate(case), case) for case in own)
    return near, len(own), statistics.median(regrets), max(regrets)


def halves() -> tuple[list[ShortCase], list[ShortCase]]:
    names = sorted({case.study for case in cases() if 10 in case.short and long_enough(case)})
    first = names[::2]
    own = [case for case in cases() if case.study in names]
    return [case for case in own if case.study in first], [case for case in own if case.study not in first]


def chosen(some: Sequence[ShortCase]) -> ShortRule:
    """The rule within the budget that is near most often, of several the one with the smaller median regret."""
    affordable = [rule for rule in VARIANTS if TRIALS * rule.cost <= BUDGET]
    return max(affordable, key=lambda rule: (score(rule, some)[0], -score(rule, some)[2]))


def suggest_rates() -> str:
    """The best rate of full runs; the suggestion ÷ it and what that loses; other rules beside it."""

    def cell(case: ShortCase | None, rate: float | None) -> str:
        if case is None or rate is None:
            return ""
        regret, inside = case.regret(rate)
        loss = f"{'' if inside else '> '}{regret:.1%}" if math.isfinite(regret) else "next to one that diverged"
        return f"×{rate / case.best:.2g}, {loss}"

    lines = []
    for study, title in TITLES.items():
        own = {case.optimizer: case for case in cases() if case.study == study}
        adan = own["adan"]
        best = ", ".join(f"{own[name].best:.2g}" for name in ("adan", "adamw") if name in own)
        ours = [cell(own.get(name), suggested(own.get(name))) for name in ("adan", "adamw")]
        lines.append([title, best, *ours, cell(adan, flat(adan)), cell(adan, recipe(adan))])
    head = ["", "best lr of Adan, AdamW", "`suggest`, Adan", "`suggest`, AdamW"]
    return table([*head, f"{LR_RATIO:g} × AdamW's", "the paper's"], lines)


TABLES = (suggest_rates,)


def single(optimizer: str) -> float:
    """The one rate for every workload, of those a quarter of an octave apart, that loses least in the mean.

    A loss counts as 100% at most: one next to a rate that diverged would decide alone.
    """
    own = [case for case in cases() if case.optimizer == optimizer]
    rates = [0.001 * 2 ** (i / 4) for i in range(-8, 25)]
    return min(rates, key=lambda rate: statistics.fmean(min(1.0, case.regret(rate)[0]) for case in own))


def left_out() -> tuple[int, int]:
    """Cases within a factor of two, and all, where the rule is chosen without the family of each."""
    own, near, total = [*itertools.chain(*halves())], 0, 0
    for names in DATA["families"].values():
        if without := [case for case in own if case.study in names.split()]:
            got = score(chosen([case for case in own if case not in without]), without)
            near, total = near + got[0], total + got[1]
    return near, total


if __name__ == "__main__":
    first, second = halves()
    print("rule; six rates ÷ a full run; within a factor of two, median and largest regret: all, first and second half")
    for rule in VARIANTS:
        scores = [score(rule, some) for some in ([*first, *second], first, second)]
        print(f"{rule}; {TRIALS * rule.cost:.0%};", *("{}/{}, {:.1%}, {:.1%};".format(*own) for own in scores))
    rule = chosen(first)
    print(f"chosen on {', '.join(sorted({case.study for case in first}))}: {rule}; on the rest: {score(rule, second)}")
    print("families left out: {} of {}".format(*left_out()))
    print("one rate for all:", *(f"{name} {single(name):.2g}" for name in ("adan", "adamw")))
