"""The ViT of cifar-vit, pre-trained as a masked autoencoder: `cifar-vit --init RUN` fine-tunes its encoder."""

from __future__ import annotations

from adan_bench.data.files import CIFAR
from adan_bench.task import Context, Scale, Task
from adan_bench.workloads.cifar_vit import SMALL, SMOKE
from adan_bench.workloads.registry import workload


@workload(
    "cifar-mae",
    metric="loss",
    higher_is_better=False,
    smoke=Scale(0.5, 100, sizes=SMOKE),
    small=Scale(0.55, 9750, 256, needs=CIFAR, sizes=SMALL),
)
def cifar_mae(context: Context) -> Task:
    """Masked autoencoder on CIFAR-10: a ViT of 6 layers sees a quarter of an image, a decoder of 2 draws the rest."""
    from adan_bench.data.images import image_data
    from adan_bench.workloads.parts.mae import autoencoding
    from adan_bench.workloads.parts.transformer import MaskedAutoencoder, ViT

    data, sizes = image_data(context), context.sizes
    model = MaskedAutoencoder(ViT(sizes, data.size, data.channels, classes=0), sizes.width // 2, layers=2)
    task = autoencoding(model, lambda model, images, noise: model(images, noise), sizes.patch, data, context)
    task.max_grad_norm = 1.0
    return task
