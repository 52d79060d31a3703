"""docs/results.md and its figures, written from the records: `python -m evidence page`, part of `make tables`."""

from __future__ import annotations

import json
import math
import statistics
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from adan_bench.records.stats import MIN_SEEDS, WIDTH_TOLERANCE, Interval
from adan_bench.reports.palette import COLORS, style_of
from evidence.compare import Group, Records, best_other, compared, groups, reaches, verdict
from evidence.figures import Line, Panel, digest, draw, drawn
from evidence.jobs import Job, read, score
from evidence.studies import (
    B1_LENGTH,
    BATCH_SIZE,
    BETAS,
    COMPONENTS,
    CONVNEXT,
    CORA,
    FORMATS,
    FOUR_BIT,
    GPT,
    GPT_HALF,
    HALFCHEETAH,
    HOPPER,
    LSTM,
    LSTM_AGAIN,
    MOE,
    RESNET,
    ROBOTS,
    SENSITIVITY,
    TIANSHOU,
    TIANSHOU_HOPPER,
    TINY_GPT,
    TRANSFORMER_XL,
    VIT_25,
    VIT_50,
    VIT_100,
    Follow,
    Study,
)

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "results" / "evidence" / "runs.jsonl"
#: 4-bit formats that were given up: their runs, and how many bits they had for m and √n.
GIVEN_UP = {RUNS.with_name("four-bit-first.jsonl"): (8, 4), RUNS.with_name("four-bit-second.jsonl"): (4, 8)}
PAGE = ROOT / "docs" / "results.md"
FIGURES = ROOT / "docs" / "figures"
NAMES = {"adan": "Adan", "adamw": "AdamW", "adam": "Adam", "lamb": "LAMB", "sgd": "SGD", "adabelief": "AdaBelief"}
_CIFAR_EPOCH, _PTB_EPOCH = 390, 663  # steps with batches of 128, and of 20 × 70 words
#: By whose PPO: the harness's is Tianshou's, and was another before.
PPO: dict[str, tuple[Study | Follow, ...]] = {
    "Tianshou's PPO": TIANSHOU,
    "stable-baselines3's PPO": (HOPPER, *ROBOTS),
}
#: The workloads of which formats and learning rates are studied.
TITLES = {"gpt": "GPT, 2,000 steps", "vit-25": "ViT, 25 epochs"}


# Words


@dataclass(frozen=True)
class Unit:
    """How a metric is shown."""

    name: str
    factor: float
    digits: int
    of_difference: str

    def __call__(self, value: float) -> str:
        return f"{value * self.factor:,.{self.digits}f}"

    def spread(self, found: Interval) -> str:
        return self(found.mean) + (f" ± {self(found.half)}" if found.half is not None else "")

    def change(self, found: Interval) -> str:
        ends = (
            "" if found.low is None or found.high is None else f" [{self.signed(found.low)}, {self.signed(found.high)}]"
        )
        return f"{self.signed(found.mean)}{ends}"

    def signed(self, value: float) -> str:
        return f"{value * self.factor:+,.{self.digits}f}".replace("-", "−")


ACCURACY = Unit("test accuracy, %", 100, 2, " points")
LOSS = Unit("test loss, nats per byte", 1, 4, " nats")
PERPLEXITY = Unit("test perplexity", 1, 2, "")
REWARD = Unit("episode reward", 1, 0, "")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *map(list, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def joined(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def settings(found: dict[str, Any]) -> str:
    """All of an optimizer's settings but what is 0."""
    names = {"weight_decay": "decay"}
    parts = []
    for key, value in found.items():
        if isinstance(value, list):
            parts.append(f"{key} " + ", ".join(f"{v:g}" for v in value))
        elif value or key == "weight_decay":
            parts.append(f"{names.get(key, key)} {value:g}")
    return ", ".join(parts)


def comparison(found: list[Group], unit: Unit) -> str:
    """One row per optimizer, with Adan's lead over it."""
    first, others = found[0], found[1:]
    rows = []
    for group in found:
        row = [NAMES[group.optimizer], settings(group.settings), str(group.n), unit.spread(group.final())]
        row.append(f"{group.final('train_loss').mean:.3f}")
        lead = verdict(first, group, len(others)) if group is not first else None
        row.append(f"{unit.change(lead.difference)}: {lead.word}" if lead else "")
        rows.append(row)
    head = ["optimizer", "settings", "n", unit.name, "training loss", "Adan minus it"]
    return table(head, rows)


# Curves


def color(optimizer: str) -> str:
    return style_of(optimizer, list(NAMES))["light"]


def curve(group: Group, unit: Unit, label: str = "", dashed: bool = False) -> Line:
    points = group.curve()
    means, low, high = ([round(unit.factor * f(ys), 4) for _, ys in points] for f in (statistics.fmean, min, max))
    return Line(
        color(group.optimizer), label or NAMES[group.optimizer], [x for x, _ in points], means, low, high, dashed
    )


def curves(title: str, x_label: str, unit: Unit, lines: list[Line], share: float = 0.2) -> Panel:
    """A panel of curves; its vertical axis holds what comes after this share of a run."""
    late = [
        value
        for line in lines
        for i in range(int(share * len(line.x)), len(line.x))
        for value in (line.low[i], line.high[i])
    ]
    room = 0.04 * (max(late) - min(late))
    return Panel(title, x_label, unit.name, lines, round(min(late) - room, 4), round(max(late) + room, 4))


# Studies


@dataclass
class Section:
    """A part of the page.

    found, not_found: sentences for its beginning, by whether the paper's claim was found.
    places: where Adan was better than all others at equal length (True) or not.
    """

    heading: str
    body: list[str]
    figure: str = ""
    panels: list[Panel] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    not_found: list[str] = field(default_factory=list)
    places: list[tuple[str, bool]] = field(default_factory=list)


def paper(name: str, row: str, column: str) -> str:
    """A figure of the paper, as printed."""
    data = json.loads((ROOT / "src" / "adan_bench" / "tables" / f"{name}.json").read_text())
    at = [c["head"] for c in data["columns"]].index(column)
    return str(next(r["values"][at] for r in data["rows"] if r["head"] == row))


def minutes(records: Records, *names: str) -> str:
    """A GPU's time for studies: each run's seconds over the number of runs that shared the GPU."""
    runs = [r for r in records.values() if r["job"]["study"] in names]
    return on_gpu(sum(r["wall_seconds"] / r["environment"]["workers"] for r in runs))


def on_gpu(seconds: float) -> str:
    value, unit = (f"{seconds / 60:.0f}", "minute") if seconds < 3600 else (f"{seconds / 3600:.1f}", "hour")
    return f"{value} {unit}{'' if value == '1' else 's'} of one H200"


def equal_length(section: Section, found: list[Group], unit: Unit, where: str) -> None:
    """Sort what a study says about the claim that Adan is better at equal length. found: Adan's group first."""
    first, others = found[0], found[1:]
    for word in ("better", "worse", "not separated"):
        named = []
        for group in others:
            lead = verdict(first, group, len(others))
            if lead.word == word:
                named.append(f"{NAMES[group.optimizer]} ({unit.change(lead.difference)}{unit.of_difference})")
        if named:
            text = {"better": "better than", "worse": "worse than", "not separated": "not separated from"}[word]
            target = section.found if word == "better" else section.not_found
            target.append(f"{where}: Adan is {text} {joined(named)}.")
    section.places.append((where, all(verdict(first, group, len(others)).word == "better" for group in others)))


def half_length(section: Section, half: Group, full: Group, unit: Unit, where: str) -> str:
    """Adan with half the budget against another with all of it."""
    lead = verdict(half, full, 1)
    text = (
        f"{where}: Adan {unit(half.final().mean)}, {NAMES[full.optimizer]} with twice the length "
        f"{unit(full.final().mean)} (n = {half.n} and {full.n}); the difference is {unit.change(lead.difference)}"
        f"{unit.of_difference}: {'not separated' if lead.word == 'not separated' else f'Adan is {lead.word}'}."
    )
    (section.found if lead.word == "better" else section.not_found).append("Half the length, " + text)
    return text


def vision(records: Records) -> Section | None:
    found = compared(VIT_25, records)
    if not found:
        return None
    size = found[0].records[0]["parameters"] / 1e6
    section = Section("A vision transformer on CIFAR-10", [], "results-vit.svg")
    section.body.append(
        f"ViT of {size:.1f} M parameters, batches of 256, cosine schedule after 5% of warm-up, clipping at 1, shifts, "
        "flips and cutout, label smoothing 0.1. This copy of CIFAR-10 is JPEG-compressed, which lowers every "
        f"accuracy. {minutes(records, 'vit-25', 'vit-50', 'vit-100')}."
    )
    for epochs, study in ((25, VIT_25), (50, VIT_50), (100, VIT_100)):
        if not (those := compared(study, records)):
            continue
        title = f"**{epochs} epochs**" + ("" if study is VIT_25 else ", with the settings tuned at 25")
        section.body += [title, comparison(those, ACCURACY)]
        equal_length(section, those, ACCURACY, f"ViT on CIFAR-10 ({epochs} epochs)")
        lines = [curve(group, ACCURACY) for group in those]
        adamw = next(group for group in those if group.optimizer == "adamw")
        if at := reaches(those[0], adamw.final().mean):
            section.body.append(f"Adan's mean reaches AdamW's final accuracy after {at:.0f} of {epochs} epochs.")
        if study is VIT_50:
            where = "ViT on CIFAR-10 after 25 epochs, the length at which both were tuned"
            section.body.append(half_length(section, found[0], adamw, ACCURACY, where))
            lines.append(curve(found[0], ACCURACY, "Adan, 25 epochs", dashed=True))
        section.panels.append(curves(f"{epochs} epochs", "epoch", ACCURACY, lines))
    figures = [paper("vit-s", row, f"{n} epochs") for n, row in ((150, "Adan"), (150, "AdamW (default)"))]
    section.body.append(
        f"The paper's Table 16 has ViT-S on ImageNet: after 150 epochs Adan {figures[0]}, AdamW {figures[1]}; AdamW "
        f"after 300 epochs {paper('vit-s', 'AdamW (default)', '300 epochs').rstrip('*')}."
    )
    return section


def language(records: Records) -> Section | None:
    found = compared(GPT, records)
    if not found:
        return None
    size = found[0].records[0]["parameters"] / 1e6
    section = Section("A language model on Python source", [], "results-gpt.svg")
    section.body.append(
        f"GPT of {size:.1f} M parameters over bytes, 2,000 steps of 64 × 256 bytes drawn from 391 MB of installed "
        f"packages, cosine schedule after 5% of warm-up, clipping at 1. {minutes(records, 'gpt', 'gpt-half')}."
    )
    section.body.append(comparison(found, LOSS))
    equal_length(section, found, LOSS, f"GPT of {size:.1f} M on Python source (2,000 steps)")
    lines = [curve(group, LOSS) for group in found]
    best = best_other(found)
    if at := reaches(found[0], best.final().mean):
        section.body.append(f"Adan's mean reaches {NAMES[best.optimizer]}'s final loss after {at:,.0f} of 2,000 steps.")
    for half in groups(GPT_HALF, records):
        if half.n >= MIN_SEEDS:
            section.body.append(half_length(section, half, best, LOSS, "GPT after 1,000 steps"))
            lines.append(curve(half, LOSS, "Adan, 1,000 steps", dashed=True))
    section.panels.append(curves("test loss", "step", LOSS, lines, share=0.4))
    section.body.append(
        f"The paper's Table 12 has GPT-2 of 345 M: pass@1 of {paper('gpt2', 'Adan, 150k steps', 'pass@1')} with Adan "
        f"after 150,000 steps, {paper('gpt2', 'Adam, 300k steps', 'pass@1')} with Adam after 300,000. A run of 2,000 "
        "steps does not test what happens at that length."
    )
    return section


def alone(study: Study, unit: Unit, section: Section, where: str, intro: str, records: Records) -> bool:
    """A section of one study: what it is, the comparison, a figure. False where it has too few runs."""
    found = compared(study, records)
    if not found:
        return False
    first, best = found[0], best_other(found)
    size = f"{first.records[0]['parameters'] / 1e6:.2g} M parameters"
    section.body += [f"{intro.format(size=size)} {minutes(records, study.name)}.", comparison(found, unit)]
    equal_length(section, found, unit, where)
    lines = [curve(group, unit) for group in found]
    share = 0.5 if unit is PERPLEXITY else 0.2
    section.panels.append(curves(unit.name.partition(",")[0], study.unit.removesuffix("s"), unit, lines, share))
    if at := reaches(first, best.final().mean):
        at_all = f"{at:.0f} of {first.length} {study.unit}"
        section.body.append(f"Adan's mean first reaches the final result of {NAMES[best.optimizer]} after {at_all}.")
    return True


def convolutions(records: Records) -> Section | None:
    section = Section("CNNs on CIFAR-10", [], "results-cnn.svg")
    vanilla = (
        "**ResNet-34** of {size}, batches of 128, 30 epochs where the paper trains 200, tuned at 5; cosine schedule "
        "after 5% of warm-up, shifts and flips. This copy of CIFAR-10 is JPEG-compressed."
    )
    modern = "**ConvNeXt** of {size}, batches of 256, 25 epochs, otherwise as the ViT, without clipping."
    shown = [
        alone(RESNET, ACCURACY, section, "ResNet-34 on CIFAR-10 (30 epochs)", vanilla, records),
        alone(CONVNEXT, ACCURACY, section, "ConvNeXt on CIFAR-10 (25 epochs)", modern, records),
    ]
    return section if any(shown) else None


def words(records: Records) -> Section | None:
    section = Section("An LSTM on Penn Treebank", [], "results-lstm.svg")
    intro = (
        "AWD-LSTM of one layer and {size} in the setting of AdaBelief's published scripts, rows of 70 words in 20 "
        f"columns, clipping at 0.25, **8 epochs** ({8 * _PTB_EPOCH:,} steps) where the paper trains 200; cosine "
        "schedule after 5% of warm-up. Tuned at 4 epochs. Held-out text runs in ten columns."
    )
    if not alone(LSTM_AGAIN, PERPLEXITY, section, "LSTM on Penn Treebank (8 epochs)", intro, records):
        return None
    section.body.append(
        "This is the second search: a first one of seven trials for each (`lstm-8`) had ended at its largest rate for "
        "AdamW, Adam and AdaBelief and had tried Adan's smaller b1 at one rate only, so this one starts from what that "
        "chose, again with seven trials for each, and with b1 = 0.8 for Adan, below what the paper uses."
    )
    if before := compared(LSTM, records):
        listed = joined([f"{NAMES[group.optimizer]} {PERPLEXITY(group.final().mean)}" for group in before])
        section.body.append(f"With what the first search chose, three seeds each: {listed}.")
    names = [NAMES[entry.optimizer] for entry in LSTM.entries]
    listed = joined([f"{name} {paper('lstm', name, '1 layer')}" for name in names])
    section.body.append(f"The paper's Table 10 has, after 200 epochs, {listed}.")
    return section


def memories(records: Records) -> Section | None:
    section = Section("Transformer-XL on Penn Treebank", [], "results-transformer-xl.svg")
    intro = (
        "Transformer-XL of {size}, rows of 70 words with a memory of as many in 20 columns, clipping at 0.25, cosine "
        "schedule after 5% of warm-up. Tuned at a fifth of the length."
    )
    where = "Transformer-XL on Penn Treebank (20,000 steps)"
    return section if alone(TRANSFORMER_XL, PERPLEXITY, section, where, intro, records) else None


def graphs(records: Records) -> Section | None:
    section = Section("A graph network on Cora", [], "results-cora.svg")
    intro = (
        "DeeperGCN's layers, 14 of 64 channels ({size}), dropout 0.5, on the public split of Cora: 140 nodes train, "
        "1,000 test; 300 steps on the whole graph, cosine schedule after 5% of warm-up."
    )
    if not alone(CORA, ACCURACY, section, "DeepGCN on Cora", intro, records):
        return None
    section.body.append(
        f"The paper's Table 14 has ogbn-proteins: ROC-AUC {paper('deepgcn', 'Adan', '1000 epochs')} with Adan, "
        f"{paper('deepgcn', 'Adam (official)', '1000 epochs')} with Adam after 1,000 epochs."
    )
    return section


def mixtures(records: Records) -> Section | None:
    """What the paper shows on mixtures of experts, on a tiny one and on the GPT that it is made of."""
    section = Section("A tiny GPT", [], "results-tiny.svg")
    for study, name in ((TINY_GPT, "GPT"), (MOE, "Mixture of 8 experts")):
        found = compared(study, records)
        if not found:
            continue
        size = found[0].records[0]["parameters"] / 1e6
        section.body.append(f"**{name}, {size:.1f} M parameters**")
        section.body.append(comparison(found, LOSS))
        equal_length(section, found, LOSS, f"{name} of {size:.1f} M on Python source (2,000 steps)")
        title = f"{name}, {size:.1f} M"
        section.panels.append(curves(title, "step", LOSS, [curve(group, LOSS) for group in found], share=0.4))
    if not section.panels:
        return None
    spent = minutes(records, *(study.name for study in (TINY_GPT, MOE, COMPONENTS, BETAS)))
    intro = (
        "Four layers of width 128 over bytes of the same Python source, 2,000 steps of 32 × 128 bytes, otherwise as "
        f"the GPT above. {spent}."
    )
    if compared(MOE, records):
        section.heading += " and a mixture of experts"
        intro += " In the mixture a router gives each byte two experts."
    section.body.insert(0, intro)
    section.body += parts_of_adan(records) + betas(records)
    return section


def parts_of_adan(records: Records) -> list[str]:
    found = compared(COMPONENTS, records)
    if not found:
        return []
    plain = next(g for g in found if g.optimizer == "adan" and not {"no_prox", "restart"} & g.settings.keys())
    rows = []
    for group in found:
        name = NAMES[group.optimizer]
        if group.settings.get("no_prox"):
            name = "Adan, AdamW's decay"
        if every := group.settings.get("restart"):
            name = f"Adan, a restart every {every['every']} steps"
        lead = verdict(group, plain, len(found) - 1) if group is not plain else None
        change = f"{LOSS.change(lead.difference)}: {lead.word}" if lead else ""
        rows.append([name, str(group.n), LOSS.spread(group.final()), change])
    text = (
        "**Parts of Adan** (the paper's Tables 20 and 22 add Nesterov's term, the proximal decay and restarts, each of "
        "which helps a little there), the GPT at the settings tuned for Adan and AdamW"
    )
    return [text, table(["", "n", LOSS.name, "minus Adan"], rows)]


def betas(records: Records) -> list[str]:
    found = compared(BETAS, records)
    if not found:
        return []
    rows = []
    for optimizer in ("adan", "adamw"):
        for last in (0.95, 0.99):
            cells = [
                group.final()
                for b1 in (0.9, 0.94, 0.98)
                for group in found
                if group.optimizer == optimizer
                and group.settings["betas"][:: len(group.settings["betas"]) - 1] == [b1, last]
            ]
            name = f"{NAMES[optimizer]}, {'b3' if optimizer == 'adan' else 'b2'} = {last}"
            rows.append([name, *(LOSS.spread(cell) for cell in cells)])
    text = (
        "**Betas**, the grid of the paper's Table 19 on the GPT, n = 3, all else as tuned; Adan's b2 is 0.92. In the "
        "paper the best b1 is 0.94, of three, for both optimizers"
    )
    return [text, table(["", "b1 = 0.9", "b1 = 0.94", "b1 = 0.98"], rows)]


def robot_of(study: Study | Follow) -> str:
    name = study.name.removeprefix("ppo-").removeprefix("tianshou-")
    return {"halfcheetah": "HalfCheetah"}.get(name, name.capitalize())


def own_rates(records: Records) -> str:
    """What HalfCheetah's own trials say of Hopper's rate."""
    parts = []
    for entry in HALFCHEETAH.entries:
        tried = sorted(
            (r["job"]["settings"]["lr"], r["final"][r["metric"]])
            for r in records.values()
            if (r["job"]["study"], r["job"]["optimizer"]) == (HALFCHEETAH.name, entry.optimizer) and r["job"]["tuning"]
        )
        if tried:
            shown = ", ".join(f"{REWARD(reward)} at {lr:g}" for lr, reward in tried)
            parts.append(f"{NAMES[entry.optimizer]} {shown}")
    return f"HalfCheetah by rate, one seed at a fifth of the length: {'; '.join(parts)}." if parts else ""


def reinforcement(records: Records) -> Section | None:
    section = Section("PPO on MuJoCo", [], "results-ppo.svg")
    section.body.append(
        "245 rollouts of 2,048 steps (501,760 in all), 10 passes in batches of 64, on CPU cores; the rate falls "
        "linearly. It is the best of four for each optimizer, tried on one seed of Hopper at a fifth of the length and "
        "used for all robots, so neither is tuned well. Each row is a comparison of its own, without correction."
    )
    for whose, studies in PPO.items():
        robots(section, whose, [(robot_of(s), found) for s in studies if (found := compared(s, records))])
    if not section.panels:
        return None
    if tried := own_rates(records):
        section.body.append(tried)
    section.body.append(
        "The paper's Figure 2 shows ten seeds; its text says that PPO with Adan reaches much higher rewards on all "
        "four games. Its PPO is Tianshou's, which the harness has now: observations divided by their running "
        "deviation, returns scaled, advantages computed anew before every pass. The older runs are of "
        "stable-baselines3's, with other normalisation, rollouts and initialisation."
    )
    return section


def robots(section: Section, whose: str, found: list[tuple[str, list[Group]]]) -> None:
    """A table, a panel for each robot and sentences about one implementation of PPO."""
    rows, weak = [], []
    by_word: dict[str, list[str]] = {}
    lower = 0
    for robot, (adan, adam) in found:
        lead = verdict(adan, adam, 1)
        if lead.word != verdict(adan, adam, len(found)).word:
            weak.append(robot)
        by_word.setdefault(lead.word, []).append(f"{robot} ({REWARD.change(lead.difference)})")
        lower += lead.difference.mean < 0
        cells = [f"{REWARD.spread(group.final())} (n = {group.n})" for group in (adan, adam)]
        rates = " and ".join(f"{group.settings['lr']:g}" for group in (adan, adam))
        rows.append([robot, rates, *cells, f"{REWARD.change(lead.difference)}: {lead.word}"])
        lines = [curve(group, REWARD) for group in (adan, adam)]
        section.panels.append(curves(f"{robot}, {whose}", "update", REWARD, lines, share=0))
    if not rows:
        return
    warning = f"; corrected for {len(found)} robots, {joined(weak)} would not be separated" if weak else ""
    section.body.append(f"**{whose}**{warning}")
    section.body.append(table(["robot", "lr", "Adan", "Adam", "Adan minus Adam"], rows))
    for word, text in (("better", "higher"), ("worse", "**lower**"), ("not separated", "not separated from Adam's")):
        if named := by_word.get(word):
            target = section.found if word == "better" else section.not_found
            target.append(f"{whose}, rates chosen on Hopper: Adan's reward is {text} on {joined(named)}.")
    section.places.append((whose, set(by_word) == {"better"}))
    if lower and len(found) > 1:
        section.not_found.append(f"{whose}: Adan's mean reward is the lower one on {lower} of {len(found)} robots.")


def formats(records: Records) -> Section | None:
    section = Section("States of 8 and 4 bits", [], "")
    rows = []
    for eight, four, unit in zip(FORMATS, FOUR_BIT, (PERPLEXITY, LOSS, ACCURACY), strict=True):
        by_format = {
            group.settings.get("state_format", "fp32"): group
            for study in (eight, four)
            for group in groups(study, records)
            if group.n >= MIN_SEEDS
        }
        full = by_format.pop("fp32", None)
        if full is None or not by_format:
            continue
        steps = full.records[0]["steps"]
        name = {"lstm-8": "LSTM", "gpt": "GPT", "vit-25": "ViT"}[eight.of.name]
        row = [f"{name}, {steps:,} steps: {unit.name}", f"{unit.spread(full.final())} (n = {full.n})"]
        for state_format in ("8bit", "4bit"):
            if group := by_format.get(state_format):
                lead = verdict(group, full, len(by_format))
                row.append(f"{unit.change(lead.difference)}: {lead.word} (n = {group.n})")
            else:
                row.append("not run")
        rows.append(row)
    if not rows:
        return None
    section.body.append(
        "Adan with `state_format` `8bit` and `4bit`, settings as tuned with fp32 states; what is shown of them is the "
        "difference from fp32."
    )
    section.body.append(table(["", "fp32", "8 bit minus fp32", "4 bit minus fp32"], rows))
    section.body += [text for path in GIVEN_UP if (text := given_up(path, records))]
    return section


def given_up(path: Path, records: Records) -> str:
    """What an earlier 4-bit format did, whose runs lie in a file of their own."""
    parts = []
    others = {key: r for key, r in records.items() if r["job"]["settings"].get("state_format") != "4bit"}
    for study, unit in zip(FOUR_BIT, (PERPLEXITY, LOSS, ACCURACY), strict=True):
        found = {"state_format" in g.settings: g for g in groups(study, others | read(path))}
        if len(found) == 2 and min(group.n for group in found.values()) >= MIN_SEEDS:
            lead = verdict(found[True], found[False], 1)
            name = study.of.problem.upper().replace("VIT", "ViT")
            parts.append(
                f"{name} {unit.change(lead.difference)}{unit.of_difference}: {lead.word} (n = {found[True].n})"
            )
    m, n = GIVEN_UP[path]
    return (
        f"A 4-bit format with {m} bits for m and {n} for √n, where it has 6 each now, was given up for what it did to "
        f"the LSTM. Its difference from fp32: {'; '.join(parts)} ([runs](../results/evidence/{path.name}))."
        if parts
        else ""
    )


def sensitivity(records: Records) -> Section | None:
    section = Section("How much the learning rate matters", [], "results-lr.svg")
    rows: list[list[str]] = []
    notes: list[str] = []
    for study, unit, room in zip(SENSITIVITY, (LOSS, ACCURACY, PERPLEXITY), (0.3, 12.0, 60.0), strict=True):
        jobs = list(study.reported(records))
        if not jobs or any(job.key not in records for job in jobs):
            continue
        name = f"LSTM, {LSTM.tune_length} epochs" if study.of is LSTM_AGAIN else TITLES[study.of.name]
        lines, bests, found = [], [], {}
        for optimizer in ("adan", "adamw"):
            mine = sorted((job for job in jobs if job.optimizer == optimizer), key=lambda job: job.settings["lr"])
            made = [(job.settings["lr"], records[job.key]) for job in mine]
            finite = [(lr, r["final"][r["metric"]]) for lr, r in made if r["status"] == "finished"]
            best_lr, best = max(finite, key=lambda pair: score(dict(made)[pair[0]]))
            near = [lr for lr, value in finite if abs(value - best) <= WIDTH_TOLERANCE * abs(best)]
            lost = [f"{lr:g}" for lr, r in made if r["status"] != "finished"]
            rows.append(
                [
                    name,
                    NAMES[optimizer],
                    f"{best_lr:g}",
                    unit(best),
                    f"{min(near):g} – {max(near):g} (×{max(near) / min(near):.1f})",
                    ", ".join(lost) or "none",
                ]
            )
            bests.append(unit.factor * best)
            found[optimizer] = [(lr, score(r)) for lr, r in made]
            xs, ys = [lr for lr, _ in finite], [round(unit.factor * value, 4) for _, value in finite]
            lines.append(Line(color(optimizer), NAMES[optimizer], xs, ys, points=True))
        goal = max(value for _, value in found["adamw"])
        wins = [f"{lr:g}" for lr, value in found["adan"] if value > goal]
        chosen = [study.of.best(optimizer, records) for optimizer in ("adan", "adamw")]
        ratio = chosen[0]["lr"] / chosen[1]["lr"] if chosen[0] and chosen[1] else math.nan
        notes.append(
            f"{name}: Adan beats AdamW's best at {f'lr {joined(wins)}' if wins else 'no rate'}; the rates that tuning "
            f"chose are {ratio:.1f} to 1."
        )
        margin = room / 20
        low, high = (
            (max(bests) - room, max(bests) + margin) if unit is ACCURACY else (min(bests) - margin, min(bests) + room)
        )
        y_label = unit.name.replace("test", "validation")
        section.panels.append(Panel(name, "learning rate", y_label, lines, round(low, 4), round(high, 4), log_x=True))
    if not rows:
        return None
    section.body.append(
        "Nine rates over two decades, all else as tuned; **one seed, the tuning seed**, on the validation split. "
        "Points far worse than the best lie outside the figure."
    )
    head = [
        "",
        "optimizer",
        "best rate",
        "validation result",
        "rates within 2% of it",
        "rates with a loss that was not finite",
    ]
    section.body.append(table(head, rows))
    section.body += notes
    return section


def momentum(records: Records) -> Section | None:
    section = Section("b1 and the length of the run", [], "results-b1.svg")
    by_length: dict[int, list[Job]] = {}
    for job in B1_LENGTH.reported(records):
        by_length.setdefault(job.length, []).append(job)
    rows = []
    for length, jobs in by_length.items():
        if any(records.get(job.key, {}).get("status") != "finished" for job in jobs):
            continue
        cells, lines, tops = [], [], []
        for i, b1 in enumerate((0.9, 0.95, 0.98)):
            mine = [job for job in jobs if job.settings["betas"][0] == b1]
            points = sorted((job.settings["lr"], records[job.key]["final"]["loss"]) for job in mine)
            loss, lr = min((loss, lr) for lr, loss in points)
            end = {points[0][0]: ", the smallest", points[-1][0]: ", the largest"}.get(lr, "")
            cells.append(f"{loss:.3f} (lr {lr:g}{end})")
            tops.append(loss)
            xs, ys = [lr for lr, _ in points], [loss for _, loss in points]
            lines.append(Line(COLORS[i][0], f"b1 = {b1}", xs, ys, points=True))
        rows.append([f"{length:,} steps", *cells])
        everything = [y for line in lines for y in line.y]
        bottom, top = min(tops) - 0.03, max(everything) + 0.03
        title = f"{length:,} steps"
        section.panels.append(
            Panel(title, "learning rate", "validation loss", lines, round(bottom, 4), round(top, 4), log_x=True)
        )
    if not rows:
        return None
    section.body.append(
        "The GPT above, three rates for each b1, the best of which counts, with a word where it is at an end of the "
        "three; **one seed, the tuning seed**, validation loss."
    )
    section.body.append(table(["", "b1 = 0.9", "b1 = 0.95", "b1 = 0.98"], rows))
    return section


SECTIONS = (
    vision,
    convolutions,
    language,
    words,
    memories,
    mixtures,
    graphs,
    reinforcement,
    formats,
    sensitivity,
    momentum,
)

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
        f"{cost('resnet34', 9 * 30 * _CIFAR_EPOCH)}; of 200: {cost('resnet34', 9 * 200 * _CIFAR_EPOCH)}",
    ),
    Experiment(
        "ConvNeXt in Setting II",
        "Table 2",
        (CONVNEXT,),
        f"`convnext-25`, 14 trials and 6 runs, at the ViT's rate: {cost('vit', 14 * 4_375 + 6 * 4_875)}",
    ),
    Experiment("ViT", "Tables 5 and 16", (VIT_25, VIT_50), f"100 epochs (`vit-100`): {cost('vit', 6 * 19_500)}"),
    Experiment(
        "MAE with fine-tuning",
        "Table 6",
        (),
        "no study yet; two trainings per run, both tuned, so at least twice the ViT's time",
    ),
    Experiment("batch sizes", "Table 7", (BATCH_SIZE,), f"`batch-size-vit`, 45 runs: {cost('vit', 45 * 4_875)}"),
    Experiment(
        "detection",
        "Tables 8 and 9",
        (),
        "no study yet; the rate of Deformable DETR's steps was not measured",
    ),
    Experiment(
        "LSTM",
        "Table 10",
        (LSTM, LSTM_AGAIN),
        f"200 epochs (`lstm-200`): {cost('lstm', 15 * 200 * _PTB_EPOCH)}; two and three layers "
        "(`lstm-2-layers`, `lstm-3-layers`)",
    ),
    Experiment(
        "BERT on GLUE",
        "Table 11",
        (),
        "no study yet; it needs 100 MB or more of English text to pre-train on, which was not gathered",
    ),
    Experiment("GPT-2 on code", "Table 12", (GPT, GPT_HALF), "345 M parameters, 150,000 steps, pass@k"),
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
    Experiment("PPO", "Figure 2", (*TIANSHOU, HOPPER, *ROBOTS), "three million steps, ten seeds"),
    Experiment(
        "learning rates",
        "",
        SENSITIVITY,
        f"ViT (`sensitivity-vit-25`): {cost('vit', 17 * 4_375)}; ResNet",
    ),
    Experiment("formats", "", (*FORMATS, *FOUR_BIT), "nothing"),
)


def made(study: Study | Follow, records: Records) -> str:
    """How many runs a study has, its trials apart; the empty string where it has none."""
    trials = isinstance(study, Study)
    jobs = [r["job"] for r in records.values() if r["job"]["study"] == study.name and r["status"] == "finished"]
    count = sum(not (trials and job["tuning"]) for job in jobs)
    return f"`{study.name}` {count}" if count else ""


def experiments(records: Records) -> str:
    rows = []
    for row in EXPERIMENTS:
        here = ", ".join(text for study in row.studies if (text := made(study, records)))
        rows.append([row.what, row.where, here or "none", row.missing])
    return table(["experiment", "in the paper", "studies and runs here", "not run"], rows)


def untested(records: Records) -> list[str]:
    """Experiments of the paper of which no study here has enough runs to be compared."""
    return [
        f"{row.what} ({row.where})"
        for row in EXPERIMENTS
        if row.where and not any(compared(study, records) for study in row.studies)
    ]


def tuning(records: Records) -> str:
    """The rule, and where what it chose stands at an end of what was tried."""
    ends, lost = [], 0
    for study in (VIT_25, RESNET, GPT, LSTM_AGAIN, TINY_GPT, MOE, CORA, TIANSHOU_HOPPER, HOPPER):
        if not study.tuned(records):
            continue
        for entry in study.entries:
            tried = [
                r
                for r in records.values()
                if r["job"]["tuning"] and r["job"]["study"] == study.name and r["job"]["optimizer"] == entry.optimizer
            ]
            lost += sum(r["status"] == "diverged" for r in tried)
            rates = [r["job"]["settings"]["lr"] for r in tried]
            chosen = study.best(entry.optimizer, records)
            if chosen and chosen["lr"] in (min(rates), max(rates)):
                ends.append(f"{NAMES[entry.optimizer]} in {study.name}")
    where = f"at an end for {joined(ends)}" if ends else "never the smallest or the largest that was tried"
    return (
        f"The chosen rate is {where}; {lost} trials ended with a loss that was not finite. The fifth rate lies "
        "between two others where the best of the first four is inside, and beyond them where it is at an end."
    )


def summary() -> str:
    """The table of the README: Adan beside the best of the others, study by study."""
    records = read(RUNS)
    studies: list[tuple[str, Study | Follow, Unit]] = [
        ("ViT, CIFAR-10, 25 epochs", VIT_25, ACCURACY),
        ("ViT, CIFAR-10, 50 epochs", VIT_50, ACCURACY),
        ("ViT, CIFAR-10, 100 epochs", VIT_100, ACCURACY),
        ("ResNet-34, CIFAR-10, 30 epochs", RESNET, ACCURACY),
        ("ConvNeXt, CIFAR-10, 25 epochs", CONVNEXT, ACCURACY),
        ("GPT, 10.9 M, Python source", GPT, LOSS),
        ("GPT, 0.9 M, Python source", TINY_GPT, LOSS),
        ("mixture of experts, Python source", MOE, LOSS),
        ("LSTM, Penn Treebank, 8 epochs", LSTM_AGAIN, PERPLEXITY),
        ("Transformer-XL, Penn Treebank", TRANSFORMER_XL, PERPLEXITY),
        ("DeepGCN, Cora", CORA, ACCURACY),
        *((f"PPO, {robot_of(study)}", study, REWARD) for study in TIANSHOU),
    ]
    rows = []
    for name, study, unit in studies:
        if found := compared(study, records):
            best = best_other(found)
            lead = verdict(found[0], best, len(found) - 1)
            shown = [unit.spread(group.final()) for group in (found[0], best)]
            n = "/".join(dict.fromkeys(str(group.n) for group in (found[0], best)))
            change = f"{unit.change(lead.difference)}: {lead.word}"
            rows.append([f"{name}: {unit.name}", shown[0], f"{NAMES[best.optimizer]} {shown[1]}", n, change])
    return table(["", "Adan", "best other", "seeds", "difference"], rows)


def page(records: Records) -> tuple[str, dict[str, list[Panel]]]:
    """The text, and the panels of every figure by file name."""
    sections = [section for build in SECTIONS if (section := build(records)) is not None]
    found = [text for section in sections for text in section.found]
    not_found = [text for section in sections for text in section.not_found]
    better, other = (
        joined([where for section in sections for where, holds in section.places if holds == wanted] or ["nowhere"])
        for wanted in (True, False)
    )
    halves = [text for text in not_found if text.startswith("Half")]
    how = [
        "- **Tuning**, on a seed of its own, by the validation split: learning rates at ½, 1, 2 and 4 times a "
        "centre, a fifth chosen by those, then two alternatives at the best rate, b1 (Adan) or b2 and the decay (SGD: "
        "momentum, AdaBelief: eps, and the decay): seven trials for each optimizer. PPO has only the four rates. "
        f"{tuning(records)}",
        "- **Results** are of other seeds, trained on all training data and judged by the test split at the end of "
        "the run. ± is the half width of a 95% t interval over seeds.",
        "- **Adan minus it** is the difference of the means, in brackets its 95% interval by Welch's t test, with "
        "Bonferroni's correction over the comparisons of a table. If it excludes zero, Adan is called better or "
        "worse, otherwise the two are not separated. Seeds beyond the third of the ViT, of the 10.9 M GPT with its "
        "8-bit states and half its length, and of HalfCheetah with stable-baselines3's PPO were added when three had "
        "been seen, and the second search of the LSTM when the first one's results had been. Welch's test took the "
        "place of one paired by seed after both had been seen: by the paired one, HalfCheetah was not separated and 8 "
        "bits were better than fp32 on the GPT; the ViT at 25 epochs and the GPT read the same.",
        "- **Curves** are means over seeds, bands reach from the lowest to the highest seed.",
        f"- One {next(iter(records.values()))['environment']['gpu']}, bf16 autocast, three to eight runs at a time; "
        "PPO on 16 CPU cores. The records hold settings, curves and versions of every run: [what to know about them]"
        "(../results/evidence/README.md).",
    ]
    parts = [
        "# Does it train better?",
        "<!-- written by `make tables` from results/evidence/runs.jsonl -->",
        "The paper claims that Adan trains better than other optimizers at equal length, as well as they do in half "
        "of it, and PPO to much higher rewards. With every optimizer tuned by the same number of trials, small models "
        f"and at least three seeds, **better at equal length** was found in: {better}. **It was not** in: {other}. "
        + ("**Half the length** did not suffice where it was tried. " if halves else "")
        + f"**Not tested**: {joined(untested(records))}, and the paper's sizes.",
        "**Where the claim was found**",
        "\n".join(f"- {text}" for text in found or ["Nowhere."]),
        "**Where it was not**",
        "\n".join(f"- {text}" for text in not_found or ["Nowhere."]),
        "**What could not be tested here** is in the [last table](#the-papers-experiments-one-by-one). At the paper's "
        "sizes all of it runs with [`adan-bench reproduce`](reproduce.md).",
        "## How",
        "\n".join(how),
    ]
    figures = {}
    for section in sections:
        parts.append(f"## {section.heading}")
        if section.figure:
            figures[section.figure] = section.panels
            parts.append(f"![{section.heading}](figures/{section.figure})")
        parts += section.body
    parts += [
        "## The paper's experiments, one by one",
        experiments(records),
        "What is missing is so for want of GPU time, unless its row says otherwise. Trials of tuning are not counted, "
        "and a run that two studies share counts for the one that made it. The times are those of the trials, seeds "
        "and lengths above at the rates measured here, several runs at a time.",
    ]
    return "\n\n".join(map(wrapped, parts)) + "\n", figures


def wrapped(part: str) -> str:
    """Prose in lines of at most 120 characters; tables, headings and pictures as they are."""
    if part[0] in "|!#<":
        return part
    fill = partial(textwrap.fill, width=120, break_long_words=False, break_on_hyphens=False)
    return "\n".join(fill(line, subsequent_indent="  " if line.startswith("- ") else "") for line in part.splitlines())


def write(check: bool = False) -> list[str]:
    """Write the page and the figures whose panels have changed; their names. check: write nothing."""
    text, figures = page(read(RUNS))
    stale = [] if PAGE.exists() and PAGE.read_text() == text else [PAGE.name]
    if stale and not check:
        PAGE.write_text(text)
    for name, panels in figures.items():
        if drawn(FIGURES / name) != digest(panels):
            stale.append(name)
            if not check:
                draw(panels, FIGURES / name)
    return stale
