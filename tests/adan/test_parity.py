"""Every engine against the oracle, for every option row, type and layout."""

import pytest
import torch
from support import engines
from support.parity import LAYOUTS, ROW, assert_parity, count_as_on_a_device

from adan.engines import foreach

DTYPES = [torch.float32, torch.float64]

pytestmark = engines.divides_zero_by_zero


def is_run(name, row, dtype):
    """Triton's interpreter takes some 5 ms per program: there few rows are run in fp64."""
    return name != "cuda" or engines.GPU or dtype is torch.float32 or row in ("everything", "Algorithm 1 to the letter")


def steps(name, row):
    """In the interpreter a first step, one without a gradient of one parameter, and one after it.

    The eighth has an infinity where steps are skipped.
    """
    if name != "cuda":
        return 30
    return 200 if engines.GPU else 8 if "skip_nonfinite" in ROW[row].options else 5


def assert_engine(name, row, dtype=torch.float32, **options):
    with engines.serving(name):
        device = engines.device_of(name)
        assert_parity(ROW[row], dtype, device=device, steps=steps(name, row), **engines.OPTIONS[name], **options)


@pytest.mark.parametrize(
    ("name", "row", "dtype"),
    [(name, row, dtype) for name in engines.OPTIONS for row in ROW for dtype in DTYPES if is_run(name, row, dtype)],
    ids=str,
)
def test_parity_with_the_oracle(name, row, dtype):
    assert_engine(name, row, dtype)


@pytest.mark.parametrize("row", ROW)
@pytest.mark.parametrize("name", ["loop", "foreach", "cpu"])
def test_parity_where_the_dispatcher_reads_no_counter(name, row, monkeypatch):
    count_as_on_a_device(monkeypatch)
    assert_engine(name, row)


def test_parity_of_tensors_that_are_cut_into_pieces(monkeypatch):
    monkeypatch.setattr(foreach, "CPU_PIECE", 16)
    assert_engine("foreach", "everything")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", engines.OPTIONS)
def test_parity_in_every_layout(name, layout):
    if layout == "parameter strided" and name in ("cpu", "cuda"):
        with pytest.raises(RuntimeError, match=r"fused=True cannot serve .*not dense"):
            assert_engine(name, "everything", layout=layout)
        assert_parity(ROW["everything"], layout=layout)  # which another engine serves
    else:
        assert_engine(name, "everything", layout=layout)
