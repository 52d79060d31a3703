"""Adan in torchtitan: its debug Llama, its optimizer container with groups by pattern, its schedule.

$ python examples/torchtitan_debug_model.py

torchtitan has a fixed list of optimizers, to which AdanContainer adds Adan. In a `Trainer.Config`, replace
`default_adamw(...)` by `adan_config(...)`. The plain loop and PyTorch's attention below need no data and no GPU.
"""

from dataclasses import dataclass

import torch

import adan

try:
    from torchtitan.components.optimizer.lr_scheduler import LRSchedulersContainer
    from torchtitan.components.optimizer.optimizer import OptimizersContainer, ParamGroupConfig
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3 import model_registry
except ModuleNotFoundError as error:
    raise SystemExit(f"{error.name} is missing; run: pip install torchtitan") from None


class AdanContainer(OptimizersContainer):
    @dataclass(kw_only=True, slots=True)
    class Config(OptimizersContainer.Config): ...

    @staticmethod
    def _resolve_optimizer_factory(name):
        return adan.Adan if name == "Adan" else OptimizersContainer._resolve_optimizer_factory(name)


def adan_config(lr, **options):
    """Adan for all parameters; norms do not decay, and the embedding has half the rate."""
    rules = {r"norm": {"weight_decay": 0.0}, r"tok_embeddings": {"lr": lr / 2}, r".*": {}}
    given = {pattern: {"lr": lr, **options, **more} for pattern, more in rules.items()}
    groups = [ParamGroupConfig(pattern=x, optimizer_name="Adan", optimizer_kwargs=given[x]) for x in given]
    return AdanContainer.Config(param_groups=groups)


def build(steps):
    torch.manual_seed(0)
    config = model_registry("debugmodel").model
    for layer in config.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    (model := config.build()).init_weights(buffer_device=torch.device("cpu"))
    s = adan.suggest_from_adamw(8e-4, weight_decay=0.1, total_steps=steps)
    optimizers = adan_config(**s.options()).build(model_parts=[model])
    schedule = LRSchedulersContainer.Config(warmup_steps=s.warmup_steps)
    return model, optimizers, schedule.build(optimizers=optimizers, training_steps=steps)


def train(model, optimizers, schedule, steps):
    for _ in range(steps):
        tokens = (torch.randint(50, (4, 1)) + 3 * torch.arange(33)) % 97
        logits = model(tokens[:, :-1], torch.arange(32).expand(4, 32))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizers.step(), schedule.step(), optimizers.zero_grad()
        yield loss.item()


if __name__ == "__main__":
    for step, loss in enumerate(train(*build(50), 50)):
        print(f"step {step}: loss {loss:.3f}")
