"""Adan with torchao's training in 8 bits, compared with training in fp32.

$ python examples/torchao_low_precision.py

float8: matrix products in float8, fp32 weights. int8_mixed: products in int8. int8_weights: weights stored in int8.
"""

import argparse
from collections.abc import Callable

import torch
from torch import nn

from adan import Adan

try:
    from torchao.float8 import convert_to_float8_training
    from torchao.prototype.quantized_training import int8_mixed_precision_training, int8_weight_only_quantized_training
    from torchao.quantization import quantize_
except ModuleNotFoundError as error:
    raise SystemExit(f"{error.name} is missing; run: pip install '.[examples]'") from None

FORMATS: dict[str, Callable[[nn.Module], object]] = {
    "fp32": lambda model: model,
    "float8": convert_to_float8_training,
    # Without module_swap torchao 0.18.0 leaves the products in fp32: its weight's linear is never called.
    "int8_mixed": lambda model: quantize_(model, int8_mixed_precision_training(module_swap=True)),
    "int8_weights": lambda model: quantize_(model, int8_weight_only_quantized_training()),
}


def train(name: str, steps: int) -> float:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = torch.randn(128, 64, device=device)
    labels = (inputs @ torch.randn(64, 16, device=device)).argmax(1)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 16)).to(device)
    FORMATS[name](model)
    # Int8QuantizedTrainingLinearWeight lacks torch._foreach_addcdiv_, so update one tensor at a time.
    foreach = False if name == "int8_weights" else None
    optimizer = Adan(model.parameters(), lr=1e-2, betas=(0.9, 0.92, 0.99), weight_decay=0.02, foreach=foreach)
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    for name in FORMATS:
        print(f"{name}: loss {train(name, args.steps):.4f}")
