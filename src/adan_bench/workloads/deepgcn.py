"""DeepGCN on ogbn-proteins, else on generated graphs with planted labels in the same format.

Model and mini-batches are those of DeeperGCN (https://arxiv.org/abs/2006.07739): GENConv with softmax aggregation in
pre-activated residual blocks; each epoch cuts the nodes into random parts and trains on the graph inside each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adan_bench.spec import Context, Task, UsageError
from adan_bench.workloads.registry import workload

FOLDER = "ogbn_proteins"
RAW = ("edge", "edge-feat", "num-edge-list", "node_species", "node-label")
SPLITS = ("train", "valid", "test")
NEEDS = (
    *(f"{FOLDER}/raw/{name}.csv.gz" for name in RAW),
    *(f"{FOLDER}/split/species/{name}.csv.gz" for name in SPLITS),
)
LAYERS = {"smoke": 6, "small": 24, "paper": 24}
CHANNELS = {"smoke": 32, "small": 64, "paper": 64}
PARTS = 10  # an epoch's subgraphs, as the release of DeeperGCN trains; the batch size of this workload
HELD_OUT_PARTS = {"smoke": 1, "small": 1, "paper": 5}


@dataclass
class Graph:
    """An undirected graph: every edge lies in `edges` in both directions, `features` and `x` have eight columns."""

    edges: Tensor  # 2 × E
    features: Tensor  # E × 8
    species: Tensor  # N × 8, one of them is 1
    labels: Tensor  # N × tasks
    split: dict[str, Tensor]  # numbers of nodes

    def __post_init__(self) -> None:
        self.nodes = len(self.labels)
        self.x = torch.zeros(self.nodes, self.features.shape[1]).index_add_(0, self.edges[1], self.features)
        self.trains = torch.zeros(self.nodes, dtype=torch.bool)
        self.trains[self.split["train"]] = True

    def cut(self, order: Tensor, parts: int) -> list[tuple[Tensor, Tensor]]:
        """The nodes in `parts` parts by their order, each with the numbers of the edges inside it."""
        chunks = order.chunk(parts)
        part = torch.empty(self.nodes, dtype=torch.long)
        for i, chunk in enumerate(chunks):
            part[chunk] = i
        of_edges = torch.where(part[self.edges[0]] == part[self.edges[1]], part[self.edges[0]], -1)
        return [(chunk, (of_edges == i).nonzero()[:, 0]) for i, chunk in enumerate(chunks)]

    def inside(self, nodes: Tensor, edges: Tensor) -> dict[str, Tensor]:
        """The graph of these nodes and edges, and which of the nodes train."""
        place = torch.empty(self.nodes, dtype=torch.long)
        place[nodes] = torch.arange(len(nodes))
        return {
            "x": torch.cat([self.x[nodes], self.species[nodes]], 1),
            "edges": place[self.edges[:, edges]],
            "features": self.features[edges],
            "labels": self.labels[nodes],
            "train": self.trains[nodes],
        }


@workload(
    "deepgcn",
    metric="ROC-AUC",
    higher_is_better=True,
    target=0.8,
    steps=100,
    eval_every=20,
    batch_size=2,
    scales={
        "small": {"target": 0.8, "steps": 1_000, "batch_size": PARTS},
        "paper": {
            "target": 0.826,  # Adam, 1,000 epochs; the paper's table of DeepGCN
            "steps": 1_000 * PARTS,
            "eval_every": 5 * PARTS,
            "batch_size": PARTS,
            "needs": NEEDS,
        },
    },
)
def deepgcn(context: Context) -> Task:
    """DeepGCN (24 layers of 64 channels) on ogbn-proteins; the batch size is the number of parts of the graph."""
    from sklearn.metrics import roc_auc_score

    if context.scale == "paper":
        graph = read(context.path(NEEDS[0]).parents[1])
        note = "ogbn-proteins"
    else:
        graph = planted(*{"smoke": (1_000, 12, 8), "small": (20_000, 40, 32)}[context.scale])
        note = "a generated graph"
    note += f": {graph.nodes:,} nodes, {graph.edges.shape[1]:,} directed edges, {graph.labels.shape[1]} labels"
    order = torch.randperm(graph.nodes, generator=torch.Generator().manual_seed(0))
    held_out = graph.cut(order, HELD_OUT_PARTS[context.scale])

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
            for name, nodes in (("ROC-AUC", graph.split["test"]), ("validation ROC-AUC", graph.split["valid"]))
        }

    model = DeepGCN(graph, LAYERS[context.scale], CHANNELS[context.scale])
    return Task(model, parts_of(graph, context), loss, evaluate, note)


class DeepGCN(nn.Module):
    """Encoders of nodes and edges, residual graph convolutions, a linear layer."""

    def __init__(self, graph: Graph, layers: int, channels: int) -> None:
        import warnings

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)  # on import, where torch is 2.13
            from torch_geometric.nn import DeepGCNLayer, GENConv

        super().__init__()
        self.nodes = nn.Linear(graph.x.shape[1] + graph.species.shape[1], channels)
        self.edges = nn.Linear(graph.features.shape[1], channels)
        self.layers = nn.ModuleList(
            DeepGCNLayer(
                GENConv(channels, channels, aggr="softmax", t=1.0, learn_t=True, num_layers=2, norm="layer"),
                nn.LayerNorm(channels),
                nn.ReLU(),
                block="res+",
                dropout=0.1,
                ckpt_grad=layers > 15,  # as the release: the messages of 24 layers would not fit
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(channels, graph.labels.shape[1])

    def forward(self, x: Tensor, edges: Tensor, features: Tensor) -> Tensor:
        first: Any = self.layers[0]
        features = self.edges(features)
        x = first.conv(self.nodes(x), edges, features)
        for layer in list(self.layers)[1:]:
            x = layer(x, edges, features)
        x = F.dropout(F.relu(first.norm(x)), 0.1, self.training)
        found: Tensor = self.head(x)
        return found


def parts_of(graph: Graph, context: Context) -> Callable[[int], dict[str, Tensor]]:
    """The subgraph at a position; every epoch cuts the nodes anew into as many parts as the batch size says."""
    from adan_bench.data.batching import generator

    @lru_cache(maxsize=1)
    def parts(epoch: int) -> list[tuple[Tensor, Tensor]]:
        order = torch.randperm(graph.nodes, generator=generator(context.seed, epoch))
        return graph.cut(order, context.batch_size)

    def batch(position: int) -> dict[str, Tensor]:
        epoch, index = divmod(position, context.batch_size)
        return graph.inside(*parts(epoch)[index])

    return batch


def mean_auc(labels: Tensor, scores: Tensor, auc: Callable[..., float]) -> float:
    """The mean over the labels that have both values among these nodes, as OGB's evaluator takes it."""
    both = [k for k in range(labels.shape[1]) if 0 < labels[:, k].sum() < len(labels)]
    if not both:
        return float("nan")
    return sum(float(auc(labels[:, k].numpy(), scores[:, k].numpy())) for k in both) / len(both)


def planted(nodes: int, degree: int, tasks: int) -> Graph:
    """A graph whose labels are in its edges: a node's hidden vector decides both its labels and their features."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    hidden = normal(nodes, 4)
    ends = torch.randint(0, nodes, (2, nodes * degree // 2), generator=generator)
    ends = ends[:, ends[0] != ends[1]]
    shared = hidden[ends[0]] + hidden[ends[1]]
    features = torch.sigmoid(shared @ normal(4, 8) + 0.5 * normal(len(shared), 8))
    labels = (hidden @ normal(4, tasks) + 0.3 * normal(nodes, tasks) > 0).float()
    species = F.one_hot(torch.randint(0, 8, (nodes,), generator=generator), 8).float()
    order = torch.randperm(nodes, generator=generator)
    split = dict(zip(SPLITS, order.split([nodes - 2 * (nodes // 4), nodes // 4, nodes // 4]), strict=True))
    return Graph(torch.cat([ends, ends.flip(0)], 1), torch.cat([features, features]), species, labels, split)


def read(folder: Path) -> Graph:
    """ogbn-proteins as OGB unpacks it: raw/*.csv.gz and split/species/*.csv.gz, edges in one direction."""
    edges, features, counts, species, labels = (_table(folder / "raw" / f"{name}.csv.gz") for name in RAW)
    split = {name: _table(folder / "split" / "species" / f"{name}.csv.gz").flatten().long() for name in SPLITS}
    nodes = len(labels)
    if not (len(edges) == len(features) == int(counts[0, 0]) and len(species) == nodes):
        raise UsageError(
            f"{folder}: {len(edges):,} edges, {len(features):,} features of edges and {int(counts[0, 0]):,} in "
            f"num-edge-list, {len(species):,} species and {nodes:,} labels do not fit together; unpack it again"
        )
    if edges.shape[1] != 2 or edges.max() >= nodes or max(int(part.max()) for part in split.values()) >= nodes:
        raise UsageError(f"{folder}: an edge or a split names a node beyond the {nodes:,} labels; unpack it again")
    ends = edges.long().T
    kinds = species.flatten().unique(return_inverse=True)[1]
    one_hot = F.one_hot(kinds, 8).float()
    return Graph(torch.cat([ends, ends.flip(0)], 1), torch.cat([features, features]), one_hot, labels, split)


def _table(path: Path) -> Tensor:
    """A compressed table of numbers without a header; those of nodes and species are below 2²⁴, exact in fp32."""
    import pyarrow as pa
    from pyarrow import csv

    if not path.exists():
        raise UsageError(f"{path}: no such file; unpack OGB's proteins.zip as {FOLDER}")
    try:
        table = csv.read_csv(path, csv.ReadOptions(autogenerate_column_names=True))
        return torch.stack([torch.tensor(column.cast(pa.float32()).to_numpy()) for column in table.columns], 1)
    except (OSError, ValueError, TypeError) as error:  # pyarrow's errors are ValueErrors
        raise UsageError(f"{path}: not a compressed table of numbers ({error})") from error
