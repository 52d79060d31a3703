"""Messages per step, partial gradients, empty shards, GradScaler, ZeRO checkpoints; in two processes."""

from support import processes, sharded_details


def test_in_two_processes():
    done, error = processes.run(2, sharded_details.CASES)
    assert done == set(sharded_details.CASES), error
