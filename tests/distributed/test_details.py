"""Messages per step, consumed and partial gradients, empty parts, GradScaler, checkpoints of ZeRO; in two processes."""

import processes
import sharded_details


def test_what_holds_in_two_processes():
    done, error = processes.run(2, sharded_details.CASES)
    assert done == set(sharded_details.CASES), error
