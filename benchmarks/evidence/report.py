"""What a file of records says, study by study."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from evidence.jobs import Record, diverged, read, score, succeeded


def show(path: Path) -> None:
    for name, records in by_study(path).items():
        print(f"\n{name}")
        for title, wanted in (("tuning seed", True), ("reported seeds", False)):
            rows = defaultdict(list)
            for record in (r for r in records if r["job"]["tuning"] == wanted):
                rows[_setting(record)].append(record)
            if rows:
                print(f"  {title}")
            for setting, runs in sorted(rows.items(), key=lambda row: (row[0].split()[0], -max(map(score, row[1])))):
                print(f"    {setting}: {_summary(runs)}")


def by_study(path: Path) -> dict[str, list[Record]]:
    studies: dict[str, list[Record]] = defaultdict(list)
    for record in read(path).values():
        if record["status"] != "failed":
            studies[record["job"]["study"]].append(record)
    return studies


def _setting(record: Record) -> str:
    job = record["job"]
    values = " ".join(f"{key} {json.dumps(value)}" for key, value in job["settings"].items())
    options = " ".join(f"{key} {value}" for key, value in job["options"].items())
    return f"{job['optimizer']} {values}; {job['length']} {job['unit']}, {options}"


def _summary(records: list[Record]) -> str:
    finished = [record for record in records if succeeded(record)]
    if not finished:
        return f"diverged (n = {len(records)})"
    metric = finished[0]["metric"]
    parts = [f"{metric} {_spread(r['final'][metric] for r in finished)}"]
    parts += [f"train loss {_spread(r['final']['train_loss'] for r in finished)}", f"n = {len(finished)}"]
    if lost := sum(map(diverged, records)):
        parts.append(f"{lost} diverged")
    return ", ".join(parts)


def _spread(values: Iterable[float]) -> str:
    numbers = list(values)
    return f"{statistics.mean(numbers):.4f}" + (f" ± {statistics.stdev(numbers):.4f}" if len(numbers) > 1 else "")
