"""Forward, backward and Adan's step captured in one CUDA graph and replayed, compared with training without a graph.

$ python examples/cuda_graph.py
"""

import argparse

import torch
from torch import nn

from adan import Adan


def train(steps: int, graphed: bool) -> tuple[torch.Tensor, float]:
    """All parameters after training, and the last loss."""
    torch.manual_seed(0)
    inputs = torch.randn(steps, 128, 64, device="cuda")
    labels = (inputs @ torch.randn(64, 10, device="cuda")).argmax(2)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10)).cuda()
    # A graph reads the memory that it was captured with, so batch and learning rate are tensors that are overwritten.
    x, y, rate = inputs[0].clone(), labels[0].clone(), torch.zeros((), device="cuda")
    optimizer = Adan(model.parameters(), lr=rate, betas=(0.9, 0.92, 0.99), weight_decay=0.02, capturable=True)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    # Warm up on a side stream at rate 0, which moves no parameter; then reset the moments.
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    optimizer.restart()
    if graphed:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step()
    for k in range(steps):
        x.copy_(inputs[k])
        y.copy_(labels[k])
        rate.fill_(1e-2 * min(1, (k + 1) / 10))
        if graphed:
            graph.replay()
        else:
            loss = step()
    return nn.utils.parameters_to_vector(model.parameters()), loss.item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    eager, _ = train(args.steps, graphed=False)
    replayed, loss = train(args.steps, graphed=True)
    print(f"loss {loss:.3f}, replayed differs by {(eager - replayed).abs().max():.1e}")
