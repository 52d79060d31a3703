"""Which workloads exist: those of this package, a file for each family, and those of the user's own script.

The files of this folder say what a workload is: its scales, sizes and targets. Importing them is cheap. `parts/` has
what is trained, imported when a workload is built.
"""

from __future__ import annotations

import importlib.util
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

from adan_bench.errors import UsageError, check_name, short, unknown
from adan_bench.task import SCALES, Context, Scale, Task, Workload

_workloads: dict[str, Workload] = {}

#: What files of `parts` import beside torch and the packages of the extra `bench`; all are of the extra `paper`, but
#: for torchvision.
PACKAGES = {
    **dict.fromkeys(("bert", "classification", "deformable_detr", "english", "gpt", "mae"), ("transformers",)),
    "deepgcn": ("torch_geometric", "transformers"),
    "mask_rcnn": ("transformers", "pycocotools", "torchvision"),
    "ppo": ("gymnasium", "mujoco", "stable_baselines3"),
}

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
    tune_higher_is_better: bool | None = None,
    one_rank: str = "",
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
        tune_higher_is_better: whether that is so of `tune_metric`; as of the metric unless given.
        one_rank: why several processes cannot share a run; empty: they can.
    """
    check_name("@workload", name, marks="_.+-")
    where = f"@workload({name!r})"
    number, absent = "the name of a number that evaluate returns", type(None)
    for argument, value, kinds, right in (
        ("metric", metric or None, str, number),
        ("higher_is_better", higher_is_better, bool, "True or False"),
        ("after", after, (str, absent), "the name of a workload"),
        ("summary", summary, str, "a line of text"),
        ("options", options, (tuple, list), "a tuple of names"),
        ("tune_metric", tune_metric, str, number),
        ("tune_higher_is_better", tune_higher_is_better, (bool, absent), "True or False"),
        ("one_rank", one_rank, str, "a reason, as text"),
    ):
        if not isinstance(value, kinds):
            raise UsageError(f"{where}: {argument} must be {right}, got {short(value)}")
    if tune_higher_is_better is not None and not tune_metric:
        raise UsageError(f"{where}: tune_higher_is_better without a tune_metric; give both or neither")
    scales = dict(zip(SCALES, (smoke, small, paper), strict=True))
    for scale, size in scales.items():
        if not isinstance(size, Scale) and (size is not None or scale == SCALES[0]):
            raise UsageError(
                f"{where}: {scale} must be a Scale, got {short(size)}; for example Scale(target=0.9, steps=100)"
            )
    there = {scale: size for scale, size in scales.items() if size is not None}

    def register(build: Builder) -> Builder:
        if name in _workloads and is_bundled(_workloads[name]) and not build.__module__.startswith("adan_bench."):
            raise UsageError(f"{name!r} is a bundled workload; give yours another name")
        try:
            inspect.signature(build).bind(None)
        except TypeError as error:
            got = f"def {build.__name__}{inspect.signature(build)}"
            raise UsageError(f"{where}: its function must take one argument, the context, got {got}") from error
        judged = tune_metric, tune_higher_is_better, one_rank
        about = (summary or build.__doc__ or name).strip().splitlines()[0].rstrip(".")
        _workloads[name] = Workload(
            name, about, metric, higher_is_better, build, there, after, SCALES[0], options, *judged
        )
        return build

    return register


def built_by(module: str, function: str, *arguments: Any) -> Builder:
    """The builder that calls `function(context, *arguments)` of a module of `parts`, imported when it is called."""

    def build(context: Context) -> Task:
        part = importlib.import_module(f"adan_bench.workloads.parts.{module}")
        task: Task = getattr(part, function)(context, *arguments)
        return task

    build.__qualname__ = f"{module}.{function}"
    return build


def is_bundled(workload: Workload) -> bool:
    return workload.build.__module__.startswith("adan_bench.")


def packages(workload: Workload) -> tuple[str, ...]:
    """The packages of an extra that a bundled workload needs."""
    return PACKAGES.get(workload.build.__qualname__.partition(".")[0], ())


def extras(workload: Workload) -> str:
    """The extras of this package that a bundled workload needs, separated by commas."""
    needed = packages(workload)
    return "paper,vision" if "torchvision" in needed else "paper" if needed else ""


def absent(workload: Workload) -> list[str]:
    """The packages that a bundled workload needs and that are not installed."""
    return [name for name in packages(workload) if importlib.util.find_spec(name) is None]


def check_packages(workload: Workload) -> None:
    """Refuse a bundled workload without the packages that it needs, before any work."""
    for name in absent(workload):
        raise UsageError(f"{workload.name} needs the package {name}; run: pip install '.[{extras(workload)}]'")


def workloads() -> dict[str, Workload]:
    from adan_bench import workloads as package

    for module in pkgutil.iter_modules(package.__path__):
        if not module.ispkg:
            importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(_workloads.items()))


def get_workload(name: str, scale: str = SCALES[0]) -> Workload:
    known = workloads()
    if name not in known:
        error = unknown("workload", name, known, see="adan-bench list workloads")
        raise UsageError(f"{error} (a workload of your own needs --script FILE)")
    return known[name].at(scale)
