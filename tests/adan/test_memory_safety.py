"""Parameters and states that get other memory between two steps: no step writes where it must not."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import moved_memory
import pytest


def in_a_process(*arguments):
    """A crash of one case is the failure of one test."""
    multiprocessing.set_forkserver_preload(["adan", "adan.engines", "pytest"])
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("forkserver")) as pool:
        try:
            pool.submit(moved_memory.run, *arguments).result(timeout=120)
        except BrokenProcessPool:
            pytest.fail("the step crashed the process")


engines = pytest.mark.parametrize("name", ["loop", "foreach", "cpu", "cuda"])


@engines
@pytest.mark.parametrize("case", moved_memory.CASES, ids=lambda case: case.__name__)
def test_a_parameter_that_is_another_tensor_at_the_same_address(name, case):
    """A user who slices, grows or retypes `p.data` in place got corrupted memory or stale states, silently."""
    in_a_process(case, name)


@engines
@pytest.mark.parametrize("form", moved_memory.FORMS)
def test_a_state_that_gets_other_memory(name, form):
    """A user who moves states (`state.data = …`, offloading) trained on with the old memory, long given to others."""
    in_a_process(moved_memory.moves_its_states, name, form)
