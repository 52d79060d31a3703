"""A small residual network on scikit-learn's handwritten digits."""

from __future__ import annotations

from adan_bench.task import Context, Scale, Task
from adan_bench.workloads.registry import workload


@workload("digits-resnet", metric="accuracy", higher_is_better=True, smoke=Scale(target=0.93, steps=150))
def digits_resnet(context: Context) -> Task:
    """ResNet (three stages of 16, 32 and 64 channels) on scikit-learn's digits."""
    from adan_bench.data.images import digits
    from adan_bench.data.settings import PLAIN
    from adan_bench.workloads.parts.classification import classification_task
    from adan_bench.workloads.parts.networks import resnet

    data = digits(context)
    return classification_task(resnet([16, 32, 64], [1, 1, 1], data), data, context, PLAIN)
