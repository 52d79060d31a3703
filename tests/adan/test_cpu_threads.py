"""The C engine in any number of threads, in two Python threads at once, and in a child of fork()."""

import os
import signal
import threading
import time

import pytest
import torch
from support.cpu_engine import (
    DTYPES,
    TAILS,
    assert_alike,
    assert_same_bits,
    problem,
    states,
    train,
    without_library,
)


@without_library
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_number_of_threads_gives_the_same_bits(dtype, threads):
    results = []
    for count in (1, 2, 3, 5, 2):
        threads(count)
        params = problem(dtype, [*TAILS, 1_000_003, 40_000])
        opt = train(params, steps=3, fused=True)
        results.append(params + states(opt))
    for other in results[1:]:
        assert_same_bits(results[0], other)


@without_library
def test_many_small_tensors(threads):
    threads(3)
    results = []
    for engine in ({"fused": True}, {"foreach": False, "fused": False}):
        params = problem(torch.float32, [i % 70 for i in range(2000)])
        opt = train(params, steps=2, **engine)
        results.append((params, opt))
    assert_alike(*results)


@without_library
def test_two_optimizers_in_two_python_threads(threads):
    threads(2)
    expected, twins = problem(torch.float32, [300_000]), [problem(torch.float32, [300_000]) for _ in range(3)]
    train(expected, steps=20, fused=True)
    workers = [threading.Thread(target=train, args=(params,), kwargs={"steps": 20, "fused": True}) for params in twins]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for params in twins:
        assert_same_bits(params, expected)


@without_library
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork()")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_can_step(threads):
    threads(3)
    params = problem(torch.float32, [500_000])
    opt = train(params, steps=1, fused=True)  # the threads are there, and the child will not have them
    done = torch.zeros(1).share_memory_()
    child = os.fork()
    if child == 0:
        code = 1
        try:  # nothing but the step: PyTorch's own operations hang in a child once its OpenMP threads were used
            opt.step()
            opt.step()
            done[0] = opt.state[params[0]]["step"]
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + 30
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    if ended == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended == (child, 0), "the child hung or failed"
    assert done[0] == 3
    opt.step()
    assert opt.state[params[0]]["step"] == 2
