"""What a program may do to the memory of parameters and states between two steps; run by `adan/test_memory_safety.py`.

In a process of its own, so that a step that writes where it must not fails one test and does not end them all.
"""

import json
import multiprocessing
from functools import partial

import pytest
import torch

from adan import Adan
from support import engines
from support.parity import same_bits

OPTIONS = {"lr": 0.1, "betas": (0.9, 0.8, 0.95), "weight_decay": 0.1}


def asked_for(engine):
    """Without `fused=True`: what a fused engine does not serve goes to another."""
    return {**OPTIONS, **{name: value for name, value in engines.OPTIONS[engine].items() if name != "fused"}}


def step(opt, p, k):
    p.grad = None
    p.grad = (torch.linspace(-1, 1, p.numel()).view(p.shape) + k).to(p.dtype)
    opt.step()


def bits(tensors):
    return [x.detach().clone() for x in tensors]


def is_refused(engine, start, change):
    """A parameter of another shape has no state that fits: an error says so, and nothing is written anywhere."""
    buffer = torch.linspace(0, 1, 16_384)
    p = torch.nn.Parameter(start(buffer))
    opt = Adan([p], **asked_for(engine))
    for k in range(2):
        step(opt, p, k)
    p.grad = None
    p.data = change(buffer)
    before = bits([buffer, *opt.state[p].values()])
    with pytest.raises(RuntimeError, match=r"has shape .*delete optimizer\.state"):
        step(opt, p, 2)
    assert all(map(same_bits, [buffer, *opt.state[p].values()], before))


def is_as_if_copied(engine, start, change):
    """What lies at the old address but is another tensor makes the steps of the same tensor at a new address."""
    results = []
    for copied in (False, True):
        buffer = torch.linspace(0, 1, 400)
        p = torch.nn.Parameter(start(buffer))
        opt = Adan([p], **asked_for(engine))
        for k in range(2):
            step(opt, p, k)
        values = p.detach().clone()
        p.grad = None
        if copied:
            buffer = buffer.clone()
        p.data = change(buffer)
        p.data.copy_(values)
        for k in range(2, 4):
            step(opt, p, k)
        results.append(bits([buffer, p, *opt.state[p].values()]))
    assert all(x.dtype == y.dtype and same_bits(x, y) for x, y in zip(*results, strict=True))


FORMS = {
    "plain": {},
    "8bit": {"state_format": "8bit"},
    "4bit": {"state_format": "4bit"},
    "kahan": {"kahan_sum": True},
}


def moves_its_states(engine, form):
    """Every tensor of a state gets other memory, twice, as offloading does: the step reads and writes the new one."""
    results = []
    for moves in (False, True):
        p = torch.linspace(-1, 1, 4100 if "bit" in form else 100).to(torch.bfloat16 if form == "kahan" else None)
        p = torch.nn.Parameter(p)
        opt = Adan([p], **asked_for(engine), **FORMS[form])
        held = []
        for k in range(2):
            step(opt, p, k)
        for k in range(2, 4):
            for state in opt.state[p].values() if moves else ():
                held.append(state.data)
                state.data = state.data.clone()
                held[-1].fill_(77)  # what is still read at the old place is noticed
            step(opt, p, k)
        results.append(bits([p, *opt.state[p].values()]))
        assert all((x == 77).all() for x in held), "the old memory of a state was written to"
    assert all(map(same_bits, *results))


def first(n):
    return lambda buffer: buffer[:n]


def changes(case, start, change):
    return partial(case, start=start, change=change)


CHANGES = {
    "grows": changes(is_refused, first(100), lambda buffer: buffer),
    "shrinks": changes(is_refused, first(100), first(50)),
    "is reshaped": changes(is_refused, first(100), lambda buffer: buffer[:100].view(4, 25)),
    # The whole buffer under a narrower type: more elements than the states have.
    "becomes bytes of another type": changes(is_refused, first(100), lambda buffer: buffer[:100].view(torch.bfloat16)),
    "becomes double": changes(is_as_if_copied, first(100), lambda buffer: buffer[:200].view(torch.float64)),
    "becomes half": changes(is_as_if_copied, first(100), lambda buffer: buffer[:50].view(torch.bfloat16)),
    "is sliced": changes(is_as_if_copied, first(100), lambda buffer: buffer[:200:2]),
    "is filled up": changes(is_as_if_copied, lambda buffer: buffer[:200:2], first(100)),
}
CASES = CHANGES | {f"moves its states, {form}": partial(moves_its_states, form=form) for form in FORMS}


def run(engine, names, file):
    """In a process of its own: run the cases, and note after each one how it ended."""
    torch.set_num_threads(1)
    for name in names:
        error = None
        try:
            with engines.selected(engine, engines.LARGE if "bit" in name else engines.SMALL):
                CASES[name](engine)
        except (Exception, pytest.fail.Exception) as e:
            error = f"{type(e).__name__}: {e}"
        with open(file, "a", encoding="utf-8") as out:
            print(json.dumps([name, error]), file=out)


def outcomes(engine, file):
    """The error of each case, None for none. A process that crashes is followed by one for the cases after it."""
    results = {}
    while left := [name for name in CASES if name not in results]:
        process = multiprocessing.get_context("forkserver").Process(target=run, args=(engine, left, file))
        process.start()
        process.join()
        results.update(map(json.loads, file.read_text(encoding="utf-8").splitlines() if file.exists() else []))
        if process.exitcode:
            crashed = next(name for name in CASES if name not in results)
            results[crashed] = f"the step crashed the process: exit code {process.exitcode}"
    return results
