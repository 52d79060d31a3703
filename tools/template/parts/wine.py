"""Template of a bundled workload: what is trained. Copy this file to src/adan_bench/workloads/parts/.

Packages beyond torch and the extra `bench` go into `PACKAGES` of workloads/registry.py and the extra `paper`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from adan_bench.data.batching import shuffled
from adan_bench.task import Context, Task


def wine(context: Context) -> Task:
    """A classifier of 178 wines, of which every fourth is held out."""
    from sklearn.datasets import load_wine

    x, y = (torch.tensor(array) for array in load_wine(return_X_y=True))
    x = ((x - x.mean(0)) / x.std(0)).float()
    chosen = torch.arange(len(x)) % 4 > 0
    model = nn.Sequential(nn.Linear(13, context.sizes.width), nn.ReLU(), nn.Linear(context.sizes.width, 3))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        held_out = x[~chosen].to(context.device)
        return {"accuracy": (model(held_out).argmax(1).cpu() == y[~chosen]).float().mean().item()}

    batches = shuffled([x[chosen], y[chosen]], context.batch_size, context.seed)
    return Task(model, batches, loss, evaluate, note="scikit-learn's wines")
