"""Graphs: ogbn-proteins as OGB unpacks it, citations, generated ones, random subgraphs, OGB's score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from adan_bench.data.batching import generator
from adan_bench.data.files import CITATIONS, PROTEINS, PROTEINS_RAW, SPLITS
from adan_bench.errors import UsageError, reading
from adan_bench.task import Context


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

    def cut(self, part: Tensor, parts: int) -> list[tuple[Tensor, Tensor]]:
        """The nodes by the part of each, with the numbers of the edges inside."""
        of_edges = torch.where(part[self.edges[0]] == part[self.edges[1]], part[self.edges[0]], -1)
        return [((part == i).nonzero()[:, 0], (of_edges == i).nonzero()[:, 0]) for i in range(parts)]

    def inside(self, nodes: Tensor, edges: Tensor) -> dict[str, Tensor]:
        """The graph of these nodes and edges, and the places of those nodes that train."""
        place = torch.empty(self.nodes, dtype=torch.long)
        place[nodes] = torch.arange(len(nodes))
        return {
            "x": torch.cat([self.x[nodes], self.species[nodes]], 1),
            "edges": place[self.edges[:, edges]],
            "features": self.features[edges],
            "labels": self.labels[nodes],
            "train": self.trains[nodes].nonzero()[:, 0],
        }


def parts_of(graph: Graph, context: Context) -> Callable[[int], dict[str, Tensor]]:
    """The subgraph at a position; every epoch cuts the nodes anew into as many parts as the batch size says.

    As in the release of DeeperGCN each node draws its part, so that parts have uneven sizes.
    """

    @lru_cache(maxsize=1)
    def parts(epoch: int) -> list[tuple[Tensor, Tensor]]:
        drawn = torch.randint(context.batch_size, (graph.nodes,), generator=generator(context.seed, epoch))
        return graph.cut(drawn, context.batch_size)

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
    source = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source)

    hidden = normal(nodes, 4)
    ends = torch.randint(0, nodes, (2, nodes * degree // 2), generator=source)
    ends = ends[:, ends[0] != ends[1]]
    shared = hidden[ends[0]] + hidden[ends[1]]
    features = torch.sigmoid(shared @ normal(4, 8) + 0.5 * normal(len(shared), 8))
    labels = (hidden @ normal(4, tasks) + 0.3 * normal(nodes, tasks) > 0).float()
    species = F.one_hot(torch.randint(0, 8, (nodes,), generator=source), 8).float()
    order = torch.randperm(nodes, generator=source)
    split = dict(zip(SPLITS, order.split([nodes - 2 * (nodes // 4), nodes // 4, nodes // 4]), strict=True))
    return Graph(torch.cat([ends, ends.flip(0)], 1), torch.cat([features, features]), species, labels, split)


def read(folder: Path) -> Graph:
    """ogbn-proteins as OGB unpacks it: raw/*.csv.gz and split/species/*.csv.gz, edges in one direction."""
    edges, features, counts, species, labels = (_table(folder / "raw" / f"{name}.csv.gz") for name in PROTEINS_RAW)
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
        raise UsageError(f"{path}: no such file; unpack OGB's proteins.zip as {PROTEINS}")
    with reading(path, "not a compressed table of numbers"):
        table = csv.read_csv(path, csv.ReadOptions(autogenerate_column_names=True))
        return torch.stack([torch.tensor(column.cast(pa.float32()).to_numpy()) for column in table.columns], 1)


@dataclass(frozen=True)
class Citations:
    """Documents, their words in shares of each, which cites which in both directions, their classes and splits."""

    x: Tensor
    edges: Tensor
    labels: Tensor
    split: dict[str, Tensor]


def citations(context: Context) -> Citations:
    """Edges once, nodes with label and split, and words as the arrays of a sparse matrix."""
    import numpy as np

    edges, nodes, features = (context.path(name) for name in CITATIONS)
    with reading(edges.parent, "not a graph of edges.csv, nodes.csv and features.npz"):
        with np.load(features) as matrix:
            words = np.zeros(matrix["shape"], np.float32)
            words[np.repeat(np.arange(len(words)), np.diff(matrix["indptr"])), matrix["indices"]] = matrix["data"]
        one_way = torch.from_numpy(np.loadtxt(edges, int, delimiter=",", skiprows=1).T.copy())
        rows = [line.split(",") for line in nodes.read_text(encoding="utf-8").split()[1:]]
        labels = torch.tensor([int(label) for _, label, _ in rows])
    split = {name: torch.tensor([i for i, row in enumerate(rows) if row[2] == name]) for name in SPLITS}
    x = torch.from_numpy(words / words.sum(1, keepdims=True).clip(min=1))
    return Citations(x, torch.cat([one_way, one_way.flip(0)], 1), labels, split)


def made_up_citations(nodes: int, classes: int) -> Citations:
    """Documents that cite four others, three of them of their class, and of whose words a few tell the class."""
    source = torch.Generator().manual_seed(0)
    labels = torch.arange(nodes) % classes
    kin = torch.randint(0, nodes // classes, (3, nodes), generator=source) * classes + labels
    others = torch.randint(0, nodes, (1, nodes), generator=source)
    one_way = torch.stack([torch.arange(nodes).repeat(4), torch.cat([kin, others]).flatten()])
    words = torch.rand(nodes, 16 * classes, generator=source) < 0.05
    telling = torch.randint(0, 16, (nodes,), generator=source) * classes + labels
    x = words.float().scatter(1, telling.unsqueeze(1), 1.0)
    sizes = [nodes // 5, 2 * nodes // 5]
    parts = torch.randperm(nodes, generator=source).split([*sizes, nodes - sum(sizes)])
    split = dict(zip(SPLITS, parts, strict=True))
    return Citations(x / x.sum(1, keepdim=True), torch.cat([one_way, one_way.flip(0)], 1), labels, split)
