"""The paper's evaluation as a tool: Adan beside the optimizers it is compared with."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from adan_bench.task import Context, Scale, Task
from adan_bench.training.optimizers import optimizer
from adan_bench.workloads.registry import workload

if TYPE_CHECKING:
    from adan_bench.data.batching import shuffled
    from adan_bench.studies.suggest import suggest

__all__ = ["Context", "Scale", "Task", "optimizer", "shuffled", "suggest", "workload"]


def __getattr__(name: str) -> Any:
    """What imports torch, when it is asked for: that takes seconds, and `adan-bench list` needs none."""
    module = {"shuffled": "data.batching", "suggest": "studies.suggest"}.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"adan_bench.{module}"), name)
