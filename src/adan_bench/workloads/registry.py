"""Which workloads exist: those of this package, one file each, and those of the user's own scripts."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import pkgutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from adan_bench.spec import SCALES, Context, Scale, Task, UsageError, Workload, unknown

_workloads: dict[str, Workload] = {}

Builder = Callable[[Context], Task]


def workload(
    name: str,
    *,
    metric: str,
    higher_is_better: bool,
    smoke: Scale,
    small: Scale | None = None,
    paper: Scale | None = None,
    after: str | None = None,
    summary: str = "",
    options: tuple[str, ...] = (),
    tune_metric: str = "",
) -> Callable[[Builder], Builder]:
    """Make a workload of a function that builds its `Task`.

    Args:
        name: what `adan-bench` calls it.
        metric: the number that counts, one of those that `Task.evaluate` returns.
        higher_is_better: whether that is so of the metric.
        smoke: minutes on two cores; the one scale that has to be there.
        small: minutes on one GPU.
        paper: as published.
        after: the workload whose final weights it starts from.
        summary: the function's first line of documentation unless given.
        options: what of the training a run may set otherwise; the function finds the values in `context.training`.
        tune_metric: another of those numbers, by which tuning trials are judged, so that a reported test split chooses
            no settings; the metric itself unless given.
    """
    scales = {scale: size for scale, size in zip(SCALES, (smoke, small, paper), strict=True) if size is not None}

    def register(build: Builder) -> Builder:
        about = (summary or build.__doc__ or name).strip().splitlines()[0].rstrip(".")
        _workloads[name] = Workload(
            name, about, metric, higher_is_better, build, scales, after, options=options, tune_metric=tune_metric
        )
        return build

    return register


def script_checksum(path: Path) -> str:
    """The SHA-256 of a user's file."""
    return hashlib.sha256(_content(path)).hexdigest()


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"--script {path}: {error.strerror}; give a Python file") from error


def where(error: BaseException, script: Path | None = None) -> str:
    """The last frame of the user's own script on the way to an error, else the last of all."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: {(error.text or '').strip()}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if script is not None and Path(frame.filename).resolve() == script.resolve()]
    frame = (own or frames)[-1]
    return f"{frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line}"


def load_script(path: Path | str, sha256: str = "") -> list[str]:
    """Import a user's file; the names of the workloads that it registers.

    sha256: of the file as it was when the study began, where a run of that study is to be made.
    """
    file = Path(path)
    content = _content(file)
    if sha256 and hashlib.sha256(content).hexdigest() != sha256:
        raise UsageError(f"--script {path}: it has changed since the study began; undo that, or begin anew")
    before = workloads()
    spec = importlib.util.spec_from_file_location(f"adan_bench_script_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise UsageError(f"--script {path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    # Not by spec.loader, which takes a file that was edited within a second, to the same length, for the old one.
    try:
        exec(compile(content, file, "exec"), module.__dict__)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        reason = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
        raise UsageError(f"--script {path}: {type(error).__name__}: {reason} ({where(error, file)})") from error
    names = [name for name, found in _workloads.items() if before.get(name) is not found]
    for name in names:
        if name in before and before[name].build.__module__.startswith("adan_bench."):
            _workloads[name] = before[name]
            raise UsageError(f"--script {path}: {name!r} is a bundled workload; give yours another name")
    if not names:
        raise UsageError(
            f"--script {path}: it registers no workload; decorate a function with @adan_bench.workload(...)"
        )
    return names


def workloads() -> dict[str, Workload]:
    """All workloads by name. Importing a workload's file is cheap: what it needs is imported when it is built."""
    from adan_bench import workloads as package

    for module in pkgutil.iter_modules(package.__path__):
        if not module.ispkg:
            importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(_workloads.items()))


def get_workload(name: str, scale: str = SCALES[0]) -> Workload:
    found = workloads()
    if name not in found:
        raise unknown("workload", name, found)
    return found[name].at(scale)
