"""The paper's Training Settings I and II by their numbers; `augment.py` applies them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """How training images are varied, what of the network is regularized, and the loss.

    magnitude: RandAugment's M, on ImageNet (two operations, deviation 0.5, as timm has it); None: none.
    mixup, cutmix: α of Beta(α, α); each batch gets one of the two, by a fair coin; 0: neither.
    erasing: the share of images of which a rectangle becomes noise.
    smoothing: of the labels.
    loss: "ce", or "bce" with every class as a question of its own.
    crop: the smallest share of an ImageNet photograph that a random crop covers; CIFAR's are shifted by 4 pixels.
    center: the share of the shorter side that evaluation looks at.
    repeats: how often each image comes in an epoch, in other crops: repeated augmentation.
    cutout: the side in pixels of a square that each of CIFAR's images loses.
    stochastic_depth: the largest share of examples for which a residual branch is left out, at the last block.
    decay_all: biases and norms decay too.
    max_grad_norm: the limit of the gradient's norm; None: no limit.
    """

    name: str
    magnitude: int | None = None
    mixup: float = 0.0
    cutmix: float = 0.0
    erasing: float = 0.0
    smoothing: float = 0.0
    loss: str = "ce"
    crop: float = 0.08
    center: float = 0.875
    repeats: int = 1
    cutout: int = 0
    stochastic_depth: float = 0.0
    decay_all: bool = False
    max_grad_norm: float | None = None

    def words(self) -> str:
        """What of it works on batches, for the record of a run."""
        parts = [f"Mixup {self.mixup} or CutMix {self.cutmix}"] if self.mixup else []
        parts += [f"Random Erasing {self.erasing}"] if self.erasing else []
        parts += [f"label smoothing {self.smoothing}"] if self.smoothing else []
        return ", ".join([self.name, *parts, {"ce": "cross entropy", "bce": "binary cross entropy"}[self.loss]])


PLAIN = Setting("the vanilla setting")
SETTING_I = Setting("Training Setting I", magnitude=7, mixup=0.1, cutmix=1.0, loss="bce")
# The paper does not name the smoothing; the official settings of DeiT, Swin and ConvNeXt, which it follows, have 0.1.
SETTING_II = Setting("Training Setting II", magnitude=9, mixup=0.8, cutmix=1.0, erasing=0.25, smoothing=0.1)
