"""Every engine against the oracle, for every option row, type and layout."""

import pytest
import torch
from support.parity import LAYOUTS, ROWS, assert_parity, count_as_on_a_device

ENGINES = {"loop": {"foreach": False, "fused": False}, "foreach": {"foreach": True}}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("engine", ENGINES)
def test_parity_with_the_oracle(engine, row, dtype):
    assert_parity(row, dtype, **ENGINES[engine])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("engine", ENGINES)
def test_parity_with_coefficients_on_the_device(engine, row, monkeypatch):
    count_as_on_a_device(monkeypatch)
    assert_parity(row, **ENGINES[engine])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("engine", ENGINES)
def test_parity_in_every_layout(engine, layout):
    row = next(row for row in ROWS if row.name == "everything")
    assert_parity(row, layout=layout, **ENGINES[engine])
