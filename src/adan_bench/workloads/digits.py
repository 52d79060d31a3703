"""scikit-learn's 1,797 handwritten digits of 8×8 pixels, as the task of any image classifier of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adan_bench.data.batching import shuffled
from adan_bench.spec import Context, Task

HELD_OUT = 360


def digits_task(model: nn.Module, context: Context) -> Task:
    """The first 1,437 digits train, the last 360 (other writers, for the most part) are held out."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    labels = torch.tensor(digits.target)
    held_out = images[-HELD_OUT:].to(context.device), labels[-HELD_OUT:].to(context.device)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]).logits.float(), batch[1])

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        logits = model(held_out[0]).logits.float()
        return {
            "accuracy": (logits.argmax(1) == held_out[1]).float().mean().item(),
            "loss": F.cross_entropy(logits, held_out[1]).item(),
        }

    batches = shuffled([images[:-HELD_OUT], labels[:-HELD_OUT]], context.batch_size, context.seed)
    return Task(model, batches, loss, evaluate, note="scikit-learn digits: 1,437 to train, 360 held out")
