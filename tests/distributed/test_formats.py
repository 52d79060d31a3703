"""States in few bits and in the coupled form, in two processes."""

from support import processes, sharded_formats


def test_what_holds_in_two_processes(tmp_path):
    cases = sharded_formats.cases(tmp_path)
    done, error = processes.run(2, cases)
    assert done == set(cases), error
