"""Where the runs of a study are made: by worker processes of this machine, or on a Ray cluster."""

from __future__ import annotations

from pathlib import Path

from adan_bench.config import RunConfig
from adan_bench.training.cluster import RayPool
from adan_bench.training.pool import LocalPool, Pool


def open_pool(folder: Path, chosen: RunConfig, deadline: float | None = None) -> Pool:
    """The pool that the choices ask for."""
    return (LocalPool if chosen.cluster is None else RayPool)(folder, chosen, deadline)
