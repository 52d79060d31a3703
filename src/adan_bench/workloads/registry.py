"""Which workloads exist: those of this package, one file each, and those of the user's own scripts."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from adan_bench.spec import SCALES, Context, Task, UsageError, Workload

_workloads: dict[str, Workload] = {}

Builder = Callable[[Context], Task]


def workload(
    name: str,
    *,
    metric: str,
    higher_is_better: bool,
    target: float,
    steps: int,
    eval_every: int | None = None,
    batch_size: int = 64,
    needs: tuple[str, ...] = (),
    after: str | None = None,
    scales: Mapping[str, Mapping[str, Any]] | None = None,
) -> Callable[[Builder], Builder]:
    """Make a workload of a function that builds its `Task`; the function's first line of documentation is the summary.

    target: the value of the metric whose first reaching is timed.
    eval_every: steps between evaluations; a tenth of `steps` unless given.
    needs: files of the data folder without which it cannot run.
    after: the workload whose final weights it starts from.
    scales: what differs at the scales "small" and "paper", of: target, steps, eval_every, batch_size, needs.
    """

    def register(build: Builder) -> Builder:
        summary = (build.__doc__ or name).strip().splitlines()[0].rstrip(".")
        every = eval_every or max(1, steps // 10)
        larger = {}
        for scale, differs in (scales or {}).items():
            wrong = {*differs} - {"target", "steps", "eval_every", "batch_size", "needs"}
            if scale not in SCALES[1:] or wrong:
                raise ValueError(f"{name}: scales[{scale!r}] is {dict(differs)}; see the documentation of workload()")
            larger[scale] = {"eval_every": max(1, differs.get("steps", steps) // 10), **differs}
        _workloads[name] = Workload(
            name,
            summary,
            metric,
            higher_is_better,
            target,
            steps,
            every,
            batch_size,
            build,
            needs,
            after,
            scales=larger,
        )
        return build

    return register


def load_script(path: Path | str) -> list[str]:
    """Import a user's file; the names of the workloads that it registers."""
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"--script {path}: no such file")
    before = dict(_workloads)
    spec = importlib.util.spec_from_file_location(f"adan_bench_script_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise UsageError(f"--script {path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    names = [name for name, found in _workloads.items() if before.get(name) is not found]
    if not names:
        raise UsageError(
            f"--script {path}: it registers no workload; decorate a function with @adan_bench.workload(...)"
        )
    return names


def workloads() -> dict[str, Workload]:
    """All workloads by name. Importing a workload's file is cheap: what it needs is imported when it is built."""
    from adan_bench import workloads as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(_workloads.items()))


def get_workload(name: str, scale: str = SCALES[0]) -> Workload:
    found = workloads()
    if name not in found:
        raise UsageError(f"no workload {name!r}; there are: {', '.join(found)}")
    return found[name].at(scale)
