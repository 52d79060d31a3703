"""Sentences that say what the numbers say, and no more."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from adan_bench.config import CONFIRMATIONS, TRAINING, Origin, RunConfig, in_words
from adan_bench.records.stats import (
    MIN_SEEDS,
    Interval,
    OptimizerSummary,
    Verdict,
    WorkloadSummary,
    by_pairs,
    usual_range,
)
from adan_bench.reports.html import plain


def number(value: float | None, digits: int = 4) -> str:
    """A value to `digits` significant digits, without losing the zeros that a table lines up by.

    >>> number(0.97), number(1234.5), number(0.00012), number(None)
    ('0.9700', '1234', '0.00012', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    if value != 0 and abs(value) < 1e-3:
        return f"{value:.{digits - 1}g}" if digits > 1 else f"{value:g}"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:.{max(0, digits - whole)}f}"


def count(n: int, noun: str) -> str:
    """A number and its noun.

    >>> count(1, "run"), count(2, "run")
    ('1 run', '2 runs')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def spread(final: Interval | None, values: Sequence[float]) -> str:
    """Mean ± interval, or [low, high] where the metric's range cuts it off, with n.

    With fewer than three seeds it is the range that was seen, which is no interval. A half-width that would read 0 has
    two digits.

    >>> spread(Interval(3, 12.34, 12.32, 12.36), []), spread(Interval(3, 12.34, 12.338, 12.342), [])
    ('12.34 ± 0.02 (n=3)', '12.3400 ± 0.0020 (n=3)')
    """
    if final is None:
        return "–"
    if final.half is not None:
        mean = number(final.mean)
        if 0 < abs(final.mean) < 1e-3:  # where `number` gives significant digits, it does for the half-width too
            return f"{mean} ± {number(final.half, 3)} (n={final.n})"
        decimals = len(mean.partition(".")[2])
        if 0.01 <= final.half * 10**decimals <= 0.5:  # at most three decimals more: beyond, ± 0 is easier to read
            decimals = 1 - math.floor(math.log10(final.half))
        return f"{final.mean:.{decimals}f} ± {final.half:.{decimals}f} (n={final.n})"
    if final.low is not None:  # the metric's range cuts it off on one side
        return f"{number(final.mean)} [{number(final.low)}, {number(final.high)}] (n={final.n})"
    if final.n > 1:
        return f"{number(final.mean)} ({number(min(values))} to {number(max(values))}, n={final.n})"
    return f"{number(final.mean)} (n=1)"


def length(summary: WorkloadSummary) -> str:
    """The length of the runs, also where they stopped before the end of the schedule."""
    c = summary.config
    return f"{f'{c.stop_after} of ' if c.stop_after else ''}{c.steps} steps of {c.batch_size}"


def budget(summary: WorkloadSummary) -> str:
    return f"{length(summary)}, {summary.schedule} schedule, {summary.config.device}"


def costs(o: OptimizerSummary) -> list[str]:
    """Steps to the target with the share of the seeds that got there, seconds, ms per step, state bytes per parameter.

    The engine stands beside the milliseconds: a fused step and one by foreach do not compare the methods.
    """
    steps = "–" if o.steps_to_target is None else f"{o.steps_to_target:.0f}"
    speed = number(None if o.seconds_per_step is None else 1000 * o.seconds_per_step, 3)
    engine = f" ({', '.join(o.engines)})" if o.engines else ""
    seconds, size = number(o.seconds_to_target, 3), number(o.state_bytes_per_parameter, 3)
    return [f"{steps} ({o.reached}/{o.n})", seconds, speed + engine, size]


def caution(summaries: Sequence[WorkloadSummary]) -> str:
    """The words with which a report on an unfair comparison begins; empty where it is fair."""
    return " ".join(dict.fromkeys(text for summary in summaries if (text := unfair(summary))))


def unfair(summary: WorkloadSummary) -> str:
    """The reason why the optimizers of a workload did not have the same chance; empty where they had."""
    origins = {o.name: o.origin for o in summary.optimizers}
    flaws, of_study = {origin.flaw for origin in origins.values()}, bool(summary.config.study)
    if "untuned" in flaws:
        untuned = [name for name, origin in origins.items() if origin.flaw == "untuned"]
        who = "" if len(untuned) == len(origins) else f" ({_join(untuned)})"
        remedy = "no trial has a result, so search other rates" if of_study else "add --tune 8"
        return f"Untuned{who}: not a fair comparison; {remedy}."
    if "elsewhere" in flaws:
        other = "; ".join(sorted({_other_training(origin) for origin in origins.values()} - {""}))
        remedy = "give the study's [search] the options of these runs" if of_study else "add --tune 8"
        return f"Tuned for another training ({other}): not a fair comparison; {remedy}."
    if "changed" in flaws:
        changed = "; ".join(sorted({assignments(origin.changed) for origin in origins.values()} - {""}))
        return f"Changed after tuning ({changed}): not a fair comparison; leave these as tuned, or tune with them."
    counts = sorted({o.trials for o in summary.optimizers})
    if len(counts) > 1:
        return f"Tuned by different numbers of trials ({', '.join(map(str, counts))}): not a fair comparison."
    texts = sorted({said(origin) for origin in origins.values()})
    if len(texts) > 1:
        return f"Tuned differently ({'; '.join(texts)}): not a fair comparison."
    return ""


def said(origin: Origin) -> str:
    """The origin of settings in words.

    >>> said(Origin(kind="saved", trials=8, source="best.json", tuned_for={"steps": 30}, changed={"lr": 0.5}))
    'tuned in 8 trials (best.json) for another training: 30 steps, then --set lr=0.5'
    >>> said(Origin(kind="published", source="paper", guesses=("lr",), batch_sizes=(8, 32), fixed=("betas",)))
    'guess: lr; paper, lr × √(8/32), betas as the table says'
    >>> said(Origin(kind="published", source="paper", trials=5, at_edge=True))
    'paper, lr chosen by 5 trials, at the edge of the rates tried'
    >>> said(Origin(kind="here", trials=12, seed=2000, confirmed=2, searched=("warmup",)))
    'tuned here (warm-up included) in 12 trials with seed 2000, the best 2 again with seeds 2001 and 2002'
    """
    trials = count(origin.trials, "trial")
    where = f"for {origin.source}" if origin.source else "here"
    where += f" ({_join([in_words(name, True) for name in origin.searched])} included)" if origin.searched else ""
    texts = {
        "untuned": "untuned defaults",
        "bundled": f"defaults tuned in {trials}",
        "saved": f"tuned in {trials} ({origin.source})",
        "here": f"tuned {where} in {trials} with seed {origin.seed}",
        "study": f"as the study {origin.source} says",
        "failed": f"as the study {origin.source} says, none of its trials having a result",
        "trial": "trial",
        "short": "short run",
    }
    text = f"guess: {', '.join(origin.guesses)}; " if origin.guesses else ""
    text += texts.get(origin.kind, origin.source)
    if origin.kind == "published" and origin.trials:
        text += f", lr chosen by {trials}{', at the edge of the rates tried' if origin.at_edge else ''}"
    if origin.confirmed:
        seeds = [str(origin.seed + i) for i in range(1, CONFIRMATIONS + 1)]
        text += f", the best {origin.confirmed} again with seeds {_join(seeds)}"
    if origin.tuned_for:
        text += f" for another training: {_other_training(origin)}"
    if origin.changed:
        then = "; changed to" if origin.kind == "published" else ", then --set"
        text += f"{then} {assignments(origin.changed)}"
    if origin.batch_sizes:
        text += ", lr × √({}/{})".format(*origin.batch_sizes)
    if origin.lr_factor != 1:
        text += f", lr × {origin.lr_factor:g}"
    return f"{text}, {', '.join(origin.fixed)} as the table says" if origin.fixed else text


def described(config: RunConfig) -> dict[str, str]:
    """A run in words, by name: its settings, the fields of its training, and the options of its workload.

    A field that is left to the workload, or off, is not said; schedule and warm-up always are.
    """
    words = {key: f"{key} {plain(value)}" for key, value in config.settings.items()}
    for f in fields(config):
        value = getattr(config, f.name)
        if f.name in TRAINING and (value != f.default or f.name in ("schedule", "warmup")):
            words[f.name] = in_words(f.name, value)
    return words | {name: f"{name.replace('_', ' ')} {plain(v)}" for name, v in (config.training or {}).items()}


def _other_training(origin: Origin) -> str:
    return ", ".join(in_words(name, value) for name, value in origin.tuned_for.items())


def assignments(settings: Mapping[str, Any]) -> str:
    """Settings as --set takes them."""
    values = {key: ",".join(map(str, v)) if isinstance(v, (list, tuple)) else v for key, v in settings.items()}
    return " ".join(f"{key}={value}" for key, value in values.items())


def conclude(summary: WorkloadSummary) -> str:
    """One plain paragraph for a workload. Where the optimizers had no equal chance, it names no winner.

    Nor is an optimizer with a diverged seed called better: its mean is that of the seeds that went well.
    """
    done = [o for o in summary.optimizers if o.final is not None]
    metric = summary.facts["metric"]
    if not done:
        return "No run finished, so there is nothing to compare." + _lost(summary)
    best, others = done[0], done[1:]
    if not others:
        alone = "was run" if len(summary.optimizers) == 1 else "finished"
        return f"Only {best.name} {alone}: mean {metric} {_mean(best)}, n={_n(best)}." + _lost(summary)
    superlative, after = "highest" if summary.higher_is_better else "lowest", _target(summary, done) + _edges(done)
    whole = [o for o in done if o.whole]
    if not whole:
        return f"Every optimizer with a result has a diverged seed, so none is called better.{after}{_lost(summary)}"
    among = "" if len(whole) == len(done) else ", among those without a diverged seed,"
    ties = [o for o in whole if _mean(o) == _mean(best) and _found(summary, best, o) != "better"]
    names = [o.name for o in ties]
    have = f"{best.name}{among} has" if len(ties) == 1 else f"{_join(names)}{among} share"
    seeds = _join([str(n) for n in sorted({_n(o) for o in ties})])
    text = f"{have} the {superlative} mean {metric}, {_mean(best)} (n={seeds})."
    others = [o for o in others if o.name not in names]
    fewest = min(_n(o) for o in whole)
    if unfair(summary):  # the reason stands before all tables
        text = f"Not fair, see above: with these settings {text}"
    elif same := [o.name for o in whole if o.constant_over_seeds]:
        text += (
            f" Every seed of {_join(same)} gave the same numbers, so that they count as one: does the workload use "
            "context.seed?"
        )
    elif fewest < MIN_SEEDS:
        if others and others[0].whole:
            text += f" {others[0].name} follows with {_mean(others[0])} (n={_n(others[0])})."
        few = [o.name for o in whole if _n(o) == fewest]
        of = "" if len(few) == len(whole) else f" of {_join(few)}"
        text += f" With {count(fewest, 'seed')}{of} this is no evidence of a difference."
    else:
        text += _comparisons(summary, best, others, shared=len(ties) > 1)
    return text + after + _lost(summary)


def winner(summary: WorkloadSummary) -> str | None:
    """The optimizer that is better than every other by more than the seeds explain, in a fair comparison."""
    done = [o for o in summary.optimizers if o.final is not None]
    if len(done) < 2 or unfair(summary) or any(o.constant_over_seeds for o in done):
        return None
    best, *others = done
    return best.name if all(_found(summary, best, other) == "better" for other in others) else None


def comparisons(summary: WorkloadSummary) -> int:
    """The number of tests to correct for: the results decide who is compared with the others, so all pairs."""
    return math.comb(sum(o.final is not None for o in summary.optimizers), 2)


def behind(summary: WorkloadSummary) -> dict[str, Interval]:
    """Each optimizer's mean minus that of the first, seed by seed, with the interval of that difference, by name."""
    done = {o.name: o.by_seed() for o in summary.optimizers if o.final is not None}
    if not done:
        return {}
    (_, first), *others = done.items()
    low, high = usual_range(summary.facts["metric"], [value for values in done.values() for value in values.values()])
    gaps = {}
    for name, own in others:
        gap = by_pairs(own, first, comparisons(summary))
        if gap.n:
            gaps[name] = gap.within(low - high, high - low)
    return gaps


def _found(summary: WorkloadSummary, a: OptimizerSummary, b: OptimizerSummary) -> str:
    """What the seeds that both have say of the first."""
    gap = by_pairs(a.by_seed(), b.by_seed(), comparisons(summary))
    return Verdict(gap, summary.higher_is_better, (a.diverged, b.diverged)).word


def _comparisons(
    summary: WorkloadSummary, best: OptimizerSummary, others: Sequence[OptimizerSummary], shared: bool
) -> str:
    """Name the optimizers from which the best differs by more than the seeds explain."""
    names: dict[str, list[str]] = {}
    few = ""
    for other in others:
        lead = _found(summary, best, other)
        if lead == "too few seeds" and other.whole:
            n = len(best.by_seed().keys() & other.by_seed().keys())
            seeds = f"Only {count(n, 'seed')}" if n else "No seed"
            few += f" {seeds} finished with both {best.name} and {other.name}, which is no evidence of a difference."
        elif lead == "better" or other.whole:  # nothing else is said of one with diverged seeds
            names.setdefault(lead, []).append(other.name)
    tests, text, who = comparisons(summary), "", best.name if shared else "It"
    if better := names.get("better"):
        text += f" {who} is better than {_join(better)} by more than the seeds explain"
        text += f" (95%, paired, corrected for all {tests} pairs)." if tests > 1 else " (95%, paired)."
    if unclear := names.get("not significant"):
        text += f" The difference from {_join(unclear)} is not significant."
    if constant := names.get("constant"):
        text += f" The difference from {_join(constant)} is the same for every seed, which says nothing about chance."
    if worse := names.get("worse"):  # runs failed, and the means are of different seeds
        text += f" On the seeds that both finished, {_join(worse)} did better."
    return text + few


def unfused(summaries: Sequence[WorkloadSummary]) -> str:
    """Name the variants of Adan that ran without its fused engine, with the remedy; empty where none did."""
    names: dict[str, dict[str, None]] = {}
    for summary in summaries:
        missing = "Triton" if summary.config.device.startswith("cuda") else "a C compiler, then adan again"
        for o in summary.optimizers:
            if o.records[0].config.optimizer == "adan" and not {"fused", "eager"}.issuperset(o.engines):
                asked = [name for name in ("foreach", "fused", "differentiable") if name in o.settings]
                remedy = f"leave {_join(asked)} unset" if asked else f"install {missing}"
                names.setdefault(remedy, {})[o.name] = None
    slow = "without Adan's fused engine, so ms/step and seconds are not Adan's best"
    return " ".join(f"{_join([*who])} ran {slow}; {remedy}." for remedy, who in names.items())


def repeated(summaries: Sequence[WorkloadSummary]) -> str:
    """Name the runs of the same settings and seed, of which only one counts; empty where there are none."""
    texts = [_join([str(path) for path in paths]) for s in summaries for o in s.optimizers for paths in o.repeats]
    text = f"Runs with the same settings and seed count once, by the one named last: {'; '.join(texts)}."
    return text if texts else ""


def tuning(summaries: Sequence[WorkloadSummary]) -> str:
    """Say how the settings came about, and whether every optimizer had the same chance."""
    schedules = ", ".join(sorted({s.schedule for s in summaries}))
    same = "its own schedule" if "(" in schedules else "the same schedule"
    own = any("warmup" in o.origin.searched for s in summaries for o in s.optimizers)
    text = f"In each table every optimizer ran under {same} ({schedules}, {'tuned' if own else 'same'} warm-up)"
    uneven = [s.name for s in summaries if len({tuple(r.config.seed for r in o.records) for o in s.optimizers}) > 1]
    text += f" and budget, but not with the same seeds in {_join(uneven)}." if uneven else ", budget and seeds."
    counts = {o.trials for s in summaries for o in s.optimizers}
    if len(counts) == 1 and counts != {0} and not caution(summaries):
        trials = count(counts.pop(), "tuning trial")
        again = {o.origin.confirmed for s in summaries for o in s.optimizers}
        best = f", of which the best {again.pop()} were run on more seeds" if again != {0} and len(again) == 1 else ""
        return f"{text} Every optimizer had {trials}{best}, with a seed that no reported run uses."
    origins = {s.name: "; ".join(sorted({said(o.origin) for o in s.optimizers})) for s in summaries}
    if len(set(origins.values())) == 1:
        return f"{text} Settings: {next(iter(origins.values()))}."
    return f"{text} Settings: {'. '.join(f'{name}: {origin}' for name, origin in origins.items())}."


def overall(summaries: Sequence[WorkloadSummary]) -> str:
    """One sentence on Adan against the best other of each table; empty where there is nothing to say."""
    phrases = {
        "better": "better by more than the seeds explain on",
        "worse": "worse on",
        "not significant": "not significantly different on",
        "constant": "with the same difference for every seed, which says nothing about chance, on",
        "unfair": "not judged, since the optimizers were not tuned equally, on",
    }
    tables: dict[str, list[str]] = {}
    for summary in summaries:
        ours = next((o for o in summary.optimizers if o.name == "adan" and o.final is not None), None)
        best = next((o for o in summary.optimizers if o.name != "adan" and o.final is not None), None)
        if ours is not None and best is not None:
            word = "unfair" if unfair(summary) else _found(summary, ours, best)
            tables.setdefault(phrases.get(word, "with too few seeds to tell on"), []).append(
                f"{summary.name} ({best.name})"
            )
    said_of = "; ".join(f"{phrase} {_join(names)}" for phrase, names in tables.items())
    return f"adan against the best other optimizer of each table: {said_of}." if tables else ""


def _n(o: OptimizerSummary) -> int:
    return 0 if o.final is None else o.final.n


def _mean(o: OptimizerSummary) -> str:
    return number(None if o.final is None else o.final.mean)


def _target(summary: WorkloadSummary, done: Sequence[OptimizerSummary]) -> str:
    if summary.facts["target"] is None:
        return ""
    target = f"{summary.facts['metric']} {number(summary.facts['target'], 3)}"
    there = sorted((o.steps_to_target, o.name) for o in done if o.steps_to_target is not None)
    if not there:
        return f" The target, {target}, was not reached by most seeds of any optimizer."
    if unfair(summary) or min(map(_n, done)) < MIN_SEEDS:
        return ""  # the table has the steps; to rank them would be to name a winner
    least = [name for steps, name in there if steps == there[0][0]]
    text = f" The target, {target}, was reached in the fewest steps ({there[0][0]:.0f}, median) by {_join(least)}."
    timed = [(o.seconds_to_target, o.steps_to_target, o.name) for o in done if o.seconds_to_target is not None]
    by_clock = sorted(timed)
    if by_clock != sorted(timed, key=lambda entry: (entry[1], entry)):
        text += f" By the clock the order differs: {_join([f'{name} {number(s, 3)} s' for s, _, name in by_clock])}."
    return text


def _edges(done: Sequence[OptimizerSummary]) -> str:
    """Name those whose best learning rate is the lowest or highest tried, so that a better one may lie beyond."""
    edges = [f"{o.name} ({o.sensitivity.best_lr:g})" for o in done if o.sensitivity and o.sensitivity.at_edge]
    tuned_before = [o.records[0].config for o in done if not o.sensitivity and o.origin.at_edge]
    edges += [f"{config.name} ({config.settings['lr']:g})" for config in tuned_before]
    if not edges:
        return ""
    return f" At the edge of the learning rates that were tried, so a better one may lie beyond: {_join(edges)}."


def _lost(summary: WorkloadSummary) -> str:
    parts = [f"{o.name}: {o.diverged} of {o.n} diverged" for o in summary.optimizers if o.diverged]
    parts += [f"{o.name}: {o.failed} of {o.n} did not finish" for o in summary.optimizers if o.failed]
    return f" {'; '.join(parts)}." if parts else ""


def _join(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
