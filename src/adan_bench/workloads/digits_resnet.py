"""A small residual network on scikit-learn's handwritten digits."""

from __future__ import annotations

from adan_bench.spec import Context, Task
from adan_bench.workloads.registry import workload


@workload("digits-resnet", metric="accuracy", higher_is_better=True, target=0.93, steps=150, eval_every=15)
def digits_resnet(context: Context) -> Task:
    """ResNet (three stages of 16, 32 and 64 channels) on scikit-learn's digits."""
    from adan_bench.workloads.digits import digits_task
    from adan_bench.workloads.models import small_image_resnet

    return digits_task(small_image_resnet(1, [16, 32, 64], [1, 1, 1]), context)
