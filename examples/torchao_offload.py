"""Adan's states in host memory with torchao's CPUOffloadOptimizer, compared with Adan on the GPU.

$ python examples/torchao_offload.py

torchao offloads only from CUDA and XPU devices. Each large parameter gets its own Adan on the host, whose max_grad_norm
would clip that tensor alone: clip with clip_grad_norm_ instead.
"""

import argparse

import torch
from torch import nn

from adan import Adan

try:
    from torchao.optim import CPUOffloadOptimizer
except ModuleNotFoundError as error:
    raise SystemExit(f"{error.name} is missing; run: pip install '.[examples]'") from None

OPTIONS = {"lr": 1e-2, "betas": (0.9, 0.92, 0.99), "weight_decay": 0.02}


def train(offload: bool, steps: int) -> tuple[torch.Tensor, float, int]:
    """All parameters after training, the last loss, and the bytes of states on the GPU."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = torch.randn(128, 64, device=device)
    labels = (inputs @ torch.randn(64, 16, device=device)).argmax(1)
    model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 16)).to(device)
    if offload:
        optimizer = CPUOffloadOptimizer(model.parameters(), Adan, **OPTIONS)
        optimizers = [optimizer.d_opt, *optimizer.optim_dict.values()]
    else:
        optimizer = Adan(model.parameters(), **OPTIONS)
        optimizers = [optimizer]
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    states = [value for each in optimizers for state in each.state.values() for value in state.values()]
    on_device = sum(x.nbytes for x in states if x.device.type == device)
    return nn.utils.parameters_to_vector(model.parameters()), loss.item(), on_device


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    expected, _, whole = train(False, args.steps)
    params, loss, left = train(True, args.steps)
    difference = (params - expected).abs().max()
    print(f"loss {loss:.4f}, differs by {difference:.1e}, {left} of {whole} bytes of states on the GPU")
