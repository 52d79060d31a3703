"""A detector, a graph network, and PPO."""

from __future__ import annotations

from evidence.compare import Group, Records, compared, verdict
from evidence.jobs import read
from evidence.search import Follow, Study
from evidence.sections.parts import (
    ACCURACY,
    BOX_AP,
    NAMES,
    REWARD,
    RUNS,
    Section,
    add_study,
    curve,
    curves,
    joined,
    paper,
    table,
)
from evidence.studies import CORA, DETR, HALFCHEETAH, HOPPER, ROBOTS, TIANSHOU

#: The environment's for each update: every one of them is in ten minibatches of 64.
STEPS_PER_UPDATE = 64 / 10
#: By whose PPO: the harness's is Tianshou's, and was another before.
PPO: dict[str, tuple[Study | Follow, ...]] = {
    "Tianshou's PPO": TIANSHOU,
    "stable-baselines3's PPO": (HOPPER, *ROBOTS),
}


def detection(records: Records) -> Section | None:
    section = Section("A detector of blood cells", [], "results-detr.svg")
    intro = (
        "Deformable DETR with 3 + 3 layers of width 128 and a small ResNet ({size}), all from random weights, on BCCD: "
        "292 training and 72 test photographs, scaled to 320×240 pixels, random horizontal flips; red cells, "
        f"white cells and platelets. {DETR.length:,} steps, batch size {DETR.options['batch_size']}, fp32, gradient "
        "clipping at 0.1, a tenth of the rate for sampling offsets and reference points. Trials have the same length; "
        "they hold out every sixth of the 292 and are judged by the loss on those."
    )
    if not add_study(DETR, BOX_AP, section, intro, records):
        return None
    before = read(RUNS.with_name("detr-first.jsonl")).values()
    early = [r["final"]["box AP"] for r in before if r["job"]["tuning"]]
    ends = {
        name: [BOX_AP(r["final"]["box AP"]) for r in before if not r["job"]["tuning"] and r["job"]["optimizer"] == name]
        for name in ("adan", "adamw")
    }
    listed = joined([f"{NAMES[name]} {joined(values)}" for name, values in ends.items()])
    section.searches.append(
        f"Two searches of 400 steps were abandoned ([runs](../results/evidence/detr-first.jsonl)): at the end "
        f"{sum(value < 0.03 for value in early)} of {len(early)} trials had a box AP below 3%. The seeds of the first, "
        f"with b1 = 0.98 for Adan, ended after 1,500 steps at {listed}."
    )
    seeds = [
        f"{NAMES[g.optimizer]} {', '.join(BOX_AP(value) for value in g.by_seed().values())}"
        for g in compared(DETR, records)
    ]
    by_rate = []
    for entry in DETR.entries:
        tried = sorted((job.settings["lr"], records[job.key]["final"]["box AP"]) for job in DETR.asked(entry, records))
        shown = ", ".join(f"{BOX_AP(value)} at {lr:g}" for lr, value in tried)
        by_rate.append(f"{NAMES[entry.optimizer]} {shown}")
    section.body.append(
        f"Seed by seed: {'; '.join(seeds)}. Box AP of the trials: {'; '.join(by_rate)}. The loss, by which trials are "
        "judged, chose a rate for AdamW within a factor of two of one at which it hardly trains, and not the one with "
        "its best AP: part of the gap may be due to tuning."
    )
    at_half = [f"{NAMES[g.optimizer]} {BOX_AP.spread(g.final('box AP50'))}" for g in compared(DETR, records)]
    section.body.append(
        f"Box AP50, %: {joined(at_half)}. The paper's Table 8 reports, for COCO with a pre-trained ResNet-50, box AP "
        f"{paper('deformable-detr', 'Adan', 'AP')} with Adan, {paper('deformable-detr', 'AdamW', 'AP').strip('⋄')} "
        "with AdamW after 50 epochs."
    )
    return section


def graphs(records: Records) -> Section | None:
    section = Section("A graph network on Cora", [], "results-cora.svg")
    intro = (
        "DeeperGCN's layers, 14 of 64 channels ({size}), dropout 0.5, on the public split of Cora: 140 training "
        "nodes, 1,000 test nodes; 300 steps on the whole graph."
    )
    if not add_study(CORA, ACCURACY, section, intro, records):
        return None
    section.body.append(
        f"The paper's Table 14 reports, for ogbn-proteins, ROC-AUC {paper('deepgcn', 'Adan', '1000 epochs')} with "
        f"Adan, {paper('deepgcn', 'Adam (official)', '1000 epochs')} with Adam after 1,000 epochs."
    )
    return section


def environment_of(study: Study | Follow) -> str:
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
    if not parts:
        return ""
    return (
        f"HalfCheetah by rate with stable-baselines3's PPO, one seed at a fifth of the length: {'; '.join(parts)}. "
        "Hopper's rates, used above, are the best here for neither."
    )


def reinforcement(records: Records) -> Section | None:
    section = Section("PPO on MuJoCo", [], "results-ppo.svg")
    section.body.append(
        "245 rollouts of 2,048 steps (501,760 in all), 10 epochs of minibatches of 64, on CPU cores; the rate falls "
        "linearly. For each optimizer it is the best of four, tried with one seed on Hopper at a fifth of the length "
        "and used in all environments, so neither is well tuned. Rewards are means over ten episodes with sampled "
        "actions after the last update."
    )
    for whose, studies in PPO.items():
        environments(
            section, whose, [(environment_of(s), results) for s in studies if (results := compared(s, records))]
        )
    if not section.panels:
        return None
    if tried := own_rates(records):
        section.body.append(tried)
    section.body.append(
        "The paper's Figure 2 shows ten seeds; its text says that PPO with Adan reaches much higher rewards in all "
        "four environments. Its PPO is Tianshou's, which we now use too: observations divided by their running "
        "standard deviation, returns scaled, advantages recomputed before every pass. The older runs use "
        "stable-baselines3's, with different normalization, rollouts and initialization."
    )
    return section


def environments(section: Section, whose: str, by_environment: list[tuple[str, list[Group]]]) -> None:
    """A table and a panel for each environment, of one implementation of PPO."""
    rows, weak = [], []
    tests = max(1, len(by_environment))
    for name, (adan, adam) in by_environment:
        lead, single = verdict(adan, adam, tests), verdict(adan, adam, 1)
        if lead.word != single.word:
            weak.append(f"{name} would be {single.word} ({REWARD.change(single.difference)})")
        cells = [f"{REWARD.spread(group.final())} (n = {group.counted})" for group in (adan, adam)]
        rates = " and ".join(f"{group.settings['lr']:g}" for group in (adan, adam))
        rows.append([name, rates, *cells, f"{REWARD.change(lead.difference)}: {lead.word}"])
        lines = [curve(group, REWARD) for group in (adan, adam)]
        for line in lines:
            line.x = [round(STEPS_PER_UPDATE * x) for x in line.x]
        section.panels.append(curves(f"{name}, {whose}", "environment step", REWARD, lines, share=0))
    if not rows:
        return
    warning = f"; without the correction for {len(by_environment)} environments, {joined(weak)}" if weak else ""
    section.body.append(f"**{whose}**{warning}")
    section.body.append(table(["environment", "lr of Adan and of Adam", "Adan", "Adam", "Adan minus Adam"], rows))
