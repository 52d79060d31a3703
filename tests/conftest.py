"""Without a GPU the Triton kernels run in Triton's interpreter; it must be asked for before Triton is imported."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start, as of the tests themselves


@pytest.fixture(autouse=True)
def one_thread():
    """As many tests run at once as there are cores: a second thread of one would wait, spinning, for a core."""
    torch.set_num_threads(1)


@pytest.fixture(params=["loop", "foreach", "cpu", "cuda"])
def engine(request):
    """The options that ask for each engine in turn; new tensors are on its device."""
    from support import engines  # not before the interpreter was asked for

    with engines.selected(request.param) as options:
        yield options
