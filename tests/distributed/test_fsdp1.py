"""FullyShardedDataParallel in two processes: its parts are plain tensors, and the norm must be that of all."""

from support import processes, sharded_fsdp1


def test_what_works():
    done, error = processes.run(2, sharded_fsdp1.CASES)
    assert done == set(sharded_fsdp1.CASES), error


def test_clipping_is_by_the_norm_of_all_processes_or_is_refused():
    """A user of FSDP1 with max_grad_norm clipped each process by the norm of its own part, silently."""
    done, error = processes.run(2, sharded_fsdp1.CLIPPED)
    assert done == set(sharded_fsdp1.CLIPPED), error
