"""Two processes restart at the steps at which one does, whatever of the parameters each of them holds."""

from support import processes, sharded_restarts


def test_two_processes_restart_as_one(tmp_path):
    cases = sharded_restarts.cases(tmp_path)
    done, error = processes.run(2, cases)
    assert done == set(cases), error
