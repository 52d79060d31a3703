"""Which runs make a comparison: configurations, the trials of a tuning, the seeds of a comparison.

Tuning is the same for every optimizer: the same number of trials, the same number of learning rates over a range of the
same width around its declared center, the same schedule, and a seed that no reported run uses.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from adan_bench.config import Origin, RunConfig
from adan_bench.errors import UsageError
from adan_bench.records.stats import sensitivity
from adan_bench.records.store import write_bytes
from adan_bench.studies.arms import STEP, Arm, Search, rounded
from adan_bench.studies.competitors import Competitor
from adan_bench.task import OptimizerSpec, Workload
from adan_bench.training import optimizers
from adan_bench.training.configure import changes, configure, elsewhere, training_of, tuned_name
from adan_bench.workloads.registry import get_workload

Key = tuple[str, str]  # (folder of the workload, optimizer)

#: Every optimizer's range of learning rates has so many decades. More than six rates, `STEP` decades apart, make it
#: wider, up to `WIDEST`.
DECADES, WIDEST = 2.5, 4.0


def learning_rates(spec: OptimizerSpec, count: int) -> list[float]:
    """Learning rates over the optimizer's range, equally far apart, rounded to three digits.

    More of them first make the range wider, then the steps smaller.

    >>> learning_rates(OptimizerSpec("adam", "torch.optim:Adam", lr=1e-3), 3)
    [5.62e-05, 0.001, 0.0178]
    >>> learning_rates(OptimizerSpec("adam", "torch.optim:Adam", lr=1e-3), 13)[::6]
    [1e-05, 0.001, 0.1]
    """
    if count == 1:
        return [spec.lr]
    decades = min(WIDEST, max(DECADES, STEP * (count - 1)))
    exponents = [decades * (i / (count - 1) - 0.5) for i in range(count)]
    return [float(f"{spec.lr * 10**exponent:.3g}") for exponent in exponents]


def rate_trials(trials: int) -> int:
    """How many of the trials go to the learning rate: all but a quarter, of which at most three go to what follows.

    >>> [rate_trials(trials) for trials in (8, 4, 2, 16)]
    [6, 3, 2, 13]
    """
    return trials - min(3, trials // 4)


def compared(
    workloads: Sequence[str],
    who: Sequence[Competitor],
    chosen: RunConfig,
    *,
    out: Path,
    tuned: Path | None = None,
    batch_sizes: Sequence[int] = (),
    trials: int = 0,
    seeds: int = 0,
) -> dict[Key, Arm]:
    """The arms of optimizers side by side on workloads, below one folder.

    tuned: a file that `save_tuned` wrote, whose settings take the place of the defaults.
    trials: of each optimizer; one of which no trial has a final value keeps the settings that it had.
    """
    saved = None if tuned is None else read_tuned(tuned)["workloads"]
    arms: dict[Key, Arm] = {}
    for name in workloads:
        if name in optimizers.known():
            raise UsageError(f"no workload {name!r}: it is an optimizer; write --optimizers A,B,C without spaces")
        workload = get_workload(name, chosen.scale)
        for size in batch_sizes or [chosen.batch_size or workload.batch_size]:
            at_size = _at_batch_size(workload, chosen, size) if batch_sizes else chosen
            folder = f"{name}-b{size}" if batch_sizes else name
            for c in who:
                base, tuned_at = configure(workload, c.spec, at_size, c.settings), workload.batch_size
                if tuned is not None and saved is not None:
                    base, tuned_at = _with_saved(base, c, saved, tuned)
                if batch_sizes:
                    base = _scaled(base, tuned_at)
                own = search(c, trials) if trials else None
                arms[folder, c.name] = Arm(replace(base, label=c.label), out / folder / c.folder, range(seeds), own)
    return arms


def search(c: Competitor, trials: int) -> Search:
    """The search of an optimizer, as wide as every other's, at a rate that the user leaves free."""
    if "lr" in c.settings:
        where = "the lr in its name" if ":lr=" in c.name else "--set lr"
        raise UsageError(f"{c.name}: {where} fixes the rate to be tuned; omit it")
    rates = tuple(learning_rates(c.spec, rate_trials(trials)))
    choices = tuple(dict(choice) for choice in c.spec.choices)
    return Search(rates, trials, optimizers.defaults(c.spec), choices, c.settings)


def save_tuned(arms: Mapping[Key, Arm], path: Path) -> None:
    """Merge the settings that trials found into a file; where they found none, the file stays as it is."""
    content = read_tuned(path, "--save") if path.exists() else {"workloads": {}}
    found = {key: arm for key, arm in sorted(arms.items(), key=lambda pair: pair[0]) if arm.found}
    for (folder, name), arm in found.items():
        assert arm.search is not None
        assert arm.tried is not None
        trial, rated = arm.trial or arm.base, sensitivity(arm.tried)
        entry: dict[str, Any] = {"settings": arm.base.settings, "trials": arm.search.trials}
        entry["at_edge"] = rated is not None and rated.at_edge
        entry |= {"steps": trial.steps, "batch_size": trial.batch_size, "training": training_of(trial)}
        content["workloads"].setdefault(tuned_name(folder, arm.base.scale), {})[name] = entry
    if found:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, tuned_json(content).encode())


def tuned_json(content: Mapping[str, Any]) -> str:
    """The text of a file of tuned settings: JSON with a line for each workload and optimizer."""
    return re.sub(r"\n {4,}|\n {3}(?=})", " ", json.dumps(content, indent=1, default=str)) + "\n"


def read_tuned(path: Path, flag: str = "--tuned") -> dict[str, Any]:
    """What `save_tuned` wrote: "workloads" -> workload -> optimizer -> settings and how they were found."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for workload, own in content["workloads"].items():
            for name, entry in own.items():
                for key in ("lr", "trials", "steps", "batch_size"):
                    if not ((entry["settings"] if key == "lr" else entry).get(key) or 0) > 0:
                        raise ValueError(f"{workload} {name} has no {key} above 0")
    except FileNotFoundError as error:
        raise UsageError(f"{flag} {path}: no such file; give a best.json, or the file of --save") from error
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        known = isinstance(error, (OSError, ValueError))
        reason = str(error) if known else 'it is no JSON object with "workloads", their optimizers and settings'
        remedy = "name another file" if flag == "--save" else "give a best.json, or the file of --save"
        raise UsageError(f"{flag} {path}: not a file that adan-bench tune saved ({reason}); {remedy}") from error
    return content


def _with_saved(base: RunConfig, c: Competitor, saved: Mapping[str, Any], path: Path) -> tuple[RunConfig, int]:
    """With the settings that a tuning saved for this workload and optimizer, and the batch size it had."""
    name = tuned_name(base.workload, base.scale)
    own = saved.get(name, {})
    entry = own.get(c.name, own.get(c.spec.name))  # a variant that nobody tuned has the settings of its optimizer
    if entry is None:
        there = ", ".join(f"{workload} {name}" for workload, names in saved.items() for name in names)
        raise UsageError(f"--tuned {path}: nothing for {name} {c.name}; it has: {there or 'nothing'}")
    training = {"steps": entry["steps"], "batch_size": entry["batch_size"], **entry.get("training", {})}
    changed = changes(c.spec, entry["settings"], c.settings)
    origin = Origin(
        kind="saved",
        trials=entry["trials"],
        source=path.name,
        at_edge=entry.get("at_edge", False) and "lr" not in changed,
        tuned_for=elsewhere(training, base),
        changed=changed,
    )
    settings = {**entry["settings"], **c.settings}
    optimizers.check_values(c.spec, settings)
    return replace(base, settings=settings, origin=origin), entry["batch_size"]


def _at_batch_size(workload: Workload, chosen: RunConfig, size: int) -> RunConfig:
    """A sweep keeps the number of examples: twice the batch, half the steps, also to where the runs stop."""
    given = chosen.steps or workload.steps, chosen.stop_after
    steps, stop_after = (n and max(1, round(n * workload.batch_size / size)) for n in given)
    return replace(chosen, batch_size=size, steps=steps, stop_after=stop_after)


def _scaled(config: RunConfig, tuned_at: int) -> RunConfig:
    """The paper's square-root rule for a learning rate that is for another batch size, the same for every optimizer."""
    if config.batch_size == tuned_at:
        return config
    factor = math.sqrt(config.batch_size / tuned_at)
    settings = {**config.settings, "lr": rounded(config.settings["lr"] * factor)}
    origin = replace(config.origin, batch_sizes=(config.batch_size, tuned_at))
    return replace(config, settings=settings, origin=origin)
