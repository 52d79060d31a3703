"""The paper's evaluation as a tool: Adan beside the optimizers it is compared with."""

from adan_bench.data.batching import shuffled
from adan_bench.spec import Context, Task
from adan_bench.workloads.registry import workload

__all__ = ["Context", "Task", "shuffled", "workload"]
