"""DeepGCN: it reads OGB's folder, and its score is the mean area under the curve."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest
import torch
from sklearn.metrics import roc_auc_score
from support.learning import trainer

from adan_bench.data import graphs
from adan_bench.data.files import PROTEINS, SPLITS
from adan_bench.errors import UsageError
from adan_bench.task import Context


def write_ogb(data: Path, graph: graphs.Graph) -> None:
    """ogbn-proteins as OGB unpacks it; every edge once, species by their numbers in the tree of life."""
    half = graph.edges.shape[1] // 2
    numbers = torch.tensor([3702, 4932, 6239, 7227, 7955, 9606, 10090, 511145])
    tables = {
        "raw/edge": graph.edges[:, :half].T,
        "raw/edge-feat": graph.features[:half],
        "raw/num-edge-list": torch.tensor([[half]]),
        "raw/node_species": numbers[graph.species.argmax(1)].unsqueeze(1),
        "raw/node-label": graph.labels.long(),
        **{f"split/species/{name}": nodes.unsqueeze(1) for name, nodes in graph.split.items()},
    }
    for name, table in tables.items():
        path = data / PROTEINS / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt", encoding="utf-8") as file:
            file.writelines(",".join(map(repr, row)) + "\n" for row in table.tolist())


def test_reads_the_folder_of_ogb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graphs.planted(60, 6, 3)
    write_ogb(tmp_path, graph)
    found = graphs.read(tmp_path / PROTEINS)
    assert torch.equal(found.edges, graph.edges)
    assert torch.equal(found.features, graph.features)
    assert torch.equal(found.species, graph.species)
    assert torch.equal(found.labels, graph.labels)
    assert torch.equal(found.x, graph.x)
    assert all(torch.equal(found.split[name], graph.split[name]) for name in SPLITS)
    run = trainer("deepgcn", data=tmp_path, scale="paper", batch_size=4, steps=2)
    assert len(run.model.layers) == 24
    assert run.task.note.startswith("ogbn-proteins: 60 nodes")
    run.update()
    assert 0 <= run.evaluate()["ROC-AUC"] <= 1


def test_damage_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"deepgcn needs ogbn_proteins/raw/edge.csv.gz"):
        trainer("deepgcn", scale="paper")
    write_ogb(tmp_path, graphs.planted(60, 6, 3))
    folder = tmp_path / PROTEINS
    labels = folder / "raw" / "node-label.csv.gz"
    good = labels.read_bytes()
    labels.write_bytes(good[: len(good) // 2])
    with pytest.raises(UsageError, match=r"node-label.csv.gz: not a compressed table of numbers"):
        graphs.read(folder)
    labels.write_bytes(gzip.compress(b"a,b\n"))
    with pytest.raises(UsageError, match=r"node-label.csv.gz: not a compressed table of numbers"):
        graphs.read(folder)
    labels.write_bytes(gzip.compress(b"0,1,0\n" * 20))
    with pytest.raises(UsageError, match=r"60 species and 20 labels do not fit together"):
        graphs.read(folder)
    labels.write_bytes(good)
    (folder / "split" / "species" / "test.csv.gz").write_bytes(gzip.compress(b"60\n"))
    with pytest.raises(UsageError, match=r"a node beyond the 60 labels"):
        graphs.read(folder)
    (folder / "split" / "species" / "test.csv.gz").unlink()
    with pytest.raises(UsageError, match=r"test.csv.gz: no such file"):
        graphs.read(folder)


def test_mean_auc() -> None:
    labels = torch.tensor([[0, 1, 1], [1, 1, 0], [1, 1, 1], [0, 1, 0]]).float()
    assert graphs.mean_auc(labels, labels, roc_auc_score) == 1
    assert graphs.mean_auc(labels, -labels, roc_auc_score) == 0
    assert graphs.mean_auc(labels, torch.zeros(4, 3), roc_auc_score) == 0.5
    scores = torch.stack([labels[:, 0], torch.rand(4), -labels[:, 2]], 1)
    assert graphs.mean_auc(labels, scores, roc_auc_score) == 0.5  # the second label has one value only
    assert math.isnan(graphs.mean_auc(labels[:, 1:2], scores[:, 1:2], roc_auc_score))


def test_parts_are_the_graph_inside() -> None:
    graph = graphs.planted(50, 8, 2)
    batches = graphs.parts_of(graph, Context(0, 4))
    drawn = torch.randint(4, (50,))
    nodes = sorted(node for part, _ in graph.cut(drawn, 4) for node in part.tolist())
    assert nodes == list(range(50))
    sizes = [len(batches(i)["x"]) for i in range(4)]
    assert sum(sizes) == 50
    assert len(set(sizes)) > 1  # uneven
    for chosen, edges in graph.cut(drawn, 4):
        part = graph.inside(chosen, edges)
        expected = {(a, b) for a, b in graph.edges.T.tolist() if {a, b} <= set(chosen.tolist())}
        assert {(chosen[a].item(), chosen[b].item()) for a, b in part["edges"].T.tolist()} == expected
        assert torch.equal(part["train"], torch.isin(chosen, graph.split["train"]).nonzero()[:, 0])
    again = batches(5)
    assert all(torch.equal(batches(5)[key], again[key]) for key in again)
    assert not torch.equal(batches(1)["x"], again["x"])  # the next epoch is cut otherwise
