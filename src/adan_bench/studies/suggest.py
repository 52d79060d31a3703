"""Short runs, off which `records.suggestion` reads the learning rate of a full one.

A short run is the full run in small: a few percent of its steps, with a warm-up and a descent of its own. Rates that
fall behind are stopped at a quarter and at half of it (`studies.halving`), and two more rates refine the best.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from adan.suggestion import first_beta
from adan_bench.config import RunConfig, RunRecord
from adan_bench.errors import UsageError
from adan_bench.records.stats import rank
from adan_bench.records.suggestion import MeasuredSuggestion, measured, suggestion
from adan_bench.studies.arms import Search
from adan_bench.studies.comparison import Comparison, Key, check_free_rate, learning_rates, split_trials
from adan_bench.studies.halving import rungs
from adan_bench.studies.study import arms, find, read
from adan_bench.task import OptimizerSpec, Settings
from adan_bench.training import optimizers

#: The share of the full run that a short one has, and the fewest steps of one.
SHARE, LEAST = 0.04, 20
#: A short run warms up for as many steps as the full one, but at most for this share of it.
WARMUP = 0.25
TRIALS, ETA = 8, 2


@dataclass(frozen=True)
class ShortRuns(Search):
    """A search among short runs, whose best rate is not yet that of the full run."""

    def chosen(self, tried: Sequence[RunRecord]) -> Settings:
        best = min(tried, key=rank)
        return {**best.config.settings, "lr": measured(tried).lr}


def short(base: RunConfig, share: float = SHARE) -> RunConfig:
    """A full run's configuration in small, evaluated at the quarters, where rates are compared."""
    whole = base.stop_after or base.steps
    steps = 4 * max(LEAST // 4, round(share * whole / 4))
    if steps > whole // 2:
        raise UsageError(f"--steps {whole}: too few for short runs, which have {steps}; use adan-bench tune instead")
    warmup = min(base.warmup * base.steps / steps, WARMUP)
    small = replace(base, steps=steps, warmup=warmup, eval_every=steps // 4, log_every=max(1, steps // 60))
    # An average of weights would lag behind, and compiling takes longer than a short run.
    return replace(small, stop_after=0, nonmono=0, ema=0.0, compile=False)


def starting_from(spec: OptimizerSpec, steps: int) -> Settings:
    """An optimizer's defaults, with those that depend on the length of the full run: Adan's first beta."""
    settings = optimizers.defaults(spec)
    return settings | ({"betas": (first_beta(steps), *settings["betas"][1:])} if spec.name == "adan" else {})


def add_study(comparison: Comparison, file: str, chosen: RunConfig) -> None:
    """Add arms for what a study searches, with its options and settings, of the optimizers that compete."""
    found = Path(file) if Path(file).exists() else find(file.removesuffix(".toml"))
    studies = read([str(found)])
    for arm in itertools.chain(*arms(studies, [found.stem], chosen, comparison.out)):
        if arm.base.study == found.stem and arm.base.name in comparison.who:
            arm.base, arm.seeds = arm.trial or arm.base, ()
            comparison.arms[found.stem, arm.base.name] = arm


def short_runs(
    spec: OptimizerSpec, full: RunConfig, small: RunConfig, fixed: Settings, trials: int = TRIALS, eta: int = ETA
) -> ShortRuns:
    """The search of an optimizer: as many short runs, and over as wide a range of rates, as every other's."""
    rates, _ = split_trials(trials)
    judged = tuple(rungs(eta, rates, small.steps, small.eval_every))
    start = full.settings if full.study else starting_from(spec, full.steps)
    return ShortRuns(tuple(learning_rates(spec, rates)), trials, start, fixed=fixed, eta=eta, rungs=judged)


def suggest(comparison: Comparison, share: float = SHARE, trials: int = TRIALS, eta: int = ETA) -> None:
    """Choose the settings of every arm of a comparison by short runs."""
    for (_, name), arm in comparison.arms.items():
        c = comparison.who[name]
        check_free_rate(c)
        arm.trial = short(arm.base, share)
        arm.search = short_runs(c.spec, arm.base, arm.trial, c.settings, trials, eta)
    comparison.run()


def suggestions(comparison: Comparison) -> dict[Key, MeasuredSuggestion]:
    """The arms for which short runs have found settings."""
    found = {}
    for key in comparison.tuning:
        arm, spec = comparison.arms[key], comparison.who[key[1]].spec
        found[key] = suggestion(spec, arm.base, arm.base.settings, arm.tried or ())
    return found
