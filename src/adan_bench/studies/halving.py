"""Successive halving: trials are judged at rungs of the schedule, and only the best of them go on.

A trial passes a rung if it is among the best 1/eta of all trials of its optimizer that came there (arXiv:1810.05934).
Rungs are the same shares of the same schedule for every optimizer. With eta = 1 there are none: every trial is whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from adan_bench.config import RunRecord
from adan_bench.errors import UsageError
from adan_bench.records.store import RunStore

FIRST = 1 / 8  # no rung before this share of a run: the warm-up says little about the end


def rungs(eta: int, trials: int, steps: int, eval_every: int) -> list[int]:
    """The steps at which trials are judged: those of evaluations, so that judging changes no number.

    >>> rungs(2, trials=6, steps=240, eval_every=24)
    [72, 120]
    >>> rungs(3, trials=9, steps=900, eval_every=10), rungs(1, trials=9, steps=900, eval_every=10)
    ([300], [])
    """
    shares = [eta**-k for k in range(1, trials) if eta**k <= trials and eta**-k >= FIRST]
    evaluations = {math.ceil(steps * share / eval_every) * eval_every for share in shares}
    return sorted(step for step in evaluations if step < steps)


def survivors(eta: int, records: Sequence[RunRecord], rung: int) -> list[RunRecord]:
    """The trials that pass a rung, the best first."""
    there = [record for record in records if math.isfinite(_value(record, rung))]
    return sorted(there, key=lambda record: _value(record, rung))[: math.ceil(len(there) / eta)]


def _value(record: RunRecord, rung: int) -> float:
    """A trial's metric at a rung, the lower the better; infinite where it did not come so far."""
    sign = -1 if record.higher_is_better else 1
    values = [value for step, _, value in record.curve("eval", record.metric) if step >= rung]
    return sign * values[0] if values else math.inf


def check_search(path: Path, eta: int, steps: Sequence[int]) -> None:
    """Refuse a trial that a search with another --halving has stopped: here it might have gone on."""
    result = RunStore(path).result()
    if result is None or result["status"] != "stopped":
        return
    there = result.get("eta", eta)  # older records have the step alone
    if there != eta or result["rung"] not in steps:
        by = f"--halving {there}" if there != eta else "another search"
        raise UsageError(f"--halving {eta}: {path} was stopped at step {result['rung']} by {by}; give the same")


def stop_trial(record: RunRecord, rung: int, eta: int) -> None:
    """End a trial that did not pass a rung; its record says so."""
    last = next(line for line in reversed(record.metrics) if line["kind"] == "eval")
    final = {key: value for key, value in last.items() if key not in ("kind", "step", "seconds")}
    facts = {"step": last["step"], "seconds": last["seconds"], "final": final, "best": None}
    RunStore(record.path).finish({"status": "stopped", "rung": rung, "eta": eta, **facts})
