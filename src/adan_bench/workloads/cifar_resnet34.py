"""ResNet-34 on CIFAR-10, the setting in which AdaBelief and Adan are compared on small images."""

from __future__ import annotations

from adan_bench.data.augment import PLAIN
from adan_bench.data.images import CIFAR, Views, cifar10, digits
from adan_bench.spec import Context, Task
from adan_bench.workloads.classification import classification_task
from adan_bench.workloads.models import small_image_resnet
from adan_bench.workloads.registry import workload

# AdaBelief's code, which the paper refers to: 200 epochs of 390 steps, the learning rate divided by 10 at epoch 150
# (--schedule step --warmup 0). small is 5 epochs: under a minute on a recent GPU.
SMALL = {"target": 0.8, "steps": 1950, "eval_every": 195, "batch_size": 128, "needs": CIFAR}
PAPER = {**SMALL, "target": 0.9428, "steps": 78_000, "eval_every": 390}


@workload(
    "cifar-resnet34",
    metric="accuracy",
    higher_is_better=True,
    target=0.65,
    steps=80,
    scales={"small": SMALL, "paper": PAPER},
)
def cifar_resnet34(context: Context) -> Task:
    """ResNet-34 on CIFAR-10, random crops and flips; at smoke scale narrow, on digits."""
    smoke = context.scale == "smoke"
    data = digits(context) if smoke else cifar10(context, Views())
    widths = [8, 16, 32, 64] if smoke else [64, 128, 256, 512]
    return classification_task(small_image_resnet(data.channels, widths, [3, 4, 6, 3]), data, context, PLAIN)
