"""The ViT of cifar-vit, pre-trained as a masked autoencoder: `cifar-vit --init RUN` fine-tunes its encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from adan_bench.data.files import CIFAR
from adan_bench.task import Context, Scale, Task
from adan_bench.workloads.cifar_vit import SMALL, SMOKE
from adan_bench.workloads.registry import workload

if TYPE_CHECKING:
    from torch import Tensor, nn


@workload(
    "cifar-mae",
    metric="loss",
    higher_is_better=False,
    smoke=Scale(0.5, 100, sizes=SMOKE),
    small=Scale(0.55, 9750, 256, needs=CIFAR, sizes=SMALL),
)
def cifar_mae(context: Context) -> Task:
    """Masked autoencoder on CIFAR-10: a ViT of 6 layers sees a quarter of an image, a decoder of 2 draws the rest."""
    import torch

    from adan_bench.data.batching import generator
    from adan_bench.data.images import image_data
    from adan_bench.workloads.parts.classification import without_decay
    from adan_bench.workloads.parts.transformer import MaskedAutoencoder, ViT

    data = image_data(context)
    encoder = ViT(context.sizes, data.size, data.channels, classes=0)
    model = MaskedAutoencoder(encoder, context.sizes.width // 2, layers=2)
    patches = len(encoder.pos_embed)

    def batches(position: int) -> Any:
        return data.batches(position), noise(context.batch_size, context.seed, position, 2)

    def noise(count: int, *key: int) -> Tensor:
        return torch.rand(count, patches, generator=generator(*key))

    def prepare(batch: Any) -> tuple[Tensor, Tensor]:
        return data.gather(*batch[0])[0], batch[1]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        value: Tensor = model(*batch)
        return value

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        total, count = torch.zeros((), device=context.device), 0
        for number, (images, _) in enumerate(data.held_out()):
            total += model(data.normal(images), noise(len(images), number).to(context.device)) * len(images)
            count += len(images)
        return {"loss": total.item() / count}

    note = f"{data.note}; a quarter of the patches is seen"
    return Task(model, batches, loss, evaluate, note, max_grad_norm=1.0, groups=without_decay, prepare=prepare)
