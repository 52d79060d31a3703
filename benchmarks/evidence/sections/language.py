"""Language models, from the LSTM to a mixture of experts."""

from __future__ import annotations

from collections import Counter

from adan_bench.records.stats import MIN_SEEDS, interval
from evidence.compare import Group, Records, compared, groups, verdict, welch
from evidence.jobs import Record, read
from evidence.search import Follow, Study
from evidence.sections.parts import (
    LOSS,
    NAMES,
    PERPLEXITY,
    RUNS,
    Section,
    Unit,
    add_study,
    comparison,
    curve,
    curves,
    half_length,
    joined,
    latest,
    minutes,
    other_search,
    paper,
    recipes,
    table,
    together,
)
from evidence.studies import (
    BETAS,
    COMPONENTS,
    GPT,
    GPT_30M,
    GPT_30M_AGAIN,
    GPT_30M_HALF,
    GPT_HALF,
    LSTM,
    LSTM_AGAIN,
    LSTM_FIXED,
    LSTM_PUBLISHED,
    MOE,
    TINY_GPT,
    TRANSFORMER_XL,
    TRANSFORMER_XL_ADAMW,
    TRANSFORMER_XL_HALF,
)

CUT_OFF = RUNS.with_name("gpt-30m-cut-off.jsonl")
PTB_EPOCH = 663  # steps with batches of 20 × 70 words


def language(records: Records) -> Section | None:
    section = Section("A language model on Python source", [], "results-gpt.svg")
    setting = (
        "Byte-level GPT with {size}, 2,000 steps of 64 × 256 bytes drawn from 391 MB of installed packages, "
        "gradient clipping at 1."
    )
    large = latest(records, GPT_30M, GPT_30M_AGAIN)
    larger = (
        "**A larger one**, {size}, 3,000 steps of 32 × 512 bytes, otherwise as the first. Tuned over five "
        f"learning rates at {large.tune_length or large.length:,} steps."
    )
    if not at_both_lengths(section, GPT, GPT_HALF, setting, records):
        return None
    if at_both_lengths(section, large, GPT_30M_HALF, larger, records):
        rates = [trial(GPT_30M, "adamw", lr, records) for lr in (5e-4, 1e-3)]
        level = f"two of AdamW's rates were nearly tied ({rates[0]:.4f} at 0.0005, {rates[1]:.4f} at 0.001)"
        if large is GPT_30M:
            section.body.append(f"In the trials {level}; the seeds use the first. {at_full_length(records)}")
        else:
            section.searches.append(other_search(GPT_30M, f"was tuned at 1,000 steps, where {level}", LOSS, records))
    section.body.append(
        f"The paper's Table 12 reports, for GPT-2 of 345 M, pass@1 of {paper('gpt2', 'Adan, 150k steps', 'pass@1')} "
        f"with Adan after 150,000 steps, {paper('gpt2', 'Adam, 300k steps', 'pass@1')} with Adam after 300,000. A run "
        f"of {section.panels[-1].lines[0].x[-1]:,.0f} steps does not test what happens at that length."
    )
    return section


def at_full_length(records: Records) -> str:
    """What the search with longer trials says of the lead in `gpt-30m`, as long as it has no seeds."""
    if not GPT_30M_AGAIN.tuned(records):
        return "This may explain part of the lead; a rate between the two was not tried."
    best = [
        min((records[job.key]["final"]["loss"], job.settings["lr"]) for job in GPT_30M_AGAIN.asked(entry, records))
        for entry in GPT_30M_AGAIN.entries
    ]
    (adan, lr), (adamw, its_lr) = best
    step, ours, theirs = cut_off()
    return (
        f"That explains most of the lead: a second search, with trials of {GPT_30M_AGAIN.length:,} steps, chose {lr:g} "
        f"for Adan and {its_lr:g} for AdamW, whose validation losses of {LOSS(adan)} and {LOSS(adamw)} are only "
        f"{adamw - adan:.4f} apart. Its seeds were cut off before their end ([curves](../results/evidence/"
        f"{CUT_OFF.name})): after {step:,} of {GPT_30M_AGAIN.length:,} steps, Adan has {LOSS.spread(interval(ours))} "
        f"and AdamW {LOSS.spread(interval(theirs))} (n = {len(ours)}), "
        f"{LOSS.change(welch(ours, theirs))}: also better, by a third as much."
    )


def cut_off() -> tuple[int, list[float], list[float]]:
    """The last step that all seeds of the second search made, and the test losses of Adan and AdamW there."""
    runs = read(CUT_OFF).values()
    step = min(run["curve"]["step"][-1] for run in runs)
    losses: dict[str, list[float]] = {"adan": [], "adamw": []}
    for run in runs:
        losses[run["job"]["optimizer"]].append(run["curve"]["loss"][run["curve"]["step"].index(step)])
    return step, losses["adan"], losses["adamw"]


def of_the_larger_gpt(records: Records) -> str:
    """A warning for the summary, for as long as a better search of `gpt-30m` has no finished seeds."""
    if not GPT_30M_AGAIN.tuned(records) or latest(records, GPT_30M, GPT_30M_AGAIN) is not GPT_30M:
        return ""
    return (
        "\n- Most of the lead on the larger GPT is due to AdamW's rate: with the rates of [a second "
        "search](#a-language-model-on-python-source) Adan is better, too, by a third of that."
    )


def trial(study: Study, optimizer: str, lr: float, records: Records) -> float:
    """The validation result of a trial."""
    (job,) = (job for job in study.asked(study.entry(optimizer), records)[:4] if job.settings["lr"] == lr)
    return float(records[job.key]["final"][records[job.key]["metric"]])


def at_both_lengths(section: Section, study: Study, shorter: Follow, intro: str, records: Records) -> bool:
    """A GPT: the comparison at equal length, Adan with half of it, a panel. False where it has too few runs."""
    results = compared(study, records)
    if not add_study(study, LOSS, section, intro, records, title=results[0].size if results else "", share=0.4):
        return False
    at_half_length(section, shorter, results, LOSS, records)
    return True


def at_half_length(section: Section, shorter: Follow, results: list[Group], unit: Unit, records: Records) -> None:
    """Adan with half the steps, where it has enough runs. results: of all steps, Adan's first."""
    for half in groups(shorter, records):
        if half.n >= MIN_SEEDS:
            half_length(section, half, results, unit)


def words(records: Records) -> Section | None:
    section = Section("An LSTM on Penn Treebank", [], "results-lstm.svg")
    intro = (
        "AWD-LSTM with one layer and {size} in the setting of AdaBelief's published scripts, BPTT length 70, batch "
        f"size 20, gradient clipping at 0.25, **8 epochs** ({8 * PTB_EPOCH:,} steps; the paper: 200). "
        "Tuned at 4 epochs. Evaluation batch size 10."
    )
    if not add_study(LSTM_AGAIN, PERPLEXITY, section, intro, records, title="8 epochs", share=0.5):
        return None
    why = (
        "chose its largest rate for AdamW, Adam and AdaBelief and tried Adan's smaller b1 at one rate only (the second "
        "search started from these choices, with b1 down to 0.8)"
    )
    if compared(LSTM, records):
        section.searches.append(other_search(LSTM, why, PERPLEXITY, records))
    published = (
        "**200 epochs**, schedule and settings as published: Adan's in its paper, the others' in AdaBelief's scripts. "
        "Nothing was tuned here. The rate is divided by ten after 100 and 145 epochs, without warm-up. Not as "
        "published: the recurrent weights are trained, the BPTT length is fixed, SGD does not switch to averaging, and "
        "test perplexity is taken at the end, not at its best epoch."
    )
    title = "200 epochs, untuned"
    if add_study(LSTM_PUBLISHED, PERPLEXITY, section, published, records, title=title, share=0.5):
        results = {group.optimizer: group for group in compared(LSTM_PUBLISHED, records)}
        decoupled = verdict(results["adamw"], results["adam"], 1).difference
        section.body.append(
            f"{recipes([*results.values()])} Adam and AdamW, which differ only in how they apply a decay of "
            f"{results['adam'].settings['weight_decay']:g}, are {PERPLEXITY.change(decoupled)} apart."
        )
    fixed = (
        "**200 epochs with fixed recurrent weights**, all else as before. In AdaBelief's code, whose results the "
        "paper reports, they keep their initial values: after dropout they become a new parameter at every step, and "
        "no gradient reaches the one that the optimizer has."
    )
    title = "200 epochs, untuned, recurrent weights fixed"
    add_study(LSTM_FIXED, PERPLEXITY, section, fixed, records, title=title, share=0.5)
    names = [NAMES[entry.optimizer] for entry in LSTM.entries]
    listed = joined([f"{name} {paper('lstm', name, '1 layer')}" for name in names])
    section.body.append(f"The paper's Table 10 reports, after 200 epochs, {listed}.")
    return section


FIRST_XL = RUNS.with_name("transformer-xl-first.jsonl")


def memories(records: Records) -> Section | None:
    section = Section("Transformer-XL on Penn Treebank", [], "results-transformer-xl.svg")
    intro = (
        "Transformer-XL with {size}, segments and memory of 70 words, batch size 20, 20,000 steps (30 epochs), "
        "gradient clipping at 0.25, in fp32, not compiled. Adam has no weight decay."
    )
    if not add_study(TRANSFORMER_XL, PERPLEXITY, section, intro, records, TRANSFORMER_XL_ADAMW, share=0.5):
        return None
    full = together(TRANSFORMER_XL, TRANSFORMER_XL_ADAMW, records)
    at_half_length(section, TRANSFORMER_XL_HALF, full, PERPLEXITY, records)
    missing = {"AdamW": len(full) < 3, "Adan with a schedule of half the length": not section.halves}
    if any(missing.values()):
        section.body.append(f"Not run: {joined([name for name, absent in missing.items() if absent])}.")
    seeds = [r for r in read(FIRST_XL).values() if not r["job"]["tuning"]]
    lost = [r for r in seeds if r["final"]["perplexity"] > 2 * r["best"]]
    rates = {r["job"]["optimizer"]: r["job"]["settings"]["lr"] for r in seeds}
    section.searches.append(
        f"A first search, with trials of 4,000 steps, was abandoned ([runs](../results/evidence/{FIRST_XL.name})): at "
        f"the rates it chose, {rates['adan']:g} for Adan and {rates['adam']:g} for Adam, {len(lost)} of {len(seeds)} "
        f"runs of 20,000 steps collapsed, {joined(lost_by(lost))}, as did the trials at twice these rates. All "
        "were in bf16 with a compiled loss, whose gradients are wrong with torch 2.11 "
        "([compared with fp32's](../results/evidence/README.md))."
    )
    printed = [paper("transformer-xl", name, "50k steps") for name in ("Adan", "Adam")]
    section.body.append(
        f"The paper's Table 13 reports, for WikiText-103 after 50,000 steps, Adan {printed[0]}, Adam {printed[1]}."
    )
    return section


def lost_by(runs: list[Record]) -> list[str]:
    """How many of each optimizer's."""
    counts = Counter(r["job"]["optimizer"] for r in runs)
    return [f"{count} of {NAMES[name]}'s" for name, count in counts.items()]


def mixtures(records: Records) -> Section | None:
    """What the paper shows on mixtures of experts, on a tiny one and on the GPT that it is made of."""
    section = Section("A tiny GPT", [], "results-tiny.svg")
    for study, name in ((TINY_GPT, "GPT"), (MOE, "Mixture of 8 experts")):
        results = compared(study, records)
        if not results:
            continue
        section.body.append(f"**{name}, {results[0].size}**")
        section.body.append(comparison(results, LOSS))
        title = f"{name}, {results[0].size}"
        section.panels.append(curves(title, "step", LOSS, [curve(group, LOSS) for group in results], share=0.4))
    if not section.panels:
        return None
    spent = minutes(records, TINY_GPT, MOE, COMPONENTS, BETAS)
    intro = (
        "Four layers of width 128 over bytes of the same Python source, 2,000 steps of 32 × 128 bytes, otherwise as "
        f"the GPT above. {spent}."
    )
    if compared(MOE, records):
        section.heading += " and a mixture of experts"
        intro += " In the mixture, a router sends each byte to two experts."
    section.body.insert(0, intro)
    section.body += parts_of_adan(records) + betas(records)
    return section


def parts_of_adan(records: Records) -> list[str]:
    results = compared(COMPONENTS, records)
    if not results:
        return []
    plain = next(g for g in results if g.optimizer == "adan" and not {"no_prox", "restart"} & g.settings.keys())
    rows = []
    for group in results:
        name = NAMES[group.optimizer]
        if group.settings.get("no_prox"):
            name = "Adan, AdamW's decay"
        if every := group.settings.get("restart"):
            name = f"Adan, a restart every {every['every']} steps"
        lead = verdict(group, plain, len(results) - 1) if group is not plain else None
        change = f"{LOSS.change(lead.difference)}: {lead.word}" if lead else ""
        rows.append([name, group.counted, LOSS.spread(group.final()), change])
    text = (
        "**Parts of Adan** (the paper's Tables 20 and 22 add Nesterov's term, the proximal decay and restarts, each of "
        "which helps a little there): the 0.9 M GPT at the settings tuned for Adan and AdamW"
    )
    return [text, table(["", "n", LOSS.name, "minus Adan"], rows)]


def betas(records: Records) -> list[str]:
    results = compared(BETAS, records)
    if not results:
        return []
    rows = []
    for optimizer in ("adan", "adamw"):
        for last in (0.95, 0.99):
            cells = [
                group.final()
                for b1 in (0.9, 0.94, 0.98)
                for group in results
                if group.optimizer == optimizer
                and group.settings["betas"][:: len(group.settings["betas"]) - 1] == [b1, last]
            ]
            name = f"{NAMES[optimizer]}, {'b3' if optimizer == 'adan' else 'b2'} = {last}"
            rows.append([name, *(LOSS.spread(cell) for cell in cells)])
    text = (
        "**Betas**, the grid of the paper's Table 19 on the GPT, n = 3, all else as tuned; Adan's b2 is 0.92. In the "
        "paper 0.94 is the best of the three b1 for both optimizers"
    )
    return [text, table(["", "b1 = 0.9", "b1 = 0.94", "b1 = 0.98"], rows)]
