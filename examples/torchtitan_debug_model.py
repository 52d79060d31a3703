"""Adan in torchtitan: its debug Llama, its optimizer container with groups by pattern, its schedule.

$ python examples/torchtitan_debug_model.py

torchtitan knows optimizers by a list of its own, so its container is extended by one name: put `adan_config(...)` in
place of `default_adamw(...)` in a `Trainer.Config`. The loop here is plain, since its trainer needs a tokenizer and a
dataset. It needs a GPU: torchtitan's attention has no backward pass on CPUs.
"""

from dataclasses import dataclass

import torch

import adan

try:
    from torchtitan.components.optimizer.lr_scheduler import LRSchedulersContainer
    from torchtitan.components.optimizer.optimizer import OptimizersContainer, ParamGroupConfig
    from torchtitan.models.llama3 import model_registry
except ModuleNotFoundError as error:
    raise SystemExit(f"{error.name} is missing; run: pip install torchtitan") from None


class AdanContainer(OptimizersContainer):
    @dataclass(kw_only=True, slots=True)
    class Config(OptimizersContainer.Config):
        pass

    @staticmethod
    def _resolve_optimizer_factory(name):
        return adan.Adan if name == "Adan" else OptimizersContainer._resolve_optimizer_factory(name)


def adan_config(lr, **options):
    """Adan for all parameters; norms do not decay, and the embedding has half the rate."""
    rules = {r"norm": {"weight_decay": 0.0}, r"tok_embeddings": {"lr": lr / 2}, r".*": {}}
    given = {pattern: {"lr": lr, **options, **more} for pattern, more in rules.items()}
    groups = [ParamGroupConfig(pattern=x, optimizer_name="Adan", optimizer_kwargs=given[x]) for x in given]
    return AdanContainer.Config(param_groups=groups)


def build(steps, device):
    torch.manual_seed(0)
    model = model_registry("debugmodel").model.build()
    model.init_weights(buffer_device=torch.device("cpu"))
    s = adan.suggest_from_adamw(8e-4, weight_decay=0.1, total_steps=steps)
    optimizers = adan_config(**s.options()).build(model_parts=[model.to(device)])
    return model, optimizers, LRSchedulersContainer.Config().build(optimizers=optimizers, training_steps=steps)


if __name__ == "__main__":
    model, optimizers, schedule = build(50, "cuda")
    positions = torch.arange(32, device="cuda").expand(4, 32)
    for step in range(50):
        tokens = (torch.randint(50, (4, 1), device="cuda") + 3 * torch.arange(33, device="cuda")) % 97
        logits = model(tokens[:, :-1], positions, model.get_attention_masks(positions))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizers.step(), schedule.step(), optimizers.zero_grad()
        print(f"step {step}: loss {loss.item():.3f}")
