"""DeeperGCN on the citations of Cora, with the public split: a step sees the whole graph and 140 labels.

smoke: generated citations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from adan_bench.data.files import CITATIONS
from adan_bench.task import Context, Scale, Task
from adan_bench.workloads.deepgcn import GraphSizes
from adan_bench.workloads.registry import workload

if TYPE_CHECKING:
    from torch import Tensor, nn


@workload(
    "cora-deepgcn",
    metric="accuracy",
    higher_is_better=True,
    smoke=Scale(0.7, 80, 1, eval_every=20, sizes=GraphSizes(4, 16)),
    small=Scale(0.78, 300, 1, eval_every=10, needs=CITATIONS, sizes=GraphSizes(14, 64)),
)
def cora_deepgcn(context: Context) -> Task:
    """DeepGCN (14 layers of 64 channels) on the citations of Cora; the batch is the whole graph."""
    import torch.nn.functional as F

    from adan_bench.data.graphs import citations, made_up_citations
    from adan_bench.workloads.parts.classification import without_decay
    from adan_bench.workloads.parts.deepgcn import CitationGCN

    smoke, sizes = context.scale == "smoke", context.sizes
    graph = made_up_citations(400, 4) if smoke else citations(context)
    x, labels = graph.x.to(context.device), graph.labels.to(context.device)
    splits = "train", "valid" if context.tuning else "test"
    train, held_out = (graph.split[name].to(context.device) for name in splits)
    model = CitationGCN(graph.edges, x.shape[1], sizes.channels, sizes.layers, int(graph.labels.max()) + 1)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(x).index_select(0, train).float(), labels.index_select(0, train))

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        logits, answers = model(x)[held_out].float(), labels[held_out]
        accuracy = (logits.argmax(1) == answers).float().mean().item()
        return {"accuracy": accuracy, "loss": F.cross_entropy(logits, answers).item()}

    note = "generated citations" if smoke else "Cora, public split"
    note += f": {len(train)} of {len(x):,} nodes to train, {len(held_out):,} held out"
    return Task(model, lambda position: (), loss, evaluate, note, groups=without_decay)
