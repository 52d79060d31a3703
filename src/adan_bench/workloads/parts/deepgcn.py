"""DeeperGCN's networks (https://arxiv.org/abs/2006.07739), by torch_geometric, and their tasks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adan_bench.data.files import PROTEINS_FILES
from adan_bench.data.graphs import Graph, citations, made_up_citations, mean_auc, parts_of, planted, read
from adan_bench.task import Context, Task
from adan_bench.workloads.graphs import GraphSizes
from adan_bench.workloads.parts.classification import without_decay


def residual_layer(channels: int, dropout: float, bias: bool = False, checkpoint: bool = False) -> nn.Module:
    """A pre-activated residual convolution: neighbors weighted by a softmax in each channel, then an MLP.

    checkpoint: its messages are computed again in the backward pass.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)  # on import, where torch is 2.13
        from torch_geometric.nn import DeepGCNLayer, GENConv

    conv = GENConv(channels, channels, aggr="softmax", t=1.0, learn_t=True, num_layers=2, norm="layer", bias=bias)
    layer: nn.Module = DeepGCNLayer(
        conv, nn.LayerNorm(channels), nn.ReLU(), block="res+", dropout=dropout, ckpt_grad=checkpoint
    )
    return layer


class DeepGCN(nn.Module):
    """Encoders of species, nodes and edges, residual graph convolutions, a linear layer."""

    def __init__(self, graph: Graph, layers: int, channels: int) -> None:
        super().__init__()
        self.known = graph.x.shape[1]  # columns of x before those of the species
        self.species = nn.Linear(graph.species.shape[1], graph.species.shape[1])
        self.nodes = nn.Linear(self.known + graph.species.shape[1], channels)
        self.edges = nn.Linear(graph.features.shape[1], channels)
        # As the release, checkpointed where it is deep: the messages of 24 layers would not fit.
        self.layers = nn.ModuleList(residual_layer(channels, 0.1, checkpoint=layers > 15) for _ in range(layers))
        for layer in self.layers:  # another encoder of edges in every layer; GENConv has one for another width alone
            conv: Any = layer.conv
            conv.lin_edge = nn.Linear(channels, channels)
        self.head = nn.Linear(channels, graph.labels.shape[1])

    def forward(self, x: Tensor, edges: Tensor, features: Tensor) -> Tensor:
        first: Any = self.layers[0]
        features = self.edges(features)
        x = torch.cat([x[:, : self.known], self.species(x[:, self.known :])], 1)
        x = first.conv(self.nodes(x), edges, features)
        for layer in list(self.layers)[1:]:
            x = layer(x, edges, features)
        x = F.dropout(F.relu(first.norm(x)), 0.1, self.training)
        output: Tensor = self.head(x)
        return output


class CitationGCN(nn.Module):
    """Residual graph convolutions between two linear layers. edges: sources and targets, each edge both ways."""

    def __init__(self, edges: Tensor, features: int, channels: int, layers: int, classes: int) -> None:
        super().__init__()
        self.edges: Tensor
        self.register_buffer("edges", edges, persistent=False)
        self.first = nn.Linear(features, channels)
        self.layers = nn.ModuleList(residual_layer(channels, 0.5, bias=True) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(channels), nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(F.dropout(x, 0.5, self.training))
        for layer in self.layers:
            x = layer(x, self.edges)
        output: Tensor = self.head(F.dropout(F.relu(self.norm(x)), 0.5, self.training))
        return output


def proteins_task(context: Context) -> Task:
    from sklearn.metrics import roc_auc_score

    sizes: GraphSizes = context.sizes
    if sizes.generated is None:
        graph, note = read(context.path(PROTEINS_FILES[0]).parents[1]), "ogbn-proteins"
    else:
        graph, note = planted(*sizes.generated), "a generated graph"
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


def citations_task(context: Context) -> Task:
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
