"""Placeholder of the fused engine for cuda."""

from __future__ import annotations

from torch import Tensor

from adan.batch import Batch
from adan.scalars import Signals


def refuses(param: Tensor) -> str | None:
    """Why this engine cannot serve a parameter; None when it can."""
    return "not built"


def update(batches: list[Batch], signals: Signals) -> None:
    raise NotImplementedError
