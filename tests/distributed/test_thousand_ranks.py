"""One rank of 1,024 under FSDP2, with torch's fake process group: its bytes, its messages, its uneven and empty shards.

Collectives of that group return at once and move nothing, so numbers mean nothing here, and sizes and counts do.
"""

from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from adan import Adan, plan_memory
from adan.lowbit import FORMATS
from adan.sharding import local

RANKS = 1024
COUPLED = {"betas": (0.92, 0.92, 0.99)}


class Net(nn.Module):
    """Rows per rank: 5 (rank 1,000 has the last one), 2 (749 has the last), 3 (999), and 1 for the first 131 alone."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(5001, 1000)
        self.up = nn.Linear(1000, 1500)
        self.down = nn.Linear(1500, 3000)
        self.norm = nn.LayerNorm(131)

    def forward(self, at):
        y = self.down(torch.tanh(self.up(self.words(at))))
        return self.norm(y[:, :131]).sum()


@contextmanager
def rank_of(rank):
    """A mesh of 1,024 ranks, of which this process is one."""
    dist.init_process_group("fake", rank=rank, world_size=RANKS, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (RANKS,))
    finally:
        dist.destroy_process_group()


def sharded(model, mesh):
    for part in [*model.children(), model]:
        fully_shard(part, mesh=mesh)
    return model


def storages(tensors):
    """Bytes of memory, each piece once: FSDP2's gradients are views of a buffer."""
    found = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in map(local, tensors)}
    return sum(found.values())


def state_bytes(opt):
    return sum(local(x).nbytes for state in opt.state.values() for x in state.values())


@pytest.mark.parametrize("rank", [0, 512, 1000, 1023])
def test_bytes_and_messages_of_a_rank(rank):
    planned = plan_memory(Net(), shards=RANKS, rank=rank).rows
    with rank_of(rank) as mesh:
        net = sharded(Net(), mesh)
        rows = [p.to_local().shape[0] for p in net.parameters()]
        assert rows == {0: [5, 2, 2, 3, 3, 1, 1], 512: [5, 2, 2, 3, 3, 0, 0], 1000: [1] + 6 * [0]}.get(rank, 7 * [0])
        assert plan_memory(net).rows == planned
        net(torch.arange(4)).backward()
        assert storages(net.parameters()) == planned["AdamW"].weights
        assert storages(p.grad for p in net.parameters()) == planned["AdamW"].gradients
        for form in FORMATS:
            for suffix, options in (("", {}), (" coupled", COUPLED)):
                for limit, messages in ((0.0, {}), (1.0, {"c10d.allreduce_": 1})):
                    opt = Adan(net.parameters(), state_format=form, max_grad_norm=limit, **options)
                    with CommDebugMode() as sent:
                        opt.step()
                    assert {str(op): count for op, count in sent.get_comm_counts().items()} == messages
                    assert state_bytes(opt) == planned[f"Adan {form}{suffix}"].states


@pytest.mark.parametrize("rank", [0, 1000])
@pytest.mark.parametrize("form", [form for form in FORMATS if form.endswith("bit")])
def test_quantized_blocks_end_where_a_shard_does(form, rank):
    """A rank's step is that of a plain tensor of its shard's shape: no block has elements of another rank.

    4,100 elements per row, which are no whole blocks.
    """
    plain = nn.Parameter(torch.randn(5 if rank == 0 else 1, 4100))
    with rank_of(rank) as mesh:
        net = fully_shard(nn.Embedding(5001, 4100), mesh=mesh)
        (p,) = net.parameters()
        local(p).data.copy_(plain.data)
        optimizers = [Adan([x], state_format=form) for x in (p, plain)]
        for _ in range(3):
            plain.grad = torch.randn_like(plain)
            p.grad = torch.zeros_like(p)
            local(p.grad).copy_(plain.grad)
            for opt in optimizers:
                opt.step()
        ours, expected = optimizers[0].state[p], optimizers[1].state[plain]
        assert ours.keys() == expected.keys()
        assert any(x.dtype == torch.uint8 for x in expected.values())
        for name, x in expected.items():
            assert torch.equal(local(ours[name]), x), name
        assert torch.equal(local(p), plain)


@pytest.mark.parametrize("rank", [0, 700, 1017, 1023])
def test_tensors_of_a_model_of_405_billion(rank):
    """On the meta device: both embeddings and one layer. At 126 of 128,256 words per rank, the last six have none."""
    shapes = [(128256, 16384), (16384, 16384), (1024, 16384), (53248, 16384), (16384, 53248), (16384,), (128256, 16384)]
    model = nn.ParameterList(nn.Parameter(torch.empty(shape, device="meta")) for shape in shapes)
    planned = plan_memory(model, shards=RANKS, rank=rank)
    with rank_of(rank) as mesh:
        fully_shard(model, mesh=mesh)
        params = list(model.parameters())
        assert params[0].to_local().shape[0] == {1017: 114, 1023: 0}.get(rank, 126)
        assert plan_memory(model).rows == planned.rows
        for form in FORMATS:
            opt = Adan(params, state_format=form)
            for p in params:
                p.grad = torch.zeros_like(p)
            opt.step()
            assert state_bytes(opt) == planned.rows[f"Adan {form}"].states


def test_the_groups_of_an_earlier_init_process_group_are_not_used(monkeypatch):
    """Its meshes equal those of the later one. Not a Parameter: to those, torch 2.13 itself gives the earlier mesh."""
    used = []
    monkeypatch.setattr(dist, "all_reduce", lambda sums, group: used.append(group))
    for others in range(2):
        with rank_of(0):
            for _ in range(others):
                dist.new_group([0, 1, 2])  # so that a group of the mesh has another name
            mesh = DeviceMesh("cpu", [0, 1])
            p, grad = (DTensor.from_local(torch.ones(3), mesh, [Shard(0)], run_check=False) for _ in range(2))
            p.requires_grad_().grad = grad
            Adan([p], max_grad_norm=1.0).step()
            assert used.pop() is mesh.get_group()
