"""`adan-bench memory`: numbers, published shapes and workloads, planned by `adan.plan_memory`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from adan import plan_memory
from adan_bench.studies.memory import LLAMAS, find_model

BILLIONS = {"Llama-2-7B": 6.738415616, "Llama-3.1-70B": 70.553706496, "Llama-3.1-405B": 405.8533888}


@pytest.mark.parametrize("name", LLAMAS)
def test_shapes_are_those_of_the_published_models(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    llama = LLAMAS[name]
    config = transformers.LlamaConfig(
        hidden_size=llama.width,
        intermediate_size=llama.hidden,
        num_hidden_layers=llama.layers,
        num_attention_heads=llama.width // 128,
        num_key_value_heads=llama.key_width // 128,
        vocab_size=llama.words,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    shapes = Counter(p.shape for p in llama.parameters())
    assert shapes == Counter(p.shape for p in model.parameters())
    assert sum(p.numel() for p in model.parameters()) == round(BILLIONS[name] * 1e9)


@pytest.mark.parametrize(
    ("name", "number"), [("7B", 7 * 10**9), ("345m", 345 * 10**6), ("1.1B", 11 * 10**8), ("7e9", 7 * 10**9), ("64", 64)]
)
def test_numbers(name: str, number: int) -> None:
    assert find_model(name) == number


def test_command(bench: Callable[..., Any], tiny: Path) -> None:
    out = bench.ran("memory", "Llama-2-7B", "--gpus", 64, "--weights", "bf16", "--kahan-sum")
    options: dict[str, Any] = {"shards": 64, "dtype": torch.bfloat16, "kahan_sum": True}
    assert out == f"{plan_memory(LLAMAS['Llama-2-7B'].parameters(), **options)}\n"
    out = bench.ran("memory", "GPT-2-1B", "--release-gradients", "--json")
    rows = {row.pop("optimizer"): row for row in map(json.loads, out.splitlines())}
    plan = plan_memory(find_model("GPT-2-1B"), release_gradients=True)
    assert {name: (row["weights"], row["gradients"], row["states"]) for name, row in rows.items()} == plan.rows
    assert all(row["total"] == plan.rows[name].total for name, row in rows.items())
    assert "321 parameters: kB" in bench("memory", "tiny", "--script", tiny)[1]
