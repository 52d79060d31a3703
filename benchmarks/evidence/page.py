"""docs/results.md and its figures, written from the records: `python -m evidence page`, part of `make tables`."""

from __future__ import annotations

import textwrap
from functools import partial

from adan_bench.records.stats import MIN_SEEDS
from evidence import experiments, overview
from evidence.compare import Records, compared, lost
from evidence.figures import Picture, digest, draw, drawn
from evidence.jobs import read
from evidence.sections import SECTIONS
from evidence.sections.parts import NAMES, ROOT, RUNS, joined
from evidence.studies import (
    BERT,
    BERT_AGAIN,
    COLA,
    COLA_AGAIN,
    CONVNEXT_AGAIN,
    CORA,
    DETR,
    GPT,
    GPT_30M,
    GPT_30M_AGAIN,
    HOPPER,
    LSTM_AGAIN,
    MAE_FULL,
    MAE_FULL_FINE_TUNED,
    MOE,
    RESNET_AGAIN,
    RESNET_OTHERS,
    SST2,
    SST2_AGAIN,
    TIANSHOU_HOPPER,
    TINY_GPT,
    TRANSFORMER_XL,
    VIT_25,
)

OVERVIEW = "results-all.svg"
PAGE = ROOT / "docs" / "results.md"
FIGURES = ROOT / "docs" / "figures"


#: All whose settings the page tells.
TUNED = (
    *(VIT_25, RESNET_AGAIN, RESNET_OTHERS, CONVNEXT_AGAIN, MAE_FULL, MAE_FULL_FINE_TUNED),
    *(GPT, GPT_30M, GPT_30M_AGAIN, LSTM_AGAIN, TRANSFORMER_XL, TINY_GPT, MOE, BERT, COLA, SST2),
    *(BERT_AGAIN, COLA_AGAIN, SST2_AGAIN),
    *(DETR, CORA, TIANSHOU_HOPPER, HOPPER),
)
#: With fewer trials than seven.
FEWER = {
    "PPO": TIANSHOU_HOPPER,
    "ConvNeXt": CONVNEXT_AGAIN,
    "MAE": MAE_FULL_FINE_TUNED,
    "the larger GPT": GPT_30M,
    "Transformer-XL": TRANSFORMER_XL,
    "BERT's pre-training": BERT,
    "the detector": DETR,
}


def fewer(records: Records) -> str:
    by_count: dict[int, list[str]] = {}
    for name, study in FEWER.items():
        if study.tuned(records):
            by_count.setdefault(study.trials, []).append(name)
    parts = [
        f"{joined(names)} {'has' if len(names) == 1 else 'have'} only the {('four', 'five')[count - 4]} rates"
        for count, names in by_count.items()
    ]
    return "; ".join(parts) + "." if parts else ""


def tuning(records: Records) -> str:
    """The rule, and where what it chose stands at an end of what was tried."""
    ends: dict[str, list[str]] = {}
    lost: set[str] = set()
    for study in TUNED:
        if not study.tuned(records):
            continue
        for entry in study.entries:
            tried = [records[job.key] for job in study.asked(entry, records)]
            lost |= {r["key"] for r in tried if r["status"] == "diverged"}
            rates = [r["job"]["settings"]["lr"] for r in tried]
            chosen = study.best(entry.optimizer, records)
            if chosen and chosen["lr"] in (min(rates), max(rates)):
                ends.setdefault(study.name, []).append(NAMES[entry.optimizer])
    listed = [f"`{name}` ({' and '.join(who)})" for name, who in ends.items()]
    where = f"at an end in {joined(listed)}" if ends else "never the smallest or the largest that was tried"
    return (
        f"The chosen rate is {where}; {len(lost)} trials ended with a loss that was not finite. The fifth rate lies "
        "between two others where the best of the first four is inside, and beyond them where it is at an end."
    )


def diverged(records: Records) -> list[str]:
    """A line on the seeds that diverged, where some did."""
    studies = {study.name: study for row in experiments.EXPERIMENTS for study in row.studies}
    found = [
        f"`{study.name}` {NAMES[optimizer]} {count} of {made}"
        for study in studies.values()
        for optimizer, count, made in lost(study, records)
    ]
    if not found:
        return []
    return [
        f"- **Diverged seeds**: {'; '.join(found)}. Means are of the other seeds, so an optimizer with diverged seeds "
        "is never called the better one; where it would be, the difference is not called significant. With fewer than "
        f"{MIN_SEEDS} other seeds nothing is compared."
    ]


def half_the_length(found: list[str]) -> str:
    better, worse, neither = (found.count(word) for word in overview.SHADES)
    return (
        f"With **half the steps** of the best other it was better in {better} and worse in {worse}; in {neither} the "
        "difference was not significant."
    )


def shorter(records: Records) -> str:
    """The studies on the page whose trials are shorter than their runs."""
    names = [s.name for s in TUNED if s.tune_length and compared(s, records)]
    return joined([f"`{name}`" for name in names] or ["no study"])


def page(records: Records) -> tuple[str, dict[str, Picture]]:
    """The text, and the panels of every figure by file name."""
    sections = [section for build in SECTIONS if (section := build(records)) is not None]
    rows = overview.rows(records)
    halves = [word for section in sections for word in section.halves]
    how = [
        "- **Tuning**, on a seed of its own, by the validation split: learning rates at ½, 1, 2 and 4 times a "
        "center, and a fifth beside the best of them. Then, at the best rate, one trial with another beta (b1 for "
        "Adan, b2 for Adam, AdamW and LAMB; SGD's momentum, AdaBelief's eps) and one with another weight decay: seven "
        f"trials for each optimizer. {fewer(records)} {tuning(records)}",
        "- **Chosen by hand**: the centers, and Adan's first b1, 0.9 or 0.98; for the LSTM (0.8) and the detector "
        "(0.9) after larger ones had been tried. AdamW's and Adam's b1 is 0.9 throughout.",
        "- **Settings tuned elsewhere**: the ViT's at 50 and 100 epochs and other batch sizes are those tuned at 25 "
        "epochs and 256; those of PPO on three robots each are Hopper's; tasks that start from each optimizer's own "
        "pre-training have the settings tuned on Adam's.",
        f"- **Trials shorter than the runs**: {shorter(records)}. Short runs prefer a smaller b1 and other rates, so "
        "these rankings may be due to the length of the trials.",
        "- **Results** are of other seeds, trained on all training data and judged by the test split at the end of "
        "the run. ± is the half width of a 95% t interval over seeds.",
        "- **Differences** are of the means, in brackets the 95% interval by Welch's t test, with Bonferroni's "
        "correction over the comparisons of a study's own table below; beside the best of several others, over all of "
        "them. If the interval excludes zero, Adan is called better or worse, otherwise the difference is not "
        "significant, which does not mean that there is none. Corrected over all rows of the table above as well, Adan "
        f"would be {overview.with_all_rows(rows)}.",
        "- **What the intervals leave out**: the luck of the search, which had one seed and sometimes chose by a hair, "
        "and that of the test split. With three seeds they lean on a normal distribution.",
        *diverged(records),
        "- **The rows above are not independent**: all of the ViT's rest on one search, four share the bytes of Python "
        "source, and PPO's eight rest on two searches of four rates.",
        "- **Equally many steps are not equal cost**: Adan's step takes [longer](performance.md) and its states more "
        "[memory](memory.md).",
        "- **Added later**: seeds beyond the third of the ViT, of the 10.9 M GPT with its 8-bit states and half its "
        "length, of the detector, and of HalfCheetah with stable-baselines3's PPO, when three had been seen; further "
        "searches, when an earlier one's results had been.",
        "- **The test was changed** once, from one paired by seed to Welch's, after both had been seen. By the paired "
        f"one {overview.by_pairs(rows)}.",
        "- **Made by** `benchmarks/evidence`, a runner for hundreds of runs on one GPU, not by `adan-bench`: "
        "[what differs](../CONTRIBUTING.md).",
        "- **Curves** are means over seeds, bands reach from the lowest to the highest seed.",
        f"- One {next(iter(records.values()))['environment']['gpu']}, bf16 autocast (fp32: Transformer-XL, the "
        "detector, the graph network), several runs at a time; PPO on 16 CPU cores in fp32. Some runs that are "
        "compared differ in the attention kernel, or in whether the loss was compiled. The records hold settings, "
        "curves and versions of every run: [what to know about them](../results/evidence/README.md).",
    ]
    parts = [
        "# Does it train better?",
        "<!-- written by `make tables` from results/evidence/runs.jsonl -->",
        "The paper claims that Adan trains better than other optimizers in the same number of steps, matches them in "
        "half as many, and takes PPO to much higher rewards. Here are small models on real data, three seeds or more, "
        "every optimizer tuned by the same number of trials, though not anew for each length, batch size and robot; "
        "a row says so if nothing was tuned. "
        f"{overview.counts(rows)} {half_the_length(halves)} **Not tested or unfinished**: "
        f"{'; '.join(experiments.untested(records))}.",
        "\n".join(f"- {line}" for line in [*overview.by_verdict(rows), overview.early_on(rows)]),
        f"![Adan's lead over the best other optimizer, study by study](figures/{OVERVIEW})",
        overview.summary(rows),
        "**What could not be tested here** is in the [last table](#the-papers-experiments-one-by-one). At the paper's "
        "sizes all of it runs with [`adan-bench reproduce`](reproduce.md).",
        "## How",
        "\n".join(how),
    ]
    figures: dict[str, Picture] = {OVERVIEW: [*overview.forests(rows)]}
    for section in sections:
        parts.append(f"## {section.heading}")
        if section.figure:
            figures[section.figure] = section.panels
            parts.append(f"![{section.heading}](figures/{section.figure})")
        parts += section.body
    parts += [
        "## The paper's experiments, one by one",
        experiments.listed(records),
        "A study lacks runs for want of GPU time. Trials of tuning are not counted, and a run that two studies share "
        "counts for both. Times are those of runs without trials at the rates measured here, several at a time.",
    ]
    return "\n\n".join(wrapped(part) for part in parts if part) + "\n", figures


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
