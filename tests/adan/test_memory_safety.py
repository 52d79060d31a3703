"""Parameters and states that get other memory between two steps: no step writes where it must not."""

import functools

import pytest
from support import moved_memory
from support.engines import unsupported_reason


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """The error of a case by an engine; all cases of an engine share a process."""

    @functools.cache
    def outcomes(engine):
        if reason := unsupported_reason(engine):
            pytest.skip(reason)
        return moved_memory.outcomes(engine, tmp_path_factory.mktemp(engine) / "outcomes")

    return lambda engine, name: outcomes(engine)[name]


engines = pytest.mark.parametrize("name", ["loop", "foreach", "cpu", "cuda"])


@engines
@pytest.mark.parametrize("case", moved_memory.CHANGES)
def test_a_parameter_that_is_another_tensor_at_the_same_address(outcome, name, case):
    """A user who slices, grows or retypes `p.data` in place got corrupted memory or stale states, silently."""
    assert outcome(name, case) is None


@engines
@pytest.mark.parametrize("form", moved_memory.FORMS)
def test_a_state_that_gets_other_memory(outcome, name, form):
    """A user who moves states (`state.data = …`, offloading) trained on with the old memory, long given to others."""
    assert outcome(name, f"moves its states, {form}") is None
