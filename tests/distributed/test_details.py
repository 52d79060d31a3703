"""Messages per step, consumed and partial gradients, empty parts, GradScaler, checkpoints of ZeRO; in two processes."""

from functools import cache

import processes
import pytest
import sharded_details


@cache
def run():
    return processes.run(2, sharded_details.CASES)


@pytest.mark.parametrize("case", sharded_details.CASES)
def test_in_two_processes(case):
    done, error = run()
    assert case in done, error
