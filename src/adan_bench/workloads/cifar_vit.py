"""A ViT of 4.8 million parameters on CIFAR-10, with which optimizers are compared in minutes.

smoke: digits, at an eighth of the width and two layers. small: 20 epochs of 195 steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from adan_bench.data.files import CIFAR
from adan_bench.data.settings import PLAIN
from adan_bench.errors import UsageError
from adan_bench.task import Context, Scale, Task
from adan_bench.workloads.image_sizes import ImageSizes, image_sizes
from adan_bench.workloads.registry import workload

if TYPE_CHECKING:
    from adan_bench.workloads.parts.transformer import ViT

CUTOUT = 8  # pixels
SMOOTHED = replace(PLAIN, smoothing=0.1)
SMOKE = image_sizes("vit", 256, [6])[0]
SMALL = ImageSizes(256, (6,), patch=4, window=0, head=64, deviation=0.02)


@workload(
    "cifar-vit",
    metric="accuracy",
    higher_is_better=True,
    smoke=Scale(0.6, 100, sizes=SMOKE),
    small=Scale(0.7, 3900, 256, needs=CIFAR, sizes=SMALL),
)
def cifar_vit(context: Context) -> Task:
    """ViT of 6 layers on CIFAR-10; with --init a run of cifar-mae, its encoder fine-tuned."""
    from adan_bench.data.images import Augmentation, image_data
    from adan_bench.workloads.parts.classification import classification_task, without_decay
    from adan_bench.workloads.parts.transformer import ViT

    data = image_data(context, Augmentation(cutout=CUTOUT))
    model = ViT(context.sizes, data.size, data.channels, data.classes)
    if context.init is not None:
        begin(model, context)
    task = classification_task(model, data, context, SMOOTHED)
    task.max_grad_norm, task.groups = 1.0, without_decay
    return task


def begin(model: ViT, context: Context) -> None:
    """Load the weights of another run of this model, or an autoencoder's encoder, to which the head is new."""
    weights, prefix = context.weights(), "encoder."
    encoder = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    own = {name: value for name, value in model.state_dict().items() if name.startswith("head.")}
    try:
        model.load_state_dict({**own, **encoder} if encoder else weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[1].strip()
        raise UsageError(
            f"--init {context.init}: these are not the weights of this ViT ({reason}); name a run of cifar-mae or "
            "cifar-vit at the same scale"
        ) from error
