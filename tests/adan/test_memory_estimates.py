"""Tools that run a step without data, to learn what memory it would take: fake tensors, MemTracker, meta tensors."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from adan import Adan, Restart

OPTIONS = [
    {},
    {"foreach": True},
    {"foreach": False, "fused": False},
    {"max_grad_norm": 1.0},
    {"state_format": "8bit"},
    {"state_format": "4bit"},
    {"skip_nonfinite": True, "betas": (0.9, 0.9, 0.99)},
    {"restart": Restart.probe()},
]


def sizes_after_training(options, device="cpu"):
    model = torch.nn.Linear(70, 70, device=device)
    opt = Adan(model.parameters(), **options)
    for _ in range(3):
        opt.zero_grad()
        model(torch.ones(2, 70, device=device)).sum().backward()
        opt.step()
    if device == "meta":
        saved, opt = opt.state_dict(), Adan(model.parameters(), **options)
        opt.load_state_dict(saved)
    return [{name: (x.shape, x.dtype) for name, x in state.items()} for state in opt.state.values()]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_fake_and_meta_tensors(options):
    """A user who estimates memory under FakeTensorMode, which works with AdamW, got a data-dependent error."""
    real = sizes_after_training(options)
    assert sizes_after_training(options, "meta") == real
    with FakeTensorMode():
        assert sizes_after_training(options) == real


@pytest.mark.parametrize("fake", [False, True])
def test_mem_tracker(fake):
    """Torch's MemTracker counts our states: 16 bytes per parameter and two counters."""
    mem_tracker = pytest.importorskip("torch.distributed._tools.mem_tracker")
    with FakeTensorMode(allow_non_fake_inputs=True) if fake else torch.device("cpu"):
        model = torch.nn.Linear(70, 70)
        opt = Adan(model.parameters())
        tracker = mem_tracker.MemTracker()
        tracker.track_external(model, opt)
        with tracker:
            model(torch.ones(2, 70)).sum().backward()
            opt.step()
    peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    states = next(size for kind, size in peak.items() if "OPT" in str(kind))
    # In allocations of 512 bytes on a GPU, exactly on the CPU; a step may hold buffers of its own for a moment.
    assert 16 * (70 * 70 + 70) <= states <= 20.5 * (70 * 70 + 70)
