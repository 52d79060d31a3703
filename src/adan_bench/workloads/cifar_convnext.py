"""A ConvNeXt of 8.5 million parameters on CIFAR-10. small: 25 epochs of 195 steps; smoke: digits, an eighth as wide."""

from __future__ import annotations

from adan_bench.data.files import CIFAR
from adan_bench.task import Context, Scale, Task
from adan_bench.workloads.cifar_vit import CUTOUT, SMOOTHED
from adan_bench.workloads.image_sizes import ImageSizes
from adan_bench.workloads.registry import workload


@workload(
    "cifar-convnext",
    metric="accuracy",
    higher_is_better=True,
    smoke=Scale(0.8, 100, sizes=ImageSizes(16, (1, 1), patch=0, window=0, head=0, deviation=0.12)),
    small=Scale(0.8, 4875, 256, needs=CIFAR, sizes=ImageSizes(64, (2, 2, 6, 2), 0, 0, 0, deviation=0.02)),
)
def cifar_convnext(context: Context) -> Task:
    """ConvNeXt of 12 blocks on CIFAR-10."""
    from adan_bench.data.images import Augmentation, image_data
    from adan_bench.workloads.parts.classification import classification_task, without_decay
    from adan_bench.workloads.parts.convnext import SmallConvNeXt

    data = image_data(context, Augmentation(cutout=CUTOUT))
    task = classification_task(SmallConvNeXt(context.sizes, data.channels, data.classes), data, context, SMOOTHED)
    task.groups = without_decay
    return task
