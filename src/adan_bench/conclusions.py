"""Sentences that say what the numbers say, and no more."""

from __future__ import annotations

import math
from collections.abc import Sequence

from adan_bench.stats import MIN_SEEDS, Interval, OptimizerSummary, WorkloadSummary, difference


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


def spread(final: Interval | None, values: Sequence[float]) -> str:
    """Mean ± interval with n; with fewer than three seeds the range that was seen, which is no interval."""
    if final is None:
        return "–"
    if final.half is not None:
        return f"{number(final.mean)} ± {number(final.half, 2)} (n={final.n})"
    if final.n > 1:
        return f"{number(final.mean)} ({number(min(values))} to {number(max(values))}, n={final.n})"
    return f"{number(final.mean)} (n=1)"


def conclude(summary: WorkloadSummary) -> str:
    """One plain paragraph for a workload."""
    done = [o for o in summary.optimizers if o.final is not None]
    metric = summary.facts["metric"]
    if not done:
        return "No run finished, so there is nothing to compare." + _lost(summary)
    best, others = done[0], done[1:]
    assert best.final is not None
    first = f"{best.name} has the {'highest' if summary.higher_is_better else 'lowest'} mean {metric}, {number(best.final.mean)}"
    if not others:
        return f"Only {best.name} finished: mean {metric} {number(best.final.mean)}, n={best.final.n}." + _lost(summary)
    n = min(o.final.n for o in done if o.final is not None)
    if n < MIN_SEEDS:
        second = others[0]
        assert second.final is not None
        text = f"{first}; {second.name} follows with {number(second.final.mean)}. With n={n} this is no evidence of a difference."
        return text + _target(summary, done) + _lost(summary)
    clear, open_ = [], []
    for other in others:
        gap = difference(best, other, comparisons=len(others))
        decided = gap is not None and gap.low is not None and gap.high is not None and (gap.low > 0 or gap.high < 0)
        (clear if decided else open_).append(other.name)
    text = f"{first} (n={n})."
    if clear:
        text += f" It is better than {_join(clear)} beyond what the seeds explain (95%, paired, corrected for {len(others)} comparisons)."
    if open_:
        text += f" The difference from {_join(open_)} is within what the seeds explain."
    return text + _target(summary, done) + _lost(summary)


def tuning(summaries: Sequence[WorkloadSummary]) -> str:
    """How the settings came about, and whether every optimizer had the same chance."""
    origins = sorted({o.records[0].config.origin for s in summaries for o in s.optimizers})
    trials = sorted({o.trials for s in summaries for o in s.optimizers})
    schedules = sorted({s.schedule for s in summaries})
    text = f"Every optimizer ran under the same schedule ({', '.join(schedules)}, same warm-up), budget and seeds. "
    if trials == [0]:
        if len(origins) == 1:
            return text + f"Settings: {origins[0]}, the same for all."
        return text + "Settings were not chosen in the same way for all: " + "; ".join(origins) + "."
    if len(trials) == 1:
        return text + f"Every optimizer had {trials[0]} tuning trials, with a seed that no reported run uses."
    return (
        text
        + f"The optimizers did not have the same number of tuning trials ({', '.join(map(str, trials))}): read the table with that in mind."
    )


def _target(summary: WorkloadSummary, done: Sequence[OptimizerSummary]) -> str:
    target = f"{summary.facts['metric']} {number(summary.facts['target'], 3)}"
    there = sorted((o.steps_to_target, o.name) for o in done if o.steps_to_target is not None)
    if not there:
        return f" The target, {target}, was not reached by most seeds of any optimizer."
    least = [name for steps, name in there if steps == there[0][0]]
    return f" The target, {target}, was reached in the fewest steps ({there[0][0]:.0f}, median) by {_join(least)}."


def _lost(summary: WorkloadSummary) -> str:
    parts = [f"{o.name}: {o.diverged} of {o.n} diverged" for o in summary.optimizers if o.diverged]
    parts += [f"{o.name}: {o.failed} of {o.n} did not finish" for o in summary.optimizers if o.failed]
    return f" {'; '.join(parts)}." if parts else ""


def _join(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
