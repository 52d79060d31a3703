from dataclasses import replace

import pytest
from support.evidence_data import write_cache

from adan_bench.workloads.registry import get_workload


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    write_cache(folder)
    return folder


@pytest.fixture(autouse=True)
def _tiny_transformer_xl(monkeypatch):
    """With rarer words in clusters, though there are eight words in all."""
    scales = get_workload("transformer-xl", "small").scales
    sizes = replace(scales["small"].sizes, layers=1, width=16, heads=2, inner=32, length=50, memory=60, cutoffs=(3, 5))
    monkeypatch.setitem(scales, "small", replace(scales["small"], sizes=sizes))
