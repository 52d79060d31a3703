"""Roles of parameters, and Muon on those that are hidden matrices."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from adan_bench.errors import UsageError
from adan_bench.records.store import RunStore, read_run
from adan_bench.training.muon import Composite, Muon, muon, muon_adan
from adan_bench.training.optimizers import build, get_optimizer, implementation
from adan_bench.training.roles import Role, roles, summary
from adan_bench.training.trainer import Trainer, run


class Network(nn.Module):
    """One of everything that the rule tells apart."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 6)
        self.pos_embed = nn.Parameter(torch.zeros(1, 5, 6))
        self.token = nn.Parameter(torch.zeros(1, 1, 6))
        self.attention = nn.MultiheadAttention(6, 2)
        self.qkv = nn.Linear(6, 18)
        self.mixed = nn.Conv1d(6, 4, 3)
        self.depthwise = nn.Conv1d(4, 4, 3, groups=4)
        self.lstm = nn.LSTM(4, 6)
        self.gru = nn.GRU(6, 6)
        self.experts = nn.Module()
        self.experts.up = nn.Parameter(torch.zeros(2, 6, 8))
        self.head = nn.Linear(6, 10, bias=False)
        if tied:
            self.head.weight = self.embed.weight


def named(model: nn.Module, patterns: Mapping[str, str] | None = None) -> dict[str, str]:
    return {
        name: f"{role.name}/{role.parts}" if role.parts > 1 else role.name
        for name, role in roles(model, patterns).items()
        if role.name != "vector"
    }


def test_the_rule() -> None:
    assert named(Network()) == {
        "embed.weight": "embedding",
        "pos_embed": "embedding",
        "attention.in_proj_weight": "matrix/3",
        "attention.out_proj.weight": "matrix",
        "qkv.weight": "matrix/3",
        "mixed.weight": "convolution",
        "lstm.weight_ih_l0": "matrix/4",
        "lstm.weight_hh_l0": "matrix/4",
        "gru.weight_ih_l0": "matrix/3",
        "gru.weight_hh_l0": "matrix/3",
        "experts.up": "matrix",
        "head.weight": "head",
    }


def test_first_and_last_weights_are_not_hidden() -> None:
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(4, 4), nn.Linear(4, 2))
    assert list(named(network).values()) == ["embedding", "convolution", "matrix", "head"]
    assert list(named(nn.Sequential(nn.Linear(4, 2))).values()) == ["head"]


@pytest.mark.parametrize("layer", [nn.Linear, lambda i, o: nn.Conv2d(i, o, 1)])
def test_one_input_or_one_output_makes_no_other_layer_first_or_last(layer: Any) -> None:
    expected = ["embedding", "matrix" if layer is nn.Linear else "convolution", "head"]
    for inputs, outputs in ((8, 1), (1, 8), (1, 1)):
        network = nn.Sequential(layer(inputs, 6), nn.GroupNorm(1, 6), layer(6, 6), layer(6, outputs))
        assert list(named(network).values()) == expected


def test_a_head_that_is_the_embedding_stays_one() -> None:
    found = named(Network(tied=True))
    assert found["embed.weight"] == "embedding"
    assert "head.weight" not in found


def test_recurrent_weights_are_no_head() -> None:
    assert "head" not in named(nn.Sequential(nn.Embedding(5, 4), nn.LSTM(4, 4))).values()


def test_patterns_override_the_rule() -> None:
    found = named(Network(), {"attention.out*": "head", "*.weight": "matrix/2", "pos_embed": "vector"})
    assert (found["attention.out_proj.weight"], found["head.weight"]) == ("head", "matrix/2")
    assert "pos_embed" not in found


@pytest.mark.parametrize(
    ("text", "words"), [("hidden", "role 'hidden'"), ("matrix/4", r"\(10, 6\)"), ("matrix/x", "/x")]
)
def test_wrong_patterns(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        roles(Network(), {"head.weight": text})


def test_summary_counts_all_parameters() -> None:
    model = Network()
    counts = summary(model)
    assert sum(count["parameters"] for count in counts.values()) == sum(p.numel() for p in model.parameters())
    assert sum(count["bytes"] for count in counts.values()) == 4 * sum(p.numel() for p in model.parameters())
    assert counts["matrix"]["matrices"] == 3 + 1 + 3 + 4 + 4 + 3 + 3 + 2
    assert counts["convolution"] == {"tensors": 1, "parameters": 72, "bytes": 288, "matrices": 1}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_kernels_are_matrices_that_share_storage(layout: torch.memory_format) -> None:
    kernel = torch.randn(4, 3, 2, 2).to(memory_format=layout)
    (matrix,) = Role("convolution").matrices(kernel)
    assert matrix.shape == (4, 12)
    assert matrix.untyped_storage().data_ptr() == kernel.untyped_storage().data_ptr()
    assert torch.equal(matrix.sum(1), kernel.sum((1, 2, 3))) or torch.allclose(matrix.sum(1), kernel.sum((1, 2, 3)))


def test_a_transposed_layer_has_its_outputs_in_rows() -> None:
    weight = torch.arange(6.0).view(1, 6)  # one input, six outputs, as transformers' Conv1D has them
    matrices = Role("matrix", 3, transposed=True).matrices(weight)
    assert [m.flatten().tolist() for m in matrices] == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]


def train(optimizer: Any, params: list[nn.Parameter], steps: int = 5) -> list[torch.Tensor]:
    for step in range(steps):
        optimizer.zero_grad()
        source = torch.Generator().manual_seed(step)
        for p in params:
            p.grad = torch.randn(p.shape, generator=source)
        optimizer.step()
    return [p.detach().clone() for p in params]


def start() -> list[nn.Parameter]:
    source = torch.Generator().manual_seed(9)
    return [nn.Parameter(torch.randn(shape, generator=source)) for shape in ((6, 4), (4,))]


def test_fused_projections_step_as_matrices_of_their_own() -> None:
    """A matrix of three blocks, by views of it, against three matrices; another optimizer for the vector."""
    fused, vector = start()
    split = [nn.Parameter(block.clone()) for block in fused.detach().chunk(3)]
    groups = [{"params": [fused], "role": Role("matrix", 3)}, {"params": [vector], "role": Role("")}]
    got = train(muon(groups, 0.1), [fused, vector])
    alone = muon(split, 0.1)
    for step in range(5):
        grads = torch.randn(6, 4, generator=torch.Generator().manual_seed(step)).chunk(3)
        for p, grad in zip(split, grads, strict=True):
            p.grad = grad.clone()
        alone.step()
    assert torch.equal(got[0], torch.cat([p.detach() for p in split]))
    whole = start()
    assert not torch.equal(got[0], train(muon(whole, 0.1), whole)[0])


def test_muon_adan_has_adan_for_the_rest() -> None:
    import adan

    params, (_, vector) = start(), start()
    got = train(muon_adan(params, 0.01), params)
    other = adan.Adan([vector], lr=0.03, betas=(0.9, 0.92, 0.99), weight_decay=0.1)
    for step in range(5):
        source = torch.Generator().manual_seed(step)
        torch.randn(6, 4, generator=source)
        vector.grad = torch.randn(4, generator=source)
        other.step()
    assert torch.equal(got[1], vector)


def test_composite_is_an_ordinary_optimizer() -> None:
    params = start()
    optimizer = build(get_optimizer("muon"), params, {"lr": 0.1})
    train(optimizer, params, 2)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 1]
    assert all(optimizer.state[p] for p in params)
    assert implementation(optimizer) == "Muon foreach; AdamW fused"
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    before = [p.detach().clone() for p in params]
    assert all(torch.equal(a, b) for a, b in zip(before, train(optimizer, params, 1), strict=True))


def test_without_a_hidden_matrix() -> None:
    with pytest.raises(UsageError, match="no hidden matrix"):
        muon([nn.Parameter(torch.zeros(3))])


def test_muon_steps_as_torchs() -> None:
    """Matrices of several shapes, wide and tall, some alike: in the arithmetic of bf16 to its rounding."""
    shapes = ((6, 4), (4, 6), (4, 6), (5, 5), (4, 6))
    ours, theirs = ([nn.Parameter(torch.ones(shape).cumsum(1)) for shape in shapes] for _ in range(2))
    for fn, nesterov in (("match_rms_adamw", True), ("original", False)):
        how: dict[str, Any] = {"momentum": 0.9, "nesterov": nesterov, "adjust_lr_fn": fn}
        got = train(muon(ours, 0.1, **how), ours)
        expected = train(torch.optim.Muon(theirs, lr=0.1, weight_decay=0.1, **how), theirs)
        for x, y in zip(got, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=2e-3)
    with pytest.raises(ValueError, match="adjust_lr_fn must be one of match_rms_adamw, original, got 'none'"):
        muon(ours, adjust_lr_fn="none")
    with pytest.raises(ValueError, match="ns_steps must be a whole number from 1 on, got 0"):
        muon(ours, ns_steps=0)
    assert Muon(ours, "original").defaults["ns_steps"] == 5
    with pytest.raises(TypeError, match=r"Muon: got an unexpected keyword argument 'betas'; it has \(params"):
        Muon(ours, "original", betas=(0.9, 0.95))


def test_records_and_list_show_the_split(bench: Any, config: Any, tiny: Path, tmp_path: Path) -> None:
    run(config("muon", steps=4), RunStore(tmp_path / "a"))
    record = read_run(tmp_path / "a")
    matrix = {"tensors": 1, "parameters": 256, "bytes": 1024, "matrices": 2}
    assert record.environment["roles"]["matrix"] == matrix
    assert record.result["implementation"] == "Muon foreach; AdamW fused"
    out = bench.ran("list", "--script", tiny)
    assert "matrix: 1 tensor · 256 parameters" in " ".join(out.split())
    rows = json.loads(bench("list", "--script", tiny, "--json")[1])
    assert next(row for row in rows if row["name"] == "tiny")["roles"]["matrix"] == matrix


def test_groups_of_a_task_are_split_by_role() -> None:
    from support.learning import trainer

    found: Trainer = trainer("cifar-vit", "muon")
    optimizer = found.optimizer
    assert isinstance(optimizer, Composite)
    assert sum(p.numel() for group in optimizer.param_groups for p in group["params"]) == found.size
    assert {float(group["weight_decay"]) for group in optimizer.param_groups} > {0.0}  # the workload's own groups
    assert len(optimizer.views) > 0  # fused projections
