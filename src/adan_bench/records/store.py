"""Runs on disk: one directory each, written so that being killed at any moment loses nothing that was written before.

    config.json       the configuration and the facts of workload and optimizer     written once, atomically
    environment.json  commit, versions, hardware                                     written once, atomically
    metrics.jsonl     one JSON object a line, appended                               a torn last line is ignored
    checkpoint-STEP-SHA256.pt   the last two; the name holds the checksum            written aside, then renamed
    weights.pt        the final weights, where they were asked for; with --ema their average, which was evaluated
    result.json       status and final numbers; its presence means that the run ended
    traceback.txt     of an error, where there was one

A checkpoint knows how many lines of metrics.jsonl belong to it. Resuming cuts the file back to them, so that the
repeated steps write each line once.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adan_bench.spec import RunConfig, RunRecord, UsageError, listing

KEEP = 2  # checkpoints; the older one is for the day when the newest is damaged


class DamagedRecord(UsageError):
    """A file of a record that cannot be read; the message names it and the remedy."""

    def __init__(self, file: Path, why: str) -> None:
        super().__init__(f"{file} is damaged ({why}); remove {file.parent}, and --resume makes this run again")


class RunStore:
    """The directory of one run, for the process that writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = 0

    @property
    def exists(self) -> bool:
        return (self.path / "config.json").exists()

    @property
    def ended(self) -> bool:
        return (self.path / "result.json").exists()

    def create(
        self,
        config: RunConfig,
        workload: Mapping[str, Any],
        optimizer: Mapping[str, Any],
        environment: Mapping[str, Any],
    ) -> None:
        """Begin a run. config.json is written last: a directory that has it has the rest."""
        if self.exists:
            raise UsageError(f"{self.path} already holds a run; continue with --resume or choose another --out")
        self.path.mkdir(parents=True, exist_ok=True)
        self.cut(0)
        self.describe(environment)
        facts = {"config": config.to_json(), "workload": dict(workload), "optimizer": dict(optimizer)}
        write_json(self.path / "config.json", facts)

    def describe(self, environment: Mapping[str, Any]) -> None:
        write_json(self.path / "environment.json", environment)

    @property
    def described(self) -> bool:
        """Whether the run was ever under way; one that could not be built has a record without an environment."""
        return (self.path / "environment.json").exists()

    def check_same(self, config: RunConfig) -> RunConfig | None:
        """The configuration that the run began with. It continues with the same, but for what the machine offers.

        None: the script has changed, and the run came to nothing with the old one, so that it is to be made anew.
        """
        begun = RunConfig.from_json(read_json(self.path / "config.json", "config")["config"])
        differing = config.differences(begun)
        result = self.result()
        came_to_nothing = not self.checkpoints() and (result is None or result["status"] == "failed")
        if "script_sha256" in differing and came_to_nothing:
            return None
        if differing == ["script_sha256"]:
            raise UsageError(
                f"--resume: the script {config.script} has changed, and {self.path} was made with the old one; "
                "choose a new --out, or undo the change"
            )
        if differing:
            parts = ", ".join(
                f"the script {config.script} has changed"
                if name == "script_sha256"
                else f"{name}: {getattr(begun, name)} there, {getattr(config, name)} now"
                for name in differing
            )
            raise UsageError(f"--resume: {self.path} holds another run ({parts}); undo that, or choose another --out")
        return begun

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one line to the metrics."""
        append_line(self.path / "metrics.jsonl", line)
        self._lines += 1

    def checkpoint(self, step: int, state: Mapping[str, Any]) -> None:
        """Write a checkpoint beside the old ones and, once it is safe, remove all but the newest two."""
        import torch

        with (self.path / "metrics.jsonl").open("ab") as file:
            os.fsync(file.fileno())  # a checkpoint must never be safer than the lines that it counts
        buffer = io.BytesIO()
        torch.save({"state": dict(state), "step": step, "lines": self._lines}, buffer)
        payload = buffer.getvalue()
        path = self.path / f"checkpoint-{step:09d}-{hashlib.sha256(payload).hexdigest()}.pt"
        write_bytes(path, payload)
        for old in self.checkpoints()[KEEP:]:
            old.unlink(missing_ok=True)

    def checkpoints(self) -> list[Path]:
        """Newest first."""
        return sorted(self.path.glob("checkpoint-*.pt"), reverse=True)

    @property
    def resume_step(self) -> int:
        """The step of the newest checkpoint; 0 where there is none."""
        found = self.checkpoints()
        return int(found[0].name.split("-")[1]) if found else 0

    def restore(self) -> dict[str, Any] | None:
        """The newest checkpoint that is whole and whose lines are there; the metrics are cut back to it.

        None, and no metrics, where there is none: the run starts anew.
        """
        import torch

        lines = read_lines(self.path / "metrics.jsonl")
        for path in self.checkpoints():
            payload = path.read_bytes()
            if hashlib.sha256(payload).hexdigest() != path.stem.rpartition("-")[2]:
                path.rename(path.with_suffix(".damaged"))
                continue
            content = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
            if content["lines"] <= len(lines):
                self.cut(content["lines"])
                state: dict[str, Any] = content["state"]
                return state
        self.cut(0)
        return None

    def cut(self, lines: int) -> None:
        """Keep the first lines of the metrics, and no others."""
        path = self.path / "metrics.jsonl"
        kept = path.read_bytes().splitlines(keepends=True)[:lines] if path.exists() else []
        write_bytes(path, b"".join(kept))
        self._lines = lines

    def keep_weights(self, weights: Mapping[str, Any]) -> None:
        """Write the final weights, for a run that starts from them."""
        import torch

        buffer = io.BytesIO()
        torch.save(dict(weights), buffer)
        write_bytes(self.path / "weights.pt", buffer.getvalue())

    def result(self) -> dict[str, Any] | None:
        """How the run ended; None where it did not."""
        return read_json(self.path / "result.json", "status") if self.ended else None

    def finish(self, result: Mapping[str, Any]) -> None:
        """End the run; its checkpoints have done their work unless it failed."""
        write_json(self.path / "result.json", finite(result))
        if result["status"] != "failed":
            for path in self.checkpoints():
                path.unlink(missing_ok=True)

    def reopen(self) -> None:
        """Take back the end of a run that failed, so that it can continue."""
        (self.path / "result.json").unlink(missing_ok=True)

    def discard(self) -> None:
        """Take back a run that came to nothing. config.json goes last: without it the rest would be damaged."""
        for name in ("result.json", "traceback.txt", "metrics.jsonl", "environment.json", "config.json"):
            (self.path / name).unlink(missing_ok=True)


class NoStore(RunStore):
    """For the ranks beside the first: they write nothing."""

    def append(self, line: Mapping[str, Any]) -> None: ...

    def checkpoint(self, step: int, state: Mapping[str, Any]) -> None: ...

    def keep_weights(self, weights: Mapping[str, Any]) -> None: ...

    def finish(self, result: Mapping[str, Any]) -> None: ...


def check_empty(out: Path, resume: bool = False) -> None:
    """A new study begins in a folder without runs."""
    if not resume and out.exists() and any(out.rglob("config.json")):
        raise UsageError(f"--out {out}: it already holds runs; add --resume to continue, or name another folder")


def read_run(path: Path) -> RunRecord:
    """The record of one run. The curves of a run that was killed end at the first torn line."""
    store = RunStore(path)
    facts = read_json(path / "config.json", "config", "workload", "optimizer")
    try:
        config = RunConfig.from_json(facts["config"])
    except (TypeError, ValueError, AttributeError) as error:
        raise DamagedRecord(path / "config.json", str(error)) from error
    metrics, result = read_lines(path / "metrics.jsonl"), store.result()
    if result is not None and result["status"] in ("finished", "diverged") and (path / "metrics.jsonl").exists():
        last = metrics[-1]["step"] if metrics else 0
        if last != result["step"]:
            raise DamagedRecord(path / "metrics.jsonl", f"it ends at step {last}, the run at step {result['step']}")
    return RunRecord(
        path=path,
        config=config,
        workload=facts["workload"],
        optimizer=facts["optimizer"],
        environment=read_json(path / "environment.json") if store.described else {},
        metrics=metrics,
        result=result,
    )


def read_runs(folder: Path) -> tuple[list[RunRecord], list[DamagedRecord]]:
    """Every run under a folder in the order of their paths, and what is wrong with those that cannot be read."""
    records, damaged = [], []
    for path in sorted({file.parent for name in ("config.json", "result.json") for file in folder.rglob(name)}):
        try:
            records.append(read_run(path))
        except DamagedRecord as error:
            damaged.append(error)
    if not folder.exists():
        raise UsageError(
            f"{folder}: no such folder; {folder.absolute().parent} holds: {listing(folder.absolute().parent)}"
        )
    if not (records or damaged):
        raise UsageError(f"{folder}: no runs there; it holds: {listing(folder)}")
    return records, damaged


def read_json(path: Path, *keys: str) -> dict[str, Any]:
    """A JSON object of a record that has the keys."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise DamagedRecord(path, "it is missing") from error
    except ValueError as error:  # also of bytes that are no text
        raise DamagedRecord(path, str(error)) from error
    if not isinstance(found, dict) or not found.keys() >= set(keys):
        raise DamagedRecord(path, f"it is no JSON object with {', '.join(keys)}")
    return found


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines at the start of a file; the first torn or foreign line ends it."""
    lines: list[dict[str, Any]] = []
    if not path.exists():
        return lines
    for raw in path.read_bytes().splitlines(keepends=True):
        try:
            line = json.loads(raw)
        except ValueError:
            break
        if not raw.endswith(b"\n") or not isinstance(line, dict) or "kind" not in line or "step" not in line:
            break
        lines.append(line)
    return lines


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """Add a line of JSON to a file, by one write to the operating system: kill -9 leaves it whole or absent."""
    data = (json.dumps(finite(line), allow_nan=False) + "\n").encode()
    with io.FileIO(path, "a") as file:
        written = file.write(data)
    if written != len(data):
        raise OSError(f"{path}: the disk took {written} of {len(data)} bytes")


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_bytes(path, (json.dumps(value, indent=1, default=str) + "\n").encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file that is either the old one or the new one, whatever happens in between."""
    aside = path.with_name(path.name + ".part")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        aside.unlink(missing_ok=True)  # on a full disk the half-written copy would only take what others need
        raise
    aside.replace(path)


def finite(value: Any) -> Any:
    """The value with every infinity and NaN as None: JSON has neither."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
