"""What the tests of restarts share."""

import torch

#: Options of every state format.
FORMATS = [
    {},
    {"state_format": "8bit"},
    {"state_format": "4bit"},
    {"state_format": "bf16", "betas": (0.9, 0.9, 0.95)},
]


def run(params, opt, steps, first=0):
    """Steps with gradients that depend on the step's number and the parameters alone."""
    for k in range(first, first + steps):
        for i, p in enumerate(params):
            wide = torch.complex64 if p.is_complex() else torch.float32
            generator = torch.Generator("cpu").manual_seed(100 * k + i)
            noise = torch.randn(p.shape, generator=generator, dtype=wide, device="cpu")
            p.grad = p.detach() + noise.to(p)
        opt.step()
