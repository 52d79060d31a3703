"""Adan over several processes takes the steps that it takes in one, on the same global batch."""

import pytest
from support import processes, sharded, sharded_details, sharded_formats, sharded_fsdp1, sharded_restarts

#: How many processes, and what holds in them, given a folder.
CASES = {
    "strategies, two": (2, lambda folder: sharded.cases(2)),
    "strategies, four": (4, lambda folder: sharded.cases(4)),
    "details": (2, lambda folder: sharded_details.CASES),
    "formats": (2, sharded_formats.cases),
    "restarts": (2, sharded_restarts.cases),
    "FSDP1": (2, lambda folder: sharded_fsdp1.CASES),
    "FSDP1, clipped": (2, lambda folder: sharded_fsdp1.CLIPPED),
}


@pytest.mark.parametrize("name", CASES)
def test_several_processes_train_as_one(name, tmp_path):
    world_size, made = CASES[name]
    cases = made(tmp_path)
    done, error = processes.run(world_size, cases)
    assert done == set(cases), error
