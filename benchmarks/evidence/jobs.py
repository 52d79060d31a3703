"""A job is one training run. Its key depends on what decides the numbers and on nothing else."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
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

    @cached_property
    def key(self) -> str:
        facts = {k: v for k, v in vars(self).items() if k not in ("study", "lane")}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        values = " ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in self.settings.items())
        role = "tune" if self.tuning else f"seed {self.seed}"
        return f"{self.study} {role} {self.optimizer} {values} {self.length} {self.unit}"


Record = dict[str, Any]


def read(path: Path) -> dict[str, Record]:
    """The records of a file by key; a line that a killed process left half written is passed over."""
    records: dict[str, Record] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        records[record["key"]] = record
    return records


def append(path: Path, *lines: str) -> None:
    """Add lines to a file. A last line that a killed process left half written is ended first, and so lost alone."""
    with path.open("a+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        torn = file.read() not in (b"", b"\n")
        file.write(("\n" * torn + "".join(f"{line}\n" for line in lines)).encode())


MOST_POINTS = 60  # of a stored curve
PLACES = (
    "--cache",
    "--site",
    "--out",
    "--commit",
)  # options that tell of the machine's folders, or twice of the commit


def compact(record: Record) -> Record:
    """A record as the repository stores it: curves by column with five digits, and no folders of the machine."""
    curve = record["curve"]
    last = len(curve) - 1
    points = (
        [curve[i] for i in sorted({round(last * i / (MOST_POINTS - 1)) for i in range(MOST_POINTS)})] if curve else []
    )
    columns = {name: [_short(point[name]) for point in points] for name in (curve[0] if curve else ())}
    environment = {key: value for key, value in record["environment"].items() if key not in ("commit", "load_average")}
    words = environment["command"].split()
    words = words[words.index("run") :]
    placed = {at + i for at, word in enumerate(words) if word in PLACES for i in (0, 1)}
    rest = [word for at, word in enumerate(words) if at not in placed]
    environment["command"] = " ".join(["python", "-m", "evidence", *rest])
    facts = {key: value for key, value in record.items() if key not in ("key", "final", "best", "curve", "environment")}
    return {
        "key": record["key"],
        "commit": record["environment"]["commit"],
        "seed": record["job"]["seed"],
        **facts,
        "final": {key: _short(value) for key, value in record["final"].items()},
        "best": _short(record["best"]),
        "curve": columns,
        "environment": environment,
    }


def _short(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def store(target: Path, sources: Iterable[Path]) -> int:
    """Append what the repository's file does not hold yet; the number of its runs."""
    stored = read(target)
    new = {key: record for source in sources for key, record in read(source).items() if key not in stored}
    finished = [compact(record) for record in new.values() if record["status"] != "failed"]
    append(target, *(json.dumps(record, separators=(",", ":")) for record in finished))
    return len(read(target))


def succeeded(record: Record) -> bool:
    """Whether a run finished with a finite metric."""
    value = record["final"].get(record["metric"]) if record["status"] == "finished" else None
    return value is not None and math.isfinite(value)


def diverged(record: Record) -> bool:
    """Whether the loss, or the metric of a run that finished, is not finite."""
    return record["status"] in ("finished", "diverged") and not succeeded(record)


def score(record: Record) -> float:
    """The final metric, larger is better; a run that did not finish is worse than any that did."""
    if not succeeded(record):
        return float("-inf")
    value = float(record["final"][record["metric"]])
    return value if record["higher_is_better"] else -value
