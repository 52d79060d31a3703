"""Which workloads exist: those of this package, one file each, and those of the user's own scripts."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
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
    """
    scales = {scale: size for scale, size in zip(SCALES, (smoke, small, paper), strict=True) if size is not None}

    def register(build: Builder) -> Builder:
        about = (summary or build.__doc__ or name).strip().splitlines()[0].rstrip(".")
        _workloads[name] = Workload(name, about, metric, higher_is_better, build, scales, after, options=options)
        return build

    return register


def load_script(path: Path | str) -> list[str]:
    """Import a user's file; the names of the workloads that it registers."""
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"--script {path}: no such file")
    before = workloads()
    spec = importlib.util.spec_from_file_location(f"adan_bench_script_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise UsageError(f"--script {path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    # Not by spec.loader, which takes a file that was edited within a second, to the same length, for the old one.
    exec(compile(file.read_bytes(), file, "exec"), module.__dict__)
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
