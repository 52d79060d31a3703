"""Without a GPU the Triton kernels run in Triton's interpreter; it must be asked for before Triton is imported."""

import multiprocessing
import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start, as of the tests themselves
# torch.compile believes the processor's list of instruction sets; else it compiles a program for each, in 8 s.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

# With the user's own data, tests of workloads whose data is absent would train at the published scale.
os.environ.pop("ADAN_DATA", None)

#: Imported once, by the server from which tests fork processes: 4 s of work that each would do anew.
PRELOADED = [
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.tensor.parallel",
    "torch._dynamo",  # which every optimizer imports
    "adan",
    "adan_bench.workloads.parts.classification",
    "transformers.models.vit.modeling_vit",
    "sklearn.datasets",
]
multiprocessing.set_forkserver_preload(PRELOADED)

#: Tests that start processes and wait for them, or compile for half a minute: first, so that none ends alone.
FIRST = ("distributed/", "test_cluster", "test_parallel", "examples/", "test_resume", "test_interrupts", "test_speed",
         "test_packaging", "test_memory_safety", "test_pauses", "test_kernels_compile", "test_inductor")  # fmt: skip


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: not any(name in item.nodeid for name in FIRST))


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


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    from support import chromium

    if chromium.find() is None:
        pytest.skip("no Chromium or Chrome on this machine; on Debian: apt-get install chromium")
    with chromium.Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found
