"""What a user of Adan chooses: the format of its states, the learning rate, b1."""

from __future__ import annotations

import math
from pathlib import Path

from adan_bench.records.stats import MIN_SEEDS, WIDTH_TOLERANCE
from adan_bench.reports.palette import COLORS
from evidence.compare import Records, groups, verdict
from evidence.figures import Line, Panel
from evidence.jobs import Job, read, score
from evidence.sections.parts import ACCURACY, LOSS, NAMES, PERPLEXITY, RUNS, Section, color, joined, table
from evidence.studies import B1_LENGTH, FORMATS, FOUR_BIT, SENSITIVITY

#: Formats, and ways of rounding, that were given up: their runs, what was different, and why.
GIVEN_UP = {
    RUNS.with_name("eight-bit-first.jsonl"): (
        "8-bit states were first rounded with random bits that are independent from step to step; now they advance by "
        "a constant, which makes less noise."
    ),
    RUNS.with_name("four-bit-first.jsonl"): (
        "A 4-bit format with 8 bits for m and 4 for √n, where it has 6 each now, was dropped because it hurt the LSTM."
    ),
    RUNS.with_name("four-bit-second.jsonl"): "So was one with 4 bits for m and 8 for √n.",
    RUNS.with_name("four-bit-third.jsonl"): (
        "A third had 6 bits each, but rounded the previous gradient and the average from which v is recovered with "
        "random bits of their own, so that single updates at the beginning of a run were "
        "[too large](memory.md#8-bit-and-4-bit-states)."
    ),
}
#: The workloads of which learning rates are studied.
TITLES = {"gpt": "GPT", "vit-25": "ViT", "lstm-8-again": "LSTM", "resnet34-30": "ResNet-34"}


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
        row = [f"{name}, {steps:,} steps: {unit.name}", f"{unit.spread(full.final())} (n = {full.counted})"]
        for state_format in ("8bit", "4bit"):
            if group := by_format.get(state_format):
                lead = verdict(group, full, len(by_format))
                row.append(f"{unit.change(lead.difference)}: {lead.word} (n = {group.counted})")
            else:
                row.append("not run")
        rows.append(row)
    if not rows:
        return None
    section.body.append(
        "Adan with `state_format` `8bit` and `4bit`, settings as tuned with fp32 states (the LSTM's by its first "
        "search); the last two columns are differences from fp32."
    )
    section.body.append(table(["", "fp32", "8 bit minus fp32", "4 bit minus fp32"], rows))
    section.searches += [text for path in GIVEN_UP if (text := given_up(path, records))]
    return section


def given_up(path: Path, records: Records) -> str:
    """What an earlier format did, whose runs lie in a file of their own."""
    parts, earlier = [], read(path)
    bits = "8bit" if any(r["job"]["settings"].get("state_format") == "8bit" for r in earlier.values()) else "4bit"
    others = {key: r for key, r in records.items() if r["job"]["settings"].get("state_format") != bits}
    for study, unit in zip(FORMATS if bits == "8bit" else FOUR_BIT, (PERPLEXITY, LOSS, ACCURACY), strict=True):
        pair = {"state_format" in g.settings: g for g in groups(study, others | earlier)}
        if len(pair) == 2 and min(group.n for group in pair.values()) >= MIN_SEEDS:
            lead = verdict(pair[True], pair[False], 1)
            name = study.of.problem.upper().replace("VIT", "ViT")
            parts.append(
                f"{name} {unit.change(lead.difference)}{unit.of_difference}: {lead.word} (n = {pair[True].counted})"
            )
    differences = f"Difference from fp32: {'; '.join(parts)} ([runs](../results/evidence/{path.name}))."
    return f"{GIVEN_UP[path]} {differences}" if parts else ""


def sensitivity(records: Records) -> Section | None:
    section = Section("How much the learning rate matters", [], "results-lr.svg")
    rows: list[list[str]] = []
    notes: list[str] = []
    lost: list[str] = []
    shown = ((LOSS, 0.3), (ACCURACY, 12.0), (PERPLEXITY, 60.0), (ACCURACY, 12.0))
    for study, (unit, room) in zip(SENSITIVITY, shown, strict=True):
        jobs = list(study.reported(records))
        if not jobs or any(job.key not in records for job in jobs):
            continue
        name = f"{TITLES[study.of.name]}, {study.of.tune_length or study.of.length:,} {study.of.unit}"
        lines, bests, scores = [], [], {}
        for optimizer in ("adan", "adamw"):
            mine = sorted((job for job in jobs if job.optimizer == optimizer), key=lambda job: job.settings["lr"])
            runs = [(job.settings["lr"], records[job.key]) for job in mine]
            finite = [(lr, r["final"][r["metric"]]) for lr, r in runs if r["status"] == "finished"]
            best_lr, best = max(finite, key=lambda pair: score(dict(runs)[pair[0]]))
            near = [lr for lr, value in finite if abs(value - best) <= WIDTH_TOLERANCE * abs(best)]
            at_least = "≥ " if {min(near), max(near)} & {runs[0][0], runs[-1][0]} else ""
            lost += [f"{NAMES[optimizer]} at {lr:g} ({name})" for lr, r in runs if r["status"] != "finished"]
            rows.append(
                [
                    name,
                    NAMES[optimizer],
                    f"{best_lr:g}",
                    unit(best),
                    f"{min(near):g} – {max(near):g} ({at_least}×{max(near) / min(near):.1f})",
                ]
            )
            bests.append(unit.factor * best)
            scores[optimizer] = [(lr, score(r)) for lr, r in runs]
            xs, ys = [lr for lr, _ in finite], [round(unit.factor * value, 4) for _, value in finite]
            lines.append(Line(color(optimizer), NAMES[optimizer], xs, ys, points=True))
        tried = [score(records[job.key]) for job in study.of.asked(study.of.entry("adamw"), records)]
        goal = max([value for _, value in scores["adamw"]] + tried)
        wins = [f"{lr:g}" for lr, value in scores["adan"] if value > goal]
        chosen = [study.of.best(optimizer, records) for optimizer in ("adan", "adamw")]
        ratio = chosen[0]["lr"] / chosen[1]["lr"] if chosen[0] and chosen[1] else math.nan
        notes.append(
            f"{name}: Adan beats AdamW's best, trials included, at {f'lr {joined(wins)}' if wins else 'no rate'}; its "
            f"tuned rate is {ratio:.1f} times AdamW's."
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
        "Nine rates over two decades, all else as tuned (the ResNet's by its first search); **one seed, the tuning "
        "seed**, on the validation split. ≥: the range reaches an end of what was tried. "
        "Points far worse than the best lie outside the figure. Ended with a non-finite loss: "
        f"{joined(lost) if lost else 'none'}."
    )
    section.body.append(table(["", "optimizer", "best rate", "validation result", "rates within 2% of it"], rows))
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
        "Validation loss of the GPT above at the best of three rates for each b1, marked if that is the smallest or "
        "the largest; **one seed, the tuning seed**."
    )
    section.body.append(table(["", "b1 = 0.9", "b1 = 0.95", "b1 = 0.98"], rows))
    return section
