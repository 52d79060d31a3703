from dataclasses import replace

import pytest
from support.evidence_data import write_cache

from adan_bench.workloads.registry import get_workload


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    write_cache(folder)
    return folder


#: Cutoffs: rarer words are in clusters, though there are eight words in all.
TINY = {
    "lstm-1": {"embedding": 16, "hidden": 32},
    "transformer-xl": {
        "layers": 1,
        "width": 16,
        "heads": 2,
        "inner": 32,
        "length": 50,
        "memory": 60,
        "cutoffs": (3, 5),
    },
}


@pytest.fixture(autouse=True)
def _tiny_models(monkeypatch):
    """What the harness has for a GPU, on a CPU."""
    for name, sizes in TINY.items():
        scales = get_workload(name, "small").scales
        monkeypatch.setitem(scales, "small", replace(scales["small"], sizes=replace(scales["small"].sizes, **sizes)))
