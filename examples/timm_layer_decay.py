"""Adan in timm's optimizer factory, with its parameter groups, layer-wise learning rates and schedule.

$ python examples/timm_layer_decay.py

timm has its own optimizer called adan, so this one is registered under another name. The name has no underscore,
because timm would look up only the part after it.
"""

import argparse

import torch
from torch import nn

from adan import Adan

try:
    import timm
    from sklearn.datasets import load_digits
    from timm.optim import OptimInfo, create_optimizer_v2
    from timm.optim._optim_factory import default_registry
    from timm.scheduler import CosineLRScheduler
except ModuleNotFoundError as error:
    raise SystemExit(f"{error.name} is missing; run: pip install '.[examples]'") from None

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32, device=device).view(-1, 1, 8, 8) / 16
    labels = torch.tensor(labels, device=device)
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=8, patch_size=2, in_chans=1, num_classes=10, embed_dim=48, depth=3, num_heads=3
    ).to(device)

    default_registry.register(OptimInfo("exactadan", Adan, has_betas=True, num_betas=3))
    optimizer = create_optimizer_v2(
        model, "exactadan", lr=2e-2, weight_decay=0.02, layer_decay=0.9, betas=(0.9, 0.92, 0.99), max_grad_norm=1.0
    )
    # timm stores layer-wise rates as lr_scale in the groups; only timm's own schedules apply it.
    schedule = CosineLRScheduler(optimizer, args.steps, warmup_t=args.steps // 10, t_in_epochs=False)

    for k in range(args.steps):
        schedule.step_update(k)
        batch = torch.randint(len(images), (128,), device=device)
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        optimizer.zero_grad()
        if k == args.steps // 2:
            rates = sorted({group["lr"] for group in optimizer.param_groups})
    with torch.no_grad():
        accuracy = (model(images).argmax(1) == labels).float().mean()
    print(f"{type(optimizer).__module__}: accuracy {accuracy:.3f}, rates from {rates[0]:.2e} to {rates[-1]:.2e}")
