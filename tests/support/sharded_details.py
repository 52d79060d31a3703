"""What else must hold of parameters that are spread over processes; run by `test_several_processes.py`."""

import copy
import io
import pickle
import runpy
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import adan
from adan import Adan, release_gradients
from support.sharded import ENGINES, OPTIONS, Sharded, Single, assert_same, everything, own_params, zero_redundancy

SCALING = Path(__file__).parents[2] / "benchmarks" / "scaling.py"


def spread(values, placement, mesh=None):
    """A parameter, from values that are the same everywhere."""
    return torch.nn.Parameter(distribute_tensor(values, mesh or init_device_mesh("cpu", (2,)), [placement]))


def collectives(step):
    counts = CommDebugMode()
    with counts:
        step()
    return {str(op).split(".")[-1]: n for op, n in counts.get_comm_counts().items() if n}


def counts_collectives(strategy, options, expected):
    """What `docs/distributed.md` says of messages."""
    sharded = Sharded(strategy, **options)
    for i in range(2):
        sharded.backward(i)
        counted = collectives(sharded.adan.step)
        assert counted == expected, counted


class Traffic(TorchDispatchMode):
    """Bytes of the whole tensors that collectives of each kind were called with."""

    def __init__(self):
        super().__init__()
        self.bytes = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            tensors = [x for x in tree_leaves(args) if isinstance(x, torch.Tensor)]
            # A gather or a scatter names the whole and this process's part of it.
            self.bytes[str(func).split(".")[1]] += max(x.numel() * x.element_size() for x in tensors)
        return func(*args, **(kwargs or {}))


def moves_what_the_table_says(strategy):
    """Bytes held and sent, as `benchmarks/scaling.py` has them."""
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    n = sum(p.numel() for p in net.parameters())
    expected = runpy.run_path(str(SCALING))[strategy](n, 2)
    if strategy == "fsdp":
        for part in net:
            fully_shard(part, mesh=init_device_mesh("cpu", (2,)), reshard_after_forward=True)
    else:
        net = DistributedDataParallel(net)
    opt = Adan(net.parameters()) if strategy != "zero" else zero_redundancy(net.parameters(), lr=1e-3)
    for _ in range(3):  # DDP settles its buckets in the first
        opt.zero_grad()
        with Traffic() as traffic:
            net(torch.ones(4, 8)).square().mean().backward()
            opt.step()
    own = getattr(opt, "optim", opt)
    held = sum(adan.sharding.local(x).numel() * 4 for p in net.parameters() for x in (p, p.grad))
    states = [x for state in own.state.values() for name, x in state.items() if name != "step"]
    held += sum(adan.sharding.local(x).numel() * 4 for x in states)
    assert held == expected.held, held
    rounds = {"_allgather_base_": 1, "_reduce_scatter_base_": 1, "allreduce_": 2, "broadcast_": 1}
    sent = sum(rounds[kind] * size / 2 for kind, size in traffic.bytes.items())
    assert sent == expected.sent, traffic.bytes


def sums_what_is_partial():
    """A gradient that is still a sum over processes is added up before it is used, and before its norm is taken."""
    values, rank = torch.arange(10.0).reshape(5, 2), dist.get_rank()
    for placement in (Shard(0), Shard(1), Replicate()):
        p, q = spread(values, placement), torch.nn.Parameter(values.clone())
        opts = [Adan([x], max_grad_norm=1.0, **OPTIONS) for x in (p, q)]
        for _ in range(3):
            p.grad = DTensor.from_local((rank + 1) * values.cos(), p.device_mesh, [Partial()], run_check=False)
            q.grad = 3 * values.cos()
            for opt in opts:
                opt.step()
        assert_same([p.detach().full_tensor()], [q.detach()])
        assert opts[0].state[p]["exp_avg"].placements == (placement,)


def serves_empty_parts(engine):
    """One row on two processes: the second has nothing, and still takes part."""
    values = torch.arange(1.0, 5.0).reshape(1, 4)
    p, q = spread(values, Shard(0)), torch.nn.Parameter(values.clone())
    opts = [Adan([x], max_grad_norm=0.1, skip_nonfinite=True, **engine, **OPTIONS) for x in (p, q)]
    for _ in range(5):
        p.grad, q.grad = spread(values.sin(), Shard(0)).detach(), values.sin()
        for opt in opts:
            opt.step()
    assert_same([p.detach().full_tensor()], [q.detach()])
    assert opts[0].state[p]["step"] == 5


def works_without_gradients():
    """A process that has no gradient at all adds nothing to the norm, and keeps nobody waiting."""
    p = torch.nn.Parameter(torch.ones(3))
    opt = Adan([p], max_grad_norm=1.0, norm_group="world", **OPTIONS)
    if dist.get_rank() == 0:
        p.grad = torch.full((3,), 2.0)
    opt.step()
    if dist.get_rank() == 0:
        torch.testing.assert_close(opt.state[p]["prev_grad"].norm(), torch.tensor(1.0))
    else:
        assert not opt.state
        assert torch.equal(p, torch.ones(3))


def takes_a_last_step_without_a_learning_rate():
    """Where one process never has a state, and so might take itself for one that has not begun."""
    p = torch.nn.Parameter(torch.ones(3))
    opt = Adan([{"params": [p] if dist.get_rank() == 0 else []}], norm_group="world", **OPTIONS)
    p.grad = torch.ones(3)
    for lr in (0.1, 0.0):
        opt.param_groups[0]["lr"] = lr
        assert collectives(opt.step) == {}


def sums_over_a_named_group():
    """`norm_group` as a group, by its name, and through copies: pickles and state dicts know only the name."""
    group = dist.new_group([0, 1])
    p = torch.nn.Parameter(torch.ones(2))
    for given in (group, group.group_name, "world"):
        opt = Adan([p], max_grad_norm=1.0, norm_group=given)
        for each in (opt, copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))):
            (q,) = each.param_groups[0]["params"]
            q.grad = torch.full((2,), 3.0)
            each.step()
            torch.testing.assert_close(each.state[q]["prev_grad"], torch.full((2,), 0.5))
        assert "norm_group" not in opt.state_dict()["param_groups"][0]


def reads_gradients_that_a_scaler_scaled():
    """GradScaler tells all processes of an inf in one of them, and leaves the scale for the step to divide by."""
    sharded, single = Sharded("fsdp", max_grad_norm=0.05), Single(max_grad_norm=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=100)
    for i in range(5):
        sharded.opt.zero_grad()
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(100 + i)).chunk(2)[sharded.part]
        scaler.scale(sharded.net(x).square().sum(1).mean()).backward()
        before = everything(sharded)
        if i == 3 and dist.get_rank() == 1:
            adan.sharding.local(own_params(sharded)[0].grad).view(-1)[0] = torch.inf
        scaler.step(sharded.opt)
        scaler.update()
        if i == 3:
            assert scaler.get_scale() == 32.0
            assert all(map(torch.equal, before, everything(sharded)))
        else:
            single.step(i)
    assert_same(sharded.params(), single.params())


def goes_through_zero_checkpoints():
    """ZeroRedundancyOptimizer collects the states on one process, and each takes its own back."""
    for state_format in ("fp32", "8bit", "4bit"):
        goes_through_zero_checkpoint(state_format=state_format, width=700, max_grad_norm=0.05)


def goes_through_zero_checkpoint(**options):
    sharded, other = Sharded("zero", **options), Sharded("zero", seed=1, **options)
    for i in range(3):
        sharded.step(i)
    sharded.opt.consolidate_state_dict()
    file = io.BytesIO()
    if dist.get_rank() == 0:
        torch.save(sharded.opt.state_dict(), file)
    objects = [file.getvalue()]
    dist.broadcast_object_list(objects)
    other.opt.load_state_dict(torch.load(io.BytesIO(objects[0]), weights_only=True))
    other.net.load_state_dict(sharded.net.state_dict())
    for i in range(3, 6):
        sharded.step(i)
        other.step(i)
    assert all(map(torch.equal, sharded.params(), other.params()))


def keeps_its_plan():
    """From the second step on nothing is planned anew, and other memory under a parameter is noticed."""
    sharded, single = Sharded("fsdp"), Single()
    for run in (sharded, single):
        run.step(0)
        run.step(1)
    plan = sharded.adan._plan
    sharded.step(2)
    single.step(2)
    assert sharded.adan._plan is plan
    for run in (sharded, single):
        p = run.adan.param_groups[0]["params"][2]
        if run is sharded:
            p._local_tensor = p._local_tensor * 2  # as FSDP does where a model is moved
        else:
            p.data = p.data * 2
        run.adan.step()
    assert sharded.adan._plan is not plan
    assert_same(sharded.params(), single.params())


def starts_anew_after_restart():
    sharded, single = Sharded("fsdp"), Single()
    for run in (sharded, single):
        run.step(0)
        run.opt.restart()
        run.step(1)
    assert_same(sharded.params(), single.params())


def refuses_what_cannot_work():
    p = spread(torch.ones(4), Shard(0))
    opt = Adan([p], fused=True)
    p.grad = spread(torch.ones(4), Shard(0)).detach()
    opt.step()
    whole = Adan([torch.nn.Parameter(torch.ones(4))])
    whole.param_groups[0]["params"][0].grad = torch.ones(4)
    whole.step()
    with pytest.raises(ValueError, match="set_optimizer_state_dict"):
        opt.load_state_dict(whole.state_dict())
    with pytest.raises(TypeError, match="norm_group must be None, 'world'"):
        Adan([p], norm_group=3)
    with pytest.raises(ValueError, match="group_name"):
        Adan([{"params": [p], "norm_group": dist.group.WORLD}])
    with pytest.raises(ValueError, match="differentiable=True"):
        Adan([p], differentiable=True)
    # What is spread is not traced: torch.compile runs such a step in Python.
    before = p.detach().full_tensor()
    torch.compile(opt.step, backend="eager")()
    assert opt.state[p]["step"] == 2
    assert not torch.equal(p.detach().full_tensor(), before)


def names_what_is_wrong_with_a_group_or_a_gradient():
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    with pytest.raises(RuntimeError, match=r"norm_group='nope' names no process group.*'world'"):
        Adan([p], max_grad_norm=1.0, norm_group="nope").step()
    q = spread(torch.ones(4), Shard(0))
    q.grad = torch.ones(4)
    with pytest.raises(
        RuntimeError, match=r"parameter 'q' of shape \(4,\): its gradient is a plain tensor.*distribute_tensor"
    ):
        Adan([("q", q)]).step()


def refuses_to_release_under_ddp():
    """Wrapped itself, wrapped inside, or wrapped afterwards: gradients would be used before they are summed."""
    net = torch.nn.Linear(3, 2)
    opt, ddp = Adan(net.parameters()), DistributedDataParallel(net)
    for model in (ddp, torch.nn.Sequential(ddp)):
        with pytest.raises(ValueError, match="is or holds a DistributedDataParallel"):
            release_gradients(model, opt)
    with release_gradients(net, opt):
        with pytest.raises(RuntimeError, match="runs inside a DistributedDataParallel"):
            ddp(torch.ones(1, 3))
        net(torch.ones(1, 3)).sum().backward()
    assert opt.state[net.weight]["step"] == 1


NONE: dict[str, int] = {}
ONE = {"allreduce_": 1}
CLIP, SKIP, BOTH = {"max_grad_norm": 0.1}, {"skip_nonfinite": True}, {"max_grad_norm": 0.1, "skip_nonfinite": True}

CASES = {
    **{
        f"{strategy} {options}: {sum(expected.values())} messages": partial(
            counts_collectives, strategy, options, expected
        )
        for strategy, options, expected in (
            ("ddp", BOTH, NONE),
            ("fsdp", {}, NONE),
            ("fsdp", CLIP, ONE),
            ("fsdp", SKIP, ONE),
            ("fsdp", BOTH, ONE),
            ("hsdp", BOTH, ONE),
            ("tp", BOTH, ONE),
            ("fsdp_tp", {}, NONE),
            ("fsdp_tp", BOTH, ONE),
            ("zero", {}, NONE),
            ("zero", BOTH, ONE),
        )
    },
    **{f"traffic of {name}": partial(moves_what_the_table_says, name) for name in ("ddp", "zero", "fsdp")},
    "a wrong group, a wrong gradient": names_what_is_wrong_with_a_group_or_a_gradient,
    "partial gradients": sums_what_is_partial,
    **{f"empty parts, {name}": partial(serves_empty_parts, engine) for name, engine in ENGINES.items()},
    "no gradients": works_without_gradients,
    "lr of zero": takes_a_last_step_without_a_learning_rate,
    "named groups": sums_over_a_named_group,
    "GradScaler": reads_gradients_that_a_scaler_scaled,
    "ZeRO checkpoints": goes_through_zero_checkpoints,
    "kept plans": keeps_its_plan,
    "restart": starts_anew_after_restart,
    "errors": refuses_what_cannot_work,
    "release under DDP": refuses_to_release_under_ddp,
}
