"""Adan over two and four processes takes the steps that it takes in one, on the same global batch."""

from functools import cache

import processes
import pytest
import sharded


@cache
def run(world_size):
    return processes.run(world_size, sharded.cases(world_size))


@pytest.mark.parametrize(("world_size", "case"), [(n, case) for n in (2, 4) for case in sharded.cases(n)])
def test_is_as_in_one_process(world_size, case):
    done, error = run(world_size)
    assert case in done, error
