"""Short runs, off which `records.suggestion` reads the learning rate of a full one.

A short run is the beginning of a full run in small: it warms up and descends as one of a tenth of the steps would, and
ends at 40% of that. None is stopped before: where those that were behind at a quarter were, the best of GPTs were lost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from adan.suggestion import first_beta
from adan_bench.config import RunConfig, RunRecord
from adan_bench.errors import UsageError
from adan_bench.records.stats import best_trial, rank
from adan_bench.records.suggestion import MeasuredSuggestion, judged, measured, suggestion
from adan_bench.studies.arms import Search, rounded
from adan_bench.studies.comparison import Comparison, Key, check_free_rate, learning_rates, split_trials
from adan_bench.task import OptimizerSpec, Settings
from adan_bench.training import optimizers

#: The share of the full run that a short one makes, and the fewest steps of one.
SHARE, LEAST = 0.04, 20
#: The steps that a short run makes ÷ those of its schedule.
MADE = 0.4
#: A short run warms up for as many steps as the full one, but at most for this share of its schedule.
WARMUP = 0.25
TRIALS = 6
#: Gradients of all short runs ÷ the full run's, at most.
BUDGET = 0.25
#: Where all rates diverge, so many smaller ones are tried, each a tenth of the one before.
LOWER = 3


@dataclass(frozen=True)
class ShortRuns(Search):
    """A search among short runs, judged by their training loss; its choice is between the rates tried."""

    def judged(self, record: RunRecord) -> RunRecord:
        return judged(record)

    def chosen(self, tried: Sequence[RunRecord]) -> Settings:
        return {**best_trial(tried).config.settings, "lr": measured(tried)}

    def following(self, tried: Sequence[RunRecord]) -> list[Settings]:
        if not tried or any(math.isfinite(rank(record)) for record in tried):
            return super().following(tried) if len(tried) < self.trials else []
        if any(not record.diverged for record in tried) or len(tried) >= len(self.rates) + LOWER:
            return []
        lowest = min(float(record.config.settings["lr"]) for record in tried)
        return [{**self.start, **self.fixed, "lr": rounded(lowest / 10)}]


def short(base: RunConfig, share: float = SHARE, trials: int = TRIALS) -> RunConfig:
    """The configuration of a full run's short ones, evaluated at their end alone."""
    whole = base.stop_after or base.steps
    made = max(LEAST, round(share * whole))
    if made * trials > BUDGET * whole:
        raise UsageError(
            f"--steps {whole} with --trials {trials}: short runs of {made} steps would take more than a quarter of a "
            "full run; lower --share or --trials, or use adan-bench tune"
        )
    steps = round(made / MADE)
    warmup = min(base.warmup * base.steps / steps, WARMUP)
    small = replace(base, steps=steps, warmup=warmup, stop_after=made, eval_every=made, log_every=max(1, made // 40))
    # An average of weights would lag behind, and compiling takes longer than a short run.
    return replace(small, nonmono=0, ema=0.0, compile=False)


def short_runs(spec: OptimizerSpec, full: RunConfig, fixed: Settings, trials: int = TRIALS) -> ShortRuns:
    """The search of an optimizer: as many short runs, and over as wide a range of rates, as every other's."""
    rates, _ = split_trials(trials)
    start = optimizers.defaults(spec)
    if spec.name == "adan":
        start["betas"] = (first_beta(full.steps), *start["betas"][1:])
    return ShortRuns(tuple(learning_rates(spec, rates)), trials, start, fixed=fixed, refine=True)


def suggest(comparison: Comparison, share: float = SHARE, trials: int = TRIALS) -> None:
    """Choose the settings of every arm of a comparison by short runs."""
    for (_, name), arm in comparison.arms.items():
        c = comparison.who[name]
        check_free_rate(c)
        arm.trial = short(arm.base, share, trials)
        arm.search = short_runs(c.spec, arm.base, c.settings, trials)
    comparison.run()


def suggestions(comparison: Comparison) -> dict[Key, MeasuredSuggestion]:
    """The arms for which short runs have found settings."""
    found = {}
    for key in comparison.tuning:
        arm, spec = comparison.arms[key], comparison.who[key[1]].spec
        found[key] = suggestion(spec, arm.base, arm.base.settings, arm.tried or ())
    return found
