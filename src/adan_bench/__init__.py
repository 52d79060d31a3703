"""The paper's evaluation as a tool: Adan beside the optimizers it is compared with."""

from adan_bench.data import shuffled
from adan_bench.registry import workload
from adan_bench.spec import Context, Task

__all__ = ["Context", "Task", "shuffled", "workload"]
