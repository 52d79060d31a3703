"""Fixtures of the tests of the C engine."""

import numpy as np
import pytest
import torch

from adan.engines import cpu
from adan.grad_norm import measure


@pytest.fixture
def threads():
    """A setter of PyTorch's number of threads, undone at the end."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def same_norm(monkeypatch):
    """The norm as other engines take it: added up in another order it may differ in the last bit."""
    monkeypatch.setattr(
        cpu,
        "_measured",
        lambda columns, table, signals: measure([x for x in columns.grad if x is not None], columns.clips(), signals),
    )


@pytest.fixture
def exact_sqrt(monkeypatch):
    """Square roots that are rounded as IEEE asks for, which MKL's, PyTorch's on x86, are not."""

    def sqrt(x):
        return torch.empty_like(x).copy_(torch.as_tensor(np.sqrt(x.detach().numpy())))

    monkeypatch.setattr(torch.Tensor, "sqrt", sqrt)
