import pytest
from support.evidence_data import write_cache


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    write_cache(folder)
    return folder
