"""Template of a bundled workload: what it is. Copy this file to src/adan_bench/workloads/ under a name of your own.

It must not import torch, so that `adan-bench list` is quick. parts/wine.py, beside it, has what is trained.
"""

from __future__ import annotations

from dataclasses import dataclass

from adan_bench.task import Scale
from adan_bench.workloads.registry import built_by, workload


@dataclass(frozen=True)
class WineSizes:
    """What the builder finds as `context.sizes`."""

    width: int


workload(
    "wine",
    metric="accuracy",
    higher_is_better=True,
    smoke=Scale(0.9, 120, 32, sizes=WineSizes(32)),
    summary="A network of one hidden layer on scikit-learn's wines",
)(built_by("wine", "wine"))
