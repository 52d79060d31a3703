"""DeeperGCN's network (https://arxiv.org/abs/2006.07739), by torch_geometric."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adan_bench.data.graphs import Graph


class DeepGCN(nn.Module):
    """Encoders of species, nodes and edges, residual graph convolutions, a linear layer."""

    def __init__(self, graph: Graph, layers: int, channels: int) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)  # on import, where torch is 2.13
            from torch_geometric.nn import DeepGCNLayer, GENConv

        super().__init__()
        self.known = graph.x.shape[1]  # columns of x before those of the species
        self.species = nn.Linear(graph.species.shape[1], graph.species.shape[1])
        self.nodes = nn.Linear(self.known + graph.species.shape[1], channels)
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
