"""Adan over two and four processes takes the steps that it takes in one, on the same global batch."""

import pytest
from support import processes, sharded


@pytest.mark.parametrize("world_size", [2, 4])
def test_several_processes_train_as_one(world_size):
    cases = sharded.cases(world_size)
    done, error = processes.run(world_size, cases)
    assert done == set(cases), error
