"""DeepGCN on ogbn-proteins, else on generated graphs with planted labels in the same format.

Model and mini-batches are those of DeeperGCN (https://arxiv.org/abs/2006.07739): GENConv with softmax aggregation in
pre-activated residual blocks; each epoch cuts the nodes into random parts and trains on the graph inside each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adan_bench.data.files import PROTEINS_FILES
from adan_bench.task import Context, Scale, Task
from adan_bench.workloads.registry import workload

if TYPE_CHECKING:
    from torch import Tensor, nn

PARTS = 10  # an epoch's subgraphs, as the release of DeeperGCN trains; the batch size of this workload


@dataclass(frozen=True)
class GraphSizes:
    """held_out_parts: into which the graph is cut to evaluate; generated: nodes, edges of each, labels."""

    layers: int
    channels: int
    held_out_parts: int = 1
    generated: tuple[int, int, int] | None = None


@workload(
    "deepgcn",
    metric="ROC-AUC",
    higher_is_better=True,
    smoke=Scale(0.8, 100, 2, eval_every=20, sizes=GraphSizes(6, 32, generated=(1_000, 12, 8))),
    small=Scale(0.8, 1_000, PARTS, sizes=GraphSizes(24, 64, generated=(20_000, 40, 32))),
    # Adam, 1,000 epochs; the paper's table of DeepGCN
    paper=Scale(0.826, 1_000 * PARTS, PARTS, PARTS, PROTEINS_FILES, GraphSizes(24, 64, held_out_parts=5)),
)
def deepgcn(context: Context) -> Task:
    """DeepGCN (24 layers of 64 channels) on ogbn-proteins; the batch size is the number of parts of the graph."""
    import torch
    import torch.nn.functional as F
    from sklearn.metrics import roc_auc_score

    from adan_bench.data.graphs import mean_auc, parts_of, planted, read
    from adan_bench.workloads.parts.deepgcn import DeepGCN

    sizes: GraphSizes = context.sizes
    if sizes.generated is None:
        graph = read(context.path(PROTEINS_FILES[0]).parents[1])
        note = "ogbn-proteins"
    else:
        graph = planted(*sizes.generated)
        note = "a generated graph"
    note += f": {graph.nodes:,} nodes, {graph.edges.shape[1]:,} directed edges, {graph.labels.shape[1]} labels"
    drawn = torch.randint(sizes.held_out_parts, (graph.nodes,), generator=torch.Generator().manual_seed(0))
    held_out = graph.cut(drawn, sizes.held_out_parts)
    judged = graph.split["valid" if context.tuning else "test"]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        logits = model(batch["x"], batch["edges"], batch["features"])
        return F.binary_cross_entropy_with_logits(logits[batch["train"]].float(), batch["labels"][batch["train"]])

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        scores = torch.empty_like(graph.labels)
        for nodes, edges in held_out:
            part = {key: value.to(context.device) for key, value in graph.inside(nodes, edges).items()}
            scores[nodes] = model(part["x"], part["edges"], part["features"]).float().cpu()
        return {
            name: mean_auc(graph.labels[nodes], scores[nodes], roc_auc_score)
            for name, nodes in (("ROC-AUC", judged), ("validation ROC-AUC", graph.split["valid"]))
        }

    model = DeepGCN(graph, sizes.layers, sizes.channels)
    return Task(model, parts_of(graph, context), loss, evaluate, note)
