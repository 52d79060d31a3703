"""DeeperGCN (https://arxiv.org/abs/2006.07739): GENConv with softmax aggregation in pre-activated residual blocks.

deepgcn: ogbn-proteins, else generated graphs with planted labels in the same format. Each epoch cuts the nodes into
random parts and trains on the graph inside each. cora-deepgcn: the citations of Cora with the public split, at smoke
scale generated ones; a step sees the whole graph and 140 labels.
"""

from __future__ import annotations

from dataclasses import dataclass

from adan_bench.data.files import CITATIONS, PROTEINS_FILES
from adan_bench.task import Scale
from adan_bench.workloads.registry import built_by, workload

PARTS = 10  # an epoch's subgraphs, as the release of DeeperGCN trains; the batch size of this workload


@dataclass(frozen=True)
class GraphSizes:
    """held_out_parts: into which the graph is cut to evaluate; generated: nodes, edges of each, labels."""

    layers: int
    channels: int
    held_out_parts: int = 1
    generated: tuple[int, int, int] | None = None


workload(
    "deepgcn",
    metric="ROC-AUC",
    higher_is_better=True,
    smoke=Scale(0.8, 100, 2, eval_every=20, sizes=GraphSizes(6, 32, generated=(1_000, 12, 8))),
    small=Scale(0.8, 1_000, PARTS, sizes=GraphSizes(24, 64, generated=(20_000, 40, 32))),
    # Adam, 1,000 epochs; the paper's table of DeepGCN
    paper=Scale(0.826, 1_000 * PARTS, PARTS, PARTS, PROTEINS_FILES, GraphSizes(24, 64, held_out_parts=5)),
    summary="DeepGCN (24 layers of 64 channels) on ogbn-proteins; the batch size is the number of parts of the graph",
    one_rank="a step trains on one graph",
)(built_by("deepgcn", "proteins_task"))

workload(
    "cora-deepgcn",
    metric="accuracy",
    higher_is_better=True,
    smoke=Scale(0.7, 80, 1, eval_every=20, sizes=GraphSizes(4, 16)),
    small=Scale(0.78, 300, 1, eval_every=10, needs=CITATIONS, sizes=GraphSizes(14, 64)),
    summary="DeepGCN (14 layers of 64 channels) on the citations of Cora; the batch is the whole graph",
    one_rank="a step trains on one graph",
)(built_by("deepgcn", "citations_task"))
