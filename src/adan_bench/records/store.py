"""Runs on disk: one directory each, written so that being killed at any moment loses nothing that was written before.

    config.json       the configuration and the facts of workload and optimizer     written once, atomically
    environment.json  commit, versions, hardware                                     written once, atomically
    metrics.jsonl     one JSON object a line, appended                               a torn last line is ignored
    checkpoint-STEP-SHA256.pt   the last two; the name holds the checksum            written aside, then renamed
    weights.pt        the final weights, where they were asked for; with --ema their average, which was evaluated
    result.json       status and final numbers; its presence means that the run ended
    traceback.txt     of an error, where there was one
    run.lock          locked while a process writes the run; empty

A checkpoint knows how many lines of metrics.jsonl belong to it. Resuming cuts the file back to them, so that the
repeated steps write each line once.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from adan_bench.config import RunConfig, RunRecord, flag
from adan_bench.errors import UsageError, WorkloadError, listing
from adan_bench.locking import Lock

KEEP = 2  # checkpoints; the older one is used if the newest is damaged
LOCK = "run.lock"
ARCHIVE = "runs.jsonl"  # the file in which a report packs its runs

Facts = Mapping[str, Any]
Kinds = dict[str, tuple[type, ...]]  # of the values of a JSON object, by key
TEXT, NUMBER, OBJECT, NONE = (str,), (int, float), (dict,), (type(None),)
FACTS: Kinds = {"config": OBJECT, "workload": OBJECT, "optimizer": OBJECT}  # config.json
WORKLOAD: Kinds = {"metric": TEXT, "higher_is_better": (bool, int), "target": (*NUMBER, *NONE), "summary": TEXT}
RESULT: Kinds = {"status": TEXT, "step": (int,), "seconds": NUMBER, "final": OBJECT, "best": (*NUMBER, *NONE)}
ENVIRONMENT: Kinds = {"packages": OBJECT, "parameters": (*NUMBER, *NONE)}  # where it has them
STATUSES = ("finished", "diverged", "failed")
#: By the annotation of a field of `RunConfig`; null in a record is the field's default.
FIELDS: Kinds = {
    "int": (int,),
    "float": NUMBER,
    "bool": (bool,),
    **dict.fromkeys(("str", "str | None", "Path | None"), TEXT),
    **dict.fromkeys(("Settings", "Settings | None"), OBJECT),
}
CONFIG: Kinds = {f.name: (*FIELDS[str(f.type)], *NONE) for f in fields(RunConfig) if str(f.type) in FIELDS}
NEEDED: Kinds = {"workload": TEXT, "optimizer": TEXT, "settings": OBJECT}  # of these, what no default replaces


class DamagedRecord(UsageError):
    """A file of a record that cannot be read; the message names it and the remedy."""

    def __init__(self, file: Path, why: str, remedy: str = "") -> None:
        self.why = why
        remedy = remedy or f"remove {file.parent}, and --resume makes this run again"
        super().__init__(f"{file} is damaged ({why}); {remedy}")


class RunLocked(UsageError):
    """Another process is writing the run or has made it: write nothing there, not even that it failed."""


class RunStore:
    """The directory of one run, for the process that writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = 0
        self._checked = False  # whether a checkpoint of this process could be loaded
        self._lock = Lock(path / LOCK)

    def lock(self) -> None:
        """Keep other processes from writing this run until `close`."""
        refusal = (
            f"{self.path}: another process is writing this run; wait until it ends, or stop it and use --resume, or "
            "choose another --out"
        )
        self._lock.take(RunLocked(refusal))

    def close(self) -> None:
        self._lock.close()

    @property
    def exists(self) -> bool:
        return (self.path / "config.json").exists()

    def check_new(self) -> None:
        if self.exists:
            raise RunLocked(f"{self.path} already holds a run; continue with --resume or choose another --out")

    @property
    def ended(self) -> bool:
        return (self.path / "result.json").exists()

    def create(self, config: RunConfig, workload: Facts, optimizer: Facts, environment: Facts) -> None:
        """Begin a run. config.json is written last: a directory that has it has the rest."""
        self.check_new()
        self.path.mkdir(parents=True, exist_ok=True)
        self.cut(0)
        self.describe(environment)
        facts = {"config": config.to_json(), "workload": dict(workload), "optimizer": dict(optimizer)}
        write_json(self.path / "config.json", facts)

    def describe(self, environment: Facts) -> None:
        write_json(self.path / "environment.json", environment)

    @property
    def described(self) -> bool:
        """Whether the run was ever under way; one that could not be built has a record without an environment."""
        return (self.path / "environment.json").exists()

    def check_same(self, config: RunConfig) -> RunConfig | None:
        """The configuration that the run began with. It continues with the same, but for what the machine offers.

        None: the script has changed, and with the old one the run came to neither a checkpoint nor an end other than a
        failure, so that it is to be made anew.
        """
        begun, _ = read_config(self.path)
        differing = config.differences(begun)
        failed = {"status": "failed"}
        if "script_sha256" in differing and not self.checkpoints() and (self.result() or failed)["status"] == "failed":
            return None
        if differing:
            changed = {
                "script_sha256": f"the script {config.script} has changed, and this was made with the old one",
                "init_sha256": f"the weights of --init {config.init} are others",
            }
            texts = [f"{flag(name)}: {getattr(begun, name)} there, {getattr(config, name)} now" for name in differing]
            parts = ", ".join(changed.get(name, text) for name, text in zip(differing, texts, strict=True))
            raise UsageError(f"--resume: {self.path} holds another run ({parts}); undo that, or choose a new --out")
        return begun

    def check_data(self, note: str, data: Path | None) -> None:
        """Refuse to go on with other data than the run began with. note: what its task says of them, if anything."""
        began = str(read_json(self.path / "environment.json").get("data", ""))
        before = read_config(self.path)[0].data
        if note == began and (note or None in (data, before) or data == before):
            return
        there, now = (f"--data {folder}: {said or 'no note'}" for folder, said in ((before, began), (data, note)))
        raise UsageError(f"--resume: {self.path} began with other data ({there}; now {now}); give the same")

    def append(self, line: Mapping[str, Any]) -> None:
        append_line(self.path / "metrics.jsonl", line)
        self._lines += 1

    def checkpoint(self, step: int, state: Mapping[str, Any]) -> None:
        """Write a checkpoint beside the old ones and, once it is safe, remove all but the newest two."""
        with (self.path / "metrics.jsonl").open("ab") as file:
            os.fsync(file.fileno())  # a checkpoint must never be safer than the lines that it counts
        payload = _saved({"state": dict(state), "step": step, "lines": self._lines})
        if not self._checked:
            _loaded(payload)
            self._checked = True
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
        paths = self.checkpoints()
        return int(paths[0].name.split("-")[1]) if paths else 0

    def restore(self) -> dict[str, Any] | None:
        """The newest checkpoint that is whole and whose lines are there; the metrics are cut back to it.

        None, and no metrics, where there is none: the run starts anew.
        """
        lines = read_lines(self.path / "metrics.jsonl")
        for path in self.checkpoints():
            payload = path.read_bytes()
            if hashlib.sha256(payload).hexdigest() != path.stem.rpartition("-")[2]:
                path.rename(path.with_suffix(".damaged"))
                continue
            content = _loaded(payload)
            if content["lines"] <= len(lines):
                self.cut(content["lines"])
                state: dict[str, Any] = content["state"]
                return state
        self.cut(0)
        return None

    def cut(self, lines: int) -> None:
        """Keep the first lines of the metrics, and no others."""
        path = self.path / "metrics.jsonl"
        head = path.read_bytes().splitlines(keepends=True)[:lines] if path.exists() else []
        write_bytes(path, b"".join(head))
        self._lines = lines

    def keep_weights(self, weights: Mapping[str, Any]) -> None:
        """Write the final weights, for a run that starts from them."""
        write_bytes(self.path / "weights.pt", _saved(weights))

    def result(self) -> dict[str, Any] | None:
        """How the run ended; None where it did not."""
        if not self.ended:
            return None
        file = self.path / "result.json"
        result = read_json(file)
        check_result(file, result)
        return result

    def finish(self, result: Mapping[str, Any]) -> None:
        """End the run; its checkpoints have done their work unless it failed."""
        write_json(self.path / "result.json", finite(result))
        if result["status"] != "failed":
            for path in self.checkpoints():
                path.unlink(missing_ok=True)

    def reopen(self) -> None:
        """Remove the result of a failed run, so that it can continue."""
        for name in ("result.json", "traceback.txt"):
            (self.path / name).unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove a run that came to nothing; config.json last: without it the rest would count as damaged."""
        for name in ("result.json", "traceback.txt", "metrics.jsonl", "environment.json", "config.json"):
            (self.path / name).unlink(missing_ok=True)


def _saved(content: Mapping[str, Any]) -> bytes:
    import torch

    buffer = io.BytesIO()
    torch.save(dict(content), buffer)
    return buffer.getvalue()


def _loaded(payload: bytes) -> dict[str, Any]:
    """A checkpoint, which must hold nothing but data: no code runs when it is loaded."""
    import torch

    try:
        content: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        raise WorkloadError(
            f"no run can be resumed from a checkpoint with a {found[1] if found else 'value'} in it; keep tensors and "
            "plain numbers in the state of the optimizer and of the batches"
        ) from error
    return content


class NoStore(RunStore):
    """For the ranks beside the first: they write nothing."""

    def append(self, line: Mapping[str, Any]) -> None: ...

    def checkpoint(self, step: int, state: Mapping[str, Any]) -> None: ...

    def keep_weights(self, weights: Mapping[str, Any]) -> None: ...

    def finish(self, result: Mapping[str, Any]) -> None: ...


def runs_below(folder: Path) -> list[Path]:
    """The folders of runs in a folder, itself among them."""
    return [file.parent for file in folder.rglob("config.json") if _is_run(file.parent)]


def check_empty(out: Path, resume: bool = False) -> None:
    """A new study begins in a folder without runs."""
    if not resume and runs_below(out):
        raise UsageError(f"--out {out}: it already holds runs; add --resume to continue, or name another folder")


def read_run(path: Path) -> RunRecord:
    """The record of one run. The curves of a run that was killed end at the first torn line."""
    store = RunStore(path)
    config, facts = read_config(path)
    environment = read_json(path / "environment.json") if store.described else {}
    check_environment(path / "environment.json", environment)
    metrics, result = read_lines(path / "metrics.jsonl"), store.result()
    if result is not None and result["status"] in ("finished", "diverged"):
        _check_end(path, facts["workload"]["metric"], metrics, result)
    return RunRecord(path, config, facts["workload"], facts["optimizer"], environment, metrics, result)


def read_config(path: Path) -> tuple[RunConfig, dict[str, Any]]:
    """The configuration of a run, and all of the file that holds it."""
    file = path / "config.json"
    facts = read_json(file)
    check_config(file, facts)
    return RunConfig.from_json(facts["config"]), facts


def check_config(file: Path, facts: Mapping[str, Any]) -> None:
    """Whether the facts of a run are whole: its configuration, workload and optimizer."""
    check(file, facts, FACTS)
    config = facts["config"]
    check(file, {**dict.fromkeys(CONFIG), **config}, CONFIG)
    check(file, config, NEEDED)
    check(file, config["settings"], {"lr": NUMBER})
    check(file, facts["workload"], WORKLOAD)


def check_environment(file: Path, environment: Mapping[str, Any]) -> None:
    check(file, {"packages": {}, "parameters": None, **environment}, ENVIRONMENT)


def check_result(file: Path, result: Mapping[str, Any]) -> None:
    check(file, {"best": None, **result}, RESULT)
    check(file, result["final"], dict.fromkeys(result["final"], (*NUMBER, *NONE)))
    if result["status"] not in STATUSES:
        raise DamagedRecord(file, f"status is {result['status']!r}, not one of {', '.join(STATUSES)}")


def _check_end(path: Path, metric: str, metrics: list[dict[str, Any]], result: Mapping[str, Any]) -> None:
    """Whether the files of a run that ended agree on its end."""
    file = path / "metrics.jsonl"
    if not file.exists():
        raise DamagedRecord(file, "it is missing")
    if len(metrics) < file.read_bytes().count(b"\n"):
        raise DamagedRecord(file, f"line {len(metrics) + 1} is not one of a run")
    last = metrics[-1]["step"] if metrics else 0
    if last != result["step"]:
        raise DamagedRecord(file, f"it ends at step {last}, the run at step {result['step']}")
    if result["status"] == "finished" and metric not in result["final"]:
        raise DamagedRecord(path / "result.json", f"final has no {metric}")


def read_runs(folder: Path) -> tuple[list[RunRecord], list[DamagedRecord]]:
    """Every run under a folder, in the order of their paths, and what is wrong with those left out."""
    if not folder.exists():
        parent = folder.absolute().parent
        raise UsageError(f"{folder}: no such folder; {parent} holds: {listing(parent)}")
    files = [file for name in ("config.json", "result.json") for file in folder.rglob(name)]
    paths = [path for path in sorted({file.parent for file in files}) if _is_run(path)]
    if not paths:
        raise UsageError(f"{folder}: no runs there; it holds: {listing(folder)}")
    records, damaged = [], []
    for path in paths:
        try:
            records.append(read_run(path))
        except DamagedRecord as error:
            damaged.append(error)
    return records, damaged


def _is_run(path: Path) -> bool:
    """Whether a folder with a config.json or a result.json is that of a run: other programs write such files too."""
    if (path / "metrics.jsonl").exists():
        return True
    for name, keys in (("config.json", {*FACTS}), ("result.json", {"status"})):
        try:
            if keys & read_json(path / name).keys():
                return True
        except DamagedRecord:
            continue
    return False


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DamagedRecord(path, "it is missing") from error
    except ValueError as error:  # also of bytes that are no text
        raise DamagedRecord(path, str(error)) from error
    if not isinstance(content, dict):
        raise DamagedRecord(path, "it is no JSON object")
    return content


def check(path: Path, values: Mapping[str, Any], kinds: Kinds) -> None:
    """Whether an object of a file has the keys, with values of their kinds."""
    for key, kind in kinds.items():
        if key not in values:
            raise DamagedRecord(path, f"it has no {key}")
        if not _is(values[key], kind):
            raise DamagedRecord(path, f"{key} is {values[key]!r}")


def _is(value: Any, kind: tuple[type, ...]) -> bool:
    """isinstance, except that true and false are not numbers."""
    return isinstance(value, kind) and (bool in kind or not isinstance(value, bool))


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
        if not raw.endswith(b"\n") or not isinstance(line, dict):
            break
        if not (_is(line.get("kind"), TEXT) and _is(line.get("step"), (int,))):
            break
        numbers = [value for key, value in line.items() if key != "kind"] if line["kind"] in ("train", "eval") else []
        if numbers and not ("seconds" in line and all(_is(value, (*NUMBER, *NONE)) for value in numbers)):
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
    return each(value, lambda leaf: None if isinstance(leaf, float) and not math.isfinite(leaf) else leaf)


def each(value: Any, change: Callable[[Any], Any]) -> Any:
    """A value of JSON with a function of every number, text and so on in place of it."""
    if isinstance(value, Mapping):
        return {key: each(item, change) for key, item in value.items()}
    return [each(item, change) for item in value] if isinstance(value, (list, tuple)) else change(value)
