"""Shards on a GPU: the CUDA engine serves them, the norm goes through NCCL, and nothing is read back."""

import pytest
import torch
import torch.distributed as dist
from support.sharded import OPTIONS, assert_same, model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from adan import Adan

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and dist.is_nccl_available()), reason="needs a GPU; gloo runs the same on the CPU"
)


@pytest.fixture(scope="module")
def nccl(tmp_path_factory):
    store = tmp_path_factory.mktemp("nccl") / "store"
    dist.init_process_group("nccl", f"file://{store}", world_size=1, rank=0)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@pytest.mark.parametrize("shape", [(1,), (1, 1)])
@pytest.mark.parametrize("engine", [{"fused": True}, {"foreach": True, "capturable": True}], ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"max_grad_norm": 0.05}, {"skip_nonfinite": True, "norm_group": "world"}], ids=str
)
def test_sharded_on_one_gpu(nccl, shape, engine, options):
    sharded, single = model().cuda(), model().cuda()
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    for part in (sharded.up, sharded.down, sharded):
        fully_shard(part, mesh=mesh)
    opts = [Adan(net.parameters(), **OPTIONS, **engine, **options) for net in (sharded, single)]
    for i in range(5):
        x = torch.randn(8, 6, device="cuda", generator=torch.Generator("cuda").manual_seed(i))
        for net, opt in zip((sharded, single), opts, strict=True):
            opt.zero_grad()
            net(x).square().mean().backward()
            torch.cuda.set_sync_debug_mode("error" if i else "default")
            try:
                opt.step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
    assert_same([p.full_tensor() for p in sharded.parameters()], list(single.parameters()))
    assert "cuda for" in repr(opts[0]) or "foreach" in engine
