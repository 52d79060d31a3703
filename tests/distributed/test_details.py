"""Messages per step, consumed and partial gradients, empty shards, GradScaler, ZeRO checkpoints; in two processes."""

import pytest
from support import processes, sharded_details


@pytest.fixture(scope="module")
def outcome():
    """The cases that both processes finished, and the error that stopped them: one start of processes for all."""
    return processes.run(2, sharded_details.CASES)


@pytest.mark.parametrize("name", sharded_details.CASES)
def test_in_two_processes(outcome, name):
    done, error = outcome
    assert name in done, error
