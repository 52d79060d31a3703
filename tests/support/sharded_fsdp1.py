"""The older FullyShardedDataParallel: its parameters are plain tensors. Run by `test_several_processes.py`."""

import warnings
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel

from adan import Adan
from support.sharded import OPTIONS, backward, batch, model

CLIP = 0.05  # of gradients whose norm is some ten times that


def wrapped(net, use_orig_params):
    with warnings.catch_warnings():  # that it is old, and that it runs on a CPU
        warnings.simplefilter("ignore")
        return FullyShardedDataParallel(net, device_id=torch.device("cpu"), use_orig_params=use_orig_params)


def steps(net, opt, part=0, parts=1):
    for i in range(3):
        opt.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            backward(net, batch(i, part, parts))
        opt.step()


def whole(net):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with FullyShardedDataParallel.summon_full_params(net):
            return torch.cat([p.detach().flatten().clone() for p in net.parameters()])


def trains_as_one(use_orig_params, **options):
    net = wrapped(model(), use_orig_params)
    opt = Adan(net.parameters(), **OPTIONS, **options)
    steps(net, opt, dist.get_rank(), dist.get_world_size())
    single = model()
    options.pop("norm_group", None)
    steps(single, Adan(single.parameters(), **OPTIONS, **options))
    expected = torch.cat([p.detach().flatten() for p in single.parameters()])
    torch.testing.assert_close(whole(net), expected, rtol=1e-4, atol=1e-5)


def clips_as_one_or_is_refused(use_orig_params, **options):
    """By the norm of all processes, or an error that says what to use; never by the norm of each process's part."""
    try:
        trains_as_one(use_orig_params, max_grad_norm=CLIP, **options)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        assert "max_grad_norm" in str(error), error  # noqa: PT017
        assert "fully_shard" in str(error) or "norm_group" in str(error), error  # noqa: PT017


CASES = {
    f"{name}, {'original' if use_orig_params else 'flat'} parameters": partial(
        trains_as_one, use_orig_params=use_orig_params, **options
    )
    for use_orig_params in (False, True)
    for name, options in {"plain": {}, "clipped": {"max_grad_norm": CLIP, "norm_group": "world"}}.items()
}
CLIPPED = {
    "flat parameters": partial(clips_as_one_or_is_refused, use_orig_params=False),
    "original parameters": partial(clips_as_one_or_is_refused, use_orig_params=True),
}
