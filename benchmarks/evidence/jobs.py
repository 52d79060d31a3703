"""A job is one training run. Its key depends on what decides the numbers and on nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """One run.

    options: of the problem, such as its batch size.
    length, unit: how long it trains, in "steps" or "epochs".
    tuning: it looks at the validation split, and only settings are chosen by it.
    study, lane: for whom, and on which kind of worker; not part of the key.
    """

    study: str
    problem: str
    options: Mapping[str, Any]
    optimizer: str
    settings: Mapping[str, Any]
    length: int
    unit: str
    seed: int
    tuning: bool
    evaluations: int
    lane: str = field(default="gpu", compare=False)

    @property
    def key(self) -> str:
        facts = {k: v for k, v in asdict(self).items() if k not in ("study", "lane")}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        values = " ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in self.settings.items())
        role = "tune" if self.tuning else f"seed {self.seed}"
        return f"{self.study} {role} {self.optimizer} {values} {self.length} {self.unit}"


Record = dict[str, Any]


def read(path: Path) -> dict[str, Record]:
    """The records of a file by key; a line that a killed process left half written is passed over."""
    records: dict[str, Record] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        records[record["key"]] = record
    return records


def score(record: Record) -> float:
    """The final metric, larger is better; a run that did not finish is worse than any that did."""
    if record["status"] != "finished":
        return float("-inf")
    value = float(record["final"][record["metric"]])
    return value if record["higher_is_better"] else -value
