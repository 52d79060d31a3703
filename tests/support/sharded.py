"""A small model under every way of spreading it over processes, and the same model in one process."""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import adan
from adan import Adan

#: Large enough that a step without a prev_grad, a decay or a clip is another step.
OPTIONS = {"lr": 2e-2, "betas": (0.9, 0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}
ENGINES = {"loop": {"foreach": False, "fused": False}, "foreach": {"foreach": True}, "cpu": {"fused": True}}
STEPS = 4


#: From 4,096 elements on a state is kept in few bits; the weights have 9,000 and 4,500 then.
WIDE = 1500


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.up = nn.Linear(6, width)
        self.down = nn.Linear(width, 3)  # three rows: on four processes one has none

    def forward(self, x):
        return self.down(torch.tanh(self.up(self.norm(x))))


def model(seed=0, width=12):
    torch.manual_seed(seed)
    return Net(width)


def batch(i, part=0, parts=1):
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(100 + i))
    return x.chunk(parts)[part]


def backward(net, x):
    net(x).square().sum(1).mean().backward()


def whole(x):
    return x.full_tensor() if isinstance(x, DTensor) else x


def ddp(net):
    return DistributedDataParallel(net), dist.get_rank(), dist.get_world_size()


def fsdp(net):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (net.up, net.down, net):
        fully_shard(part, mesh=mesh)
    return net, dist.get_rank(), dist.get_world_size()


def hsdp(net):
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    for part in (net.up, net.down, net):
        fully_shard(part, mesh=mesh)
    return net, dist.get_rank(), dist.get_world_size()


def tp(net, mesh=None):
    mesh = mesh or init_device_mesh("cpu", (dist.get_world_size(),))
    return parallelize_module(net, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()}), 0, 1


def fsdp_tp(net):
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("data", "tensor"))
    tp(net, mesh["tensor"])
    for part in (net.up, net.down, net):
        fully_shard(part, mesh=mesh["data"])
    return net, mesh["data"].get_local_rank(), 2


STRATEGIES = {"ddp": ddp, "zero": ddp, "fsdp": fsdp, "hsdp": hsdp, "tp": tp, "fsdp_tp": fsdp_tp}


def zero_redundancy(params, **options):
    from torch.distributed.optim import ZeroRedundancyOptimizer  # warns of torch.jit when it is imported

    return ZeroRedundancyOptimizer(params, Adan, norm_group="world", **options)


class Sharded:
    """The model and its optimizer, spread by a strategy."""

    def __init__(self, strategy, seed=0, width=12, **options):
        self.net, self.part, self.parts = STRATEGIES[strategy](model(seed, width))
        options = {**OPTIONS, **options}
        if strategy == "zero":
            self.opt = zero_redundancy(self.net.parameters(), **options)
        else:
            self.opt = Adan(self.net.parameters(), **options)
        self.adan = getattr(self.opt, "optim", self.opt)

    def backward(self, i):
        self.opt.zero_grad()
        backward(self.net, batch(i, self.part, self.parts))

    def step(self, i):
        self.backward(i)
        self.opt.step()

    def params(self):
        return [whole(p.detach()).clone() for p in self.net.parameters()]

    def clip_coefficients(self):
        """What gradients were multiplied with, told after a first step: the previous gradient is kept as used."""
        for p, state in self.adan.state.items():
            used, given = whole(state["prev_grad"]).flatten(), whole(p.grad).flatten()
            largest = given.abs().argmax()
            yield (used[largest] / given[largest]).item()


class Single(Sharded):
    """The same in one process, on the whole batch."""

    def __init__(self, seed=0, width=12, **options):
        self.net, self.part, self.parts = model(seed, width), 0, 1
        self.opt = self.adan = Adan(self.net.parameters(), **{**OPTIONS, **options})


def assert_same(params, expected, tolerance=1e-6):
    """Of the largest parameter: what a bias near zero has of rounding is that of its steps, not of its size."""
    mine, wanted = (torch.cat([p.detach().flatten() for p in tensors]) for tensors in (params, expected))
    error, size = (mine - wanted).abs().max(), wanted.abs().max()
    assert error <= tolerance * size, f"{error:.2e} off, of {size:.2e}"


def distance(params, others):
    return sum((p - q).square().sum() for p, q in zip(params, others, strict=True)).sqrt().item()


def assert_near(params, expected, start, tolerance=0.05):
    """Of the way from the start: parts draw other random numbers for their codes than the whole does."""
    error, way = distance(params, expected), distance(expected, start)
    assert way > 0
    assert error <= tolerance * way, f"{error:.2e} off, after a way of {way:.2e}"


def assert_replicas_are_identical(sharded):
    """Every process sees the same whole parameters, to the bit."""
    mine = torch.cat([p.flatten() for p in sharded.params()])
    others = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(others, mine)
    assert all(torch.equal(mine, other) for other in others)


def trains_as_one_process(strategy, engine, **options):
    options |= ENGINES[engine]
    sharded, single = Sharded(strategy, **options), Single(**options)
    names = adan.plan.describe_engines(sharded.adan.param_groups)
    own = len(own_params(sharded))
    assert not own or names == f"{engine} for {own} parameter{'s' * (own > 1)}", names
    for i in range(STEPS):
        sharded.step(i)
        single.step(i)
        if i == 0 and options.get("max_grad_norm"):
            (expected,) = {round(c, 5) for c in single.clip_coefficients()}
            assert expected < 0.5
            for c in sharded.clip_coefficients():
                assert abs(c / next(single.clip_coefficients()) - 1) <= 1e-6
    assert_same(sharded.params(), single.params())
    assert_replicas_are_identical(sharded)


def own_params(sharded):
    return [p for group in sharded.adan.param_groups for p in group["params"]]


def everything(sharded):
    """Copies of what a skipped step must not touch, of this process."""
    parts = [*own_params(sharded), *(x for state in sharded.adan.state.values() for x in state.values())]
    return [adan.sharding.local(x).detach().clone() for x in parts]


def skips_together(strategy, **options):
    """An inf in the last process alone leaves everything as it was in all of them."""
    sharded = Sharded(strategy, skip_nonfinite=True, **options)
    for i in range(3):
        sharded.step(i)
    before = everything(sharded)
    sharded.backward(3)
    if dist.get_rank() == dist.get_world_size() - 1:
        grads = [adan.sharding.local(p.grad) for p in own_params(sharded)]
        next(grad for grad in grads if grad.numel()).view(-1)[0] = torch.inf
    sharded.opt.step()
    assert all(map(torch.equal, before, everything(sharded)))
    sharded.step(4)

    single = Single(**options)
    for i in (0, 1, 2, 4):
        single.step(i)
    assert_same(sharded.params(), single.params())


def clips_over_stages():
    """A pipeline of two stages, each spread over a mesh that is not all processes: one norm over both stages."""
    mesh = init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("stage", "data", "tensor"))
    values = (1 + mesh["stage"].get_local_rank()) * torch.arange(1.0, 7.0).reshape(3, 2)
    p, grad = (distribute_tensor(values, mesh["data", "tensor"], [Shard(0), Replicate()]) for _ in range(2))
    p = nn.Parameter(p)
    p.grad = grad
    opt = Adan([p], max_grad_norm=1.0, norm_group=mesh["stage"].get_group())
    opt.step()
    norm = 5**0.5 * torch.arange(1.0, 7.0).norm()
    assert_same([opt.state[p]["prev_grad"].full_tensor()], [values / norm])


def cases(world_size):
    # Four processes take seconds for what two do in one: what is not about their number is run in two.
    strategies = {2: ("ddp", "zero", "fsdp", "tp"), 4: STRATEGIES}[world_size]
    all_engines = {2: strategies, 4: ("fsdp_tp",)}[world_size]
    rows = {}
    for strategy in strategies:
        for engine in ENGINES if strategy in all_engines else ["cpu"]:
            rows[f"{strategy}, {engine}, clipped"] = partial(
                trains_as_one_process, strategy, engine, max_grad_norm=0.05
            )
        if world_size == 2:
            rows[f"{strategy}, not clipped"] = partial(trains_as_one_process, strategy, "cpu")
        if strategy != "ddp":
            rows[f"{strategy}, skips"] = partial(skips_together, strategy)
    if world_size == 4:
        rows["stages"] = clips_over_stages
    return rows
