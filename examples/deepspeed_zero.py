"""DeepSpeed ZeRO 1, 2 and 3 with Adan as client optimizer, compared with training without DeepSpeed.

$ DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 examples/deepspeed_zero.py
"""

import sys
import warnings

import torch
from torch import nn

from adan import Adan

try:
    import deepspeed
except ModuleNotFoundError as error:
    raise SystemExit(f"{error.name} is missing; run: pip install '.[examples]'") from None

warnings.filterwarnings("ignore", category=FutureWarning)  # DeepSpeed 0.19 uses names that torch 2.13 has replaced


def train(stage: int, steps: int, folder: str = "", resume: bool = False) -> torch.Tensor:
    """All parameters after training; stage 0 is plain PyTorch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 63), nn.GELU(), nn.Linear(63, 10))
    optimizer = Adan(model.parameters(), lr=1e-2, betas=(0.9, 0.92, 0.99), weight_decay=0.02)
    inputs = torch.randn(64, 64)
    labels = (inputs @ torch.randn(64, 10)).argmax(1)
    if stage == 0:
        for _ in range(steps):
            nn.functional.cross_entropy(model(inputs), labels).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        return nn.utils.parameters_to_vector(model.parameters())
    ranks, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    config = {"train_micro_batch_size_per_gpu": len(inputs) // ranks, "zero_optimization": {"stage": stage}}
    # Clip by DeepSpeed: Adan's max_grad_norm would see only this process's shard.
    config |= {"zero_allow_untested_optimizer": True, "gradient_clipping": 0.5}
    engine, zero, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    assert zero.optimizer is optimizer
    inputs, labels = inputs[rank::ranks].to(engine.device), labels[rank::ranks].to(engine.device)
    if resume:
        engine.load_checkpoint(folder)
    while engine.global_steps < steps:
        engine.backward(nn.functional.cross_entropy(engine(inputs), labels))
        engine.step()
        if engine.global_steps == steps // 2:
            engine.save_checkpoint(folder)
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters()), enabled=stage == 3):
        return nn.utils.parameters_to_vector(engine.module.parameters()).detach().cpu()


if __name__ == "__main__":
    steps = int(sys.argv[1]) if sys.argv[1:] else 20
    deepspeed.init_distributed()
    expected = train(0, steps)
    for stage in (1, 2, 3):
        once, resumed = (train(stage, steps, f"runs/deepspeed/zero-{stage}", resume) for resume in (False, True))
        if torch.distributed.get_rank() == 0:
            off, again = (once - expected).abs().max(), (once - resumed).abs().max()
            print(f"ZeRO {stage}: differs by {off:.1e}, resumed differs by {again}")
    torch.distributed.destroy_process_group()
