"""Archives: a file with one run per line, which can be read wherever a folder of runs can.

A line holds what the files of a run's folder do, its curves by columns and thinned to POINTS, and no folder of the
machine.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adan_bench.config import RunConfig, RunRecord
from adan_bench.errors import UsageError, listing, reading
from adan_bench.records.store import DamagedRecord, check_config, check_environment, check_result, each, read_runs

POINTS = 60  # of a curve
DIGITS = 6
FOLDERS = re.compile(r"""(?<![^\s'"=:(,])/[^\s'"]*/""")  # all of an absolute path but its last part
CURVES = ("train", "eval")


def read_records(*paths: Path) -> tuple[list[RunRecord], list[DamagedRecord]]:
    """Every run of archives and folders, once, in the order given, and what is wrong with those left out."""
    records: dict[Path, RunRecord] = {}  # by what a path leads to: one folder may lie in another
    damaged: list[DamagedRecord] = []
    for path in paths:
        found, wrong = read_archive(path) if path.is_file() else read_runs(path)
        for record in found:
            records.setdefault(record.path.resolve(), record)
        damaged += [error for error in wrong if str(error) not in map(str, damaged)]
    return list(records.values()), damaged


def read_archive(file: Path) -> tuple[list[RunRecord], list[DamagedRecord]]:
    """The runs of an archive, and what is wrong with its other lines."""
    records: list[RunRecord] = []
    damaged: list[DamagedRecord] = []
    with reading(file, "no packed runs", "give a folder of records, or a file of adan-bench pack"):
        lines = file.read_text(encoding="utf-8").splitlines()
    for number, text in enumerate(lines, 1):
        try:
            records.append(_record(json.loads(text), file))
        except (ValueError, LookupError, TypeError, AttributeError) as error:  # no JSON, or other things than a record
            why = error.why if isinstance(error, DamagedRecord) else f"{type(error).__name__}: {error}"
            damaged.append(DamagedRecord(file, f"line {number}: {why}", "remove that line, or pack the runs again"))
    if not records:
        why = f": {damaged[0]}" if damaged else ""
        raise UsageError(f"{file}: no runs there; {file.absolute().parent} holds: {listing(file.parent)}{why}")
    return records, damaged


def _record(line: Any, file: Path) -> RunRecord:
    if not isinstance(line, dict):
        raise DamagedRecord(file, "it is no JSON object")
    check_config(file, line)
    check_environment(file, line["environment"])
    if line["result"] is not None:
        check_result(file, line["result"])
    metrics = [
        {"kind": kind, **{key: value for key, value in zip(curve, point, strict=True) if value is not None}}
        for kind, curve in line["curves"].items()
        for point in zip(*curve.values(), strict=True)
    ]
    metrics = sorted([*metrics, *line["events"]], key=lambda entry: int(entry["step"]))
    workload, optimizer, environment = line["workload"], line["optimizer"], line["environment"]
    config = RunConfig.from_json(line["config"])
    return RunRecord(file / line["run"], config, workload, optimizer, environment, metrics, line["result"])


def pack(records: Sequence[RunRecord]) -> str:
    """The archive of some runs; their names are their paths below the folder that holds them all."""
    root = os.path.commonpath([record.path.parent.absolute() for record in records] or [Path()])
    lines = [each(_line(record, root), lambda v: FOLDERS.sub("", v) if isinstance(v, str) else v) for record in records]
    return "".join(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n" for line in lines)


def _line(record: RunRecord, root: str) -> dict[str, Any]:
    return {
        "run": record.path.absolute().relative_to(root).as_posix(),
        "config": record.config.to_json(),
        **{name: getattr(record, name) for name in ("workload", "optimizer", "environment", "result")},
        "curves": {kind: _columns([line for line in record.metrics if line["kind"] == kind]) for kind in CURVES},
        "events": [line for line in record.metrics if line["kind"] not in CURVES],
    }


def _columns(lines: Sequence[Mapping[str, Any]]) -> Any:
    """A curve by columns: at most POINTS of its lines, with the first and the last, and DIGITS of each number."""
    last = len(lines) - 1
    chosen = [lines[i] for i in sorted({round(last * i / (POINTS - 1)) for i in range(POINTS)})] if lines else []
    names = dict.fromkeys(name for line in chosen for name in line if name != "kind")
    columns = {name: [line.get(name) for line in chosen] for name in names}
    return each(columns, lambda value: float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value)
