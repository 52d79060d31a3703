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
from evidence.sections.language import of_the_larger_gpt
from evidence.sections.parts import NAMES, ROOT, RUNS, joined
from evidence.studies import (
    BERT_AGAIN,
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
    SST2_AGAIN,
    TIANSHOU_HOPPER,
    TINY_GPT,
    TRANSFORMER_XL,
    TRANSFORMER_XL_ADAMW,
    VIT_25,
)

OVERVIEW = "results-all.svg"
PAGE = ROOT / "docs" / "results.md"
FIGURES = ROOT / "docs" / "figures"


#: All whose settings the page tells.
TUNED = (
    *(VIT_25, RESNET_AGAIN, RESNET_OTHERS, CONVNEXT_AGAIN, MAE_FULL, MAE_FULL_FINE_TUNED),
    *(GPT, GPT_30M, GPT_30M_AGAIN, LSTM_AGAIN, TRANSFORMER_XL, TRANSFORMER_XL_ADAMW, TINY_GPT, MOE),
    *(BERT_AGAIN, COLA_AGAIN, SST2_AGAIN, DETR, CORA, TIANSHOU_HOPPER, HOPPER),
)
#: With fewer trials than seven.
FEWER = {
    "PPO": TIANSHOU_HOPPER,
    "ConvNeXt": CONVNEXT_AGAIN,
    "MAE": MAE_FULL_FINE_TUNED,
    "the larger GPT": GPT_30M,
    "Transformer-XL": TRANSFORMER_XL,
    "BERT's pre-training": BERT_AGAIN,
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
    extreme = "the smallest or largest tried"
    where = f"{extreme} in {joined(listed)}" if ends else f"never {extreme}"
    return (
        f"The chosen rate is {where}; {len(lost)} trials ended with a non-finite loss. The fifth rate lies between two "
        "others if the best of the first four does, and otherwise beyond them."
    )


def diverged(records: Records) -> list[str]:
    """A line on the seeds that diverged, where some did."""
    studies = {study.name: study for row in experiments.EXPERIMENTS for study in row.studies}
    cases = [
        f"`{study.name}` {NAMES[optimizer]} {count} of {total}"
        for study in studies.values()
        for optimizer, count, total in lost(study, records)
    ]
    if not cases:
        return []
    return [
        f"- **Diverged seeds**: {'; '.join(cases)}. Means are of the other seeds, so an optimizer with diverged seeds "
        "is never called the better one; where it would be, the difference is not called significant. With fewer than "
        f"{MIN_SEEDS} other seeds nothing is compared."
    ]


def half_the_length(words: list[str]) -> str:
    better, worse, _ = overview.tally(words)
    return (
        f"With **half the steps** of the best baseline it was better in {better} and worse in {worse} of {len(words)} "
        "tests."
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
        "- **Tuning** uses a separate seed and the validation split: learning rates at ½, 1, 2 and 4 times a "
        "center, and a fifth next to the best of them. Then, at the best rate, one trial with another beta (b1 for "
        "Adan, b2 for Adam, AdamW and LAMB; SGD's momentum or its Nesterov form, AdaBelief's eps) and one with another "
        f"weight decay: seven trials per optimizer. {fewer(records)} {tuning(records)}",
        "- **Chosen by hand**: the centers, and the b1 that Adan starts with, 0.9 or 0.98; for the LSTM (0.8) and the "
        "detector (0.9) after larger ones had been tried. AdamW's and Adam's b1 is 0.9 throughout. Where a search was "
        "repeated with other settings for Adan alone, it had more trials over all: 17 against AdamW's 12 for MAE's "
        "pre-training, 10 against 5 for its fine-tuning.",
        "- **Settings tuned elsewhere**: the ViT at 50 and 100 epochs and at other batch sizes uses those tuned at 25 "
        "epochs and batch size 256; PPO uses Hopper's in the other three environments; fine-tuning from an optimizer's "
        "own pre-training uses those tuned on Adam's.",
        f"- **Trials shorter than the runs**: {shorter(records)}. Short runs prefer a smaller b1 and other rates, so "
        "these rankings may be due to the length of the trials.",
        "- **Results** come from other seeds, trained on all training data and evaluated on the test split at the end "
        "of the run. ± is the half-width of a 95% t interval over seeds.",
        "- **Differences** are between means; brackets give the 95% interval of Welch's t test, Bonferroni-corrected "
        "for the comparisons in a study's own table; where only the best of several baselines is shown, for all of "
        "them. If the interval excludes zero, Adan is called better or worse, otherwise the difference is not "
        "significant, which does not mean that there is none.",
        "- **What the intervals leave out**: the randomness of the search, which had one seed and was sometimes a "
        "close call, and that of the test split; where all fine-tune the same BERT, also that of pre-training. With "
        "three seeds they rely on normality.",
        *diverged(records),
        "- **The rows of the first table are not independent**: all those of the ViT rest on one search, four use the "
        "same Python source, and the eight of PPO rest on two searches of four rates.",
        "- **Equal steps are not equal cost**: Adan's step takes [longer](performance.md) and its states take more "
        "[memory](memory.md).",
        "- **Added later**, when the results of three seeds were known: more seeds of the ViT, the 10.9 M GPT (also "
        "with 8-bit states and at half the length), the detector, and HalfCheetah with stable-baselines3's PPO.",
        "- **The test was changed** once, from one paired by seed to Welch's, when the results of both were known.",
        "- **The runner** is `benchmarks/evidence`, made for hundreds of runs on one GPU, not `adan-bench`: "
        "[what differs](../CONTRIBUTING.md).",
        "- **Curves** are means over seeds, bands reach from the lowest to the highest seed. **Training loss** is the "
        "mean since the previous evaluation, label smoothing and dropout included. **GPU-minutes** include the trials; "
        "a run's time is divided by the number of runs that shared the GPU, and a run of two studies counts for both.",
        f"- One {next(iter(records.values()))['environment']['gpu']}, bf16 autocast (fp32: Transformer-XL, the "
        "detector, the graph network), several runs at a time; PPO on 16 CPU cores in fp32. Some runs that are "
        "compared differ in the attention kernel, or in whether the loss was compiled. The records hold settings, "
        "curves and versions of every run: [what to know about them](../results/evidence/README.md).",
    ]
    parts = [
        "# Does it train better?",
        "<!-- written by `make tables` from results/evidence/runs.jsonl -->",
        f"{overview.counts(rows)} {half_the_length(halves)} {overview.early_on(rows)}",
        overview.by_tuning(rows),
        "The paper claims that Adan trains better than other optimizers in the same number of steps, matches them in "
        "half as many, and takes PPO to much higher rewards. These tests are of small models on real data, with three "
        "seeds or more and, within a search, the same number of tuning trials for every optimizer. "
        f"**Not tested or unfinished**: {'; '.join(experiments.untested(records))} ([the paper's experiments, one by "
        "one](#the-papers-experiments-one-by-one)). [`adan-bench reproduce`](reproduce.md) has "
        "commands for larger models and data.",
        f"![Adan's lead over the best baseline, study by study](figures/{OVERVIEW})",
        overview.summary(rows),
        f"{overview.LEGEND} [How all this was measured](#how-it-was-measured) is below.",
        "**How robust is this?**\n"
        f"- Corrected for the comparisons of all rows: {overview.with_all_rows(rows)}.\n"
        "- Some settings were searched again after a first search had given results, mostly because it had put Adan at "
        "a disadvantage ([which](#repeated-and-abandoned-searches)). With the first searches: "
        f"{overview.with_first_searches(rows, records)}. Two that were abandoned are not counted there: at the rates "
        "of Transformer-XL's first, most runs collapsed, and in the detector's, Adan did far worse than AdamW.\n"
        f"- With a test paired by seed instead of Welch's: {overview.by_pairs(rows)}.\n"
        f"- With the first {MIN_SEEDS} seeds alone: {overview.with_few_seeds(rows)}." + of_the_larger_gpt(records),
        "Unless a section says otherwise, the schedule is a cosine with 5% warm-up. CIFAR-10 is a JPEG-compressed "
        "copy, which probably lowers every accuracy. The ResNet's may also be lower because of bf16: after 60 steps, "
        "its gradient was [52% away](../results/evidence/README.md) from fp32's.",
    ]
    figures: dict[str, Picture] = {OVERVIEW: [*overview.forests(rows)]}
    for section in sections:
        parts.append(f"## {section.heading}")
        if section.figure:
            figures[section.figure] = section.panels
            parts.append(f"![{section.heading}](figures/{section.figure})")
        parts += section.body
    searches = [f"- **{section.heading}**: {text}" for section in sections for text in section.searches]
    parts += [
        "## Repeated and abandoned searches",
        "The results of these searches were known when those above began.",
        "\n".join(searches),
        "## How it was measured",
        "\n".join(how),
        "## The paper's experiments, one by one",
        experiments.listed(records),
        "Tuning trials are not counted, and a run shared by two studies counts for both. “6 of 10” means "
        "that four more were planned but not run.",
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
    stale = [] if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text else [PAGE.name]
    if stale and not check:
        PAGE.write_text(text, encoding="utf-8")
    for name, panels in figures.items():
        if drawn(FIGURES / name) != digest(panels):
            stale.append(name)
            if not check:
                draw(panels, FIGURES / name)
    return stale
