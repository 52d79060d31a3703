"""GPTs over the bytes of Python source, of three sizes, and the smallest with a mixture of experts.

small: the source of all packages that are installed here, up to 400 MB; a file's content decides whether it is held
out. smoke: Python's own library. Windows are drawn at random.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adan_bench.task import Context, Scale, Task
from adan_bench.workloads.registry import workload

if TYPE_CHECKING:
    from torch import Tensor, nn

BALANCE = 0.02  # the weight of the routers' loss, as the released Mixtral's
HELD_OUT = 1_024  # windows
EVAL_BATCH = 128


@dataclass(frozen=True)
class ByteSizes:
    """context: bytes that a prediction can depend on; experts: of every layer, 0 for an MLP."""

    width: int
    layers: int
    heads: int
    context: int
    experts: int = 0


def pycode_gpt(context: Context) -> Task:
    import torch
    import torch.nn.functional as F

    from adan_bench.data.batching import Windows
    from adan_bench.data.source import python_source
    from adan_bench.workloads.parts.classification import without_decay
    from adan_bench.workloads.parts.transformer import GPT

    sizes: ByteSizes = context.sizes
    splits, source = python_source(whole=context.scale != "smoke")
    train, held_out = (splits[name].to(context.device) for name in ("train", "valid" if context.tuning else "test"))
    length = sizes.context + 1
    windows = Windows(train, length, context.batch_size, context.seed)
    count = min(HELD_OUT if context.scale != "smoke" else EVAL_BATCH, len(held_out) // length)
    starts = torch.arange(count, device=context.device).unsqueeze(1) * ((len(held_out) - length) // count)
    tests = held_out[starts + windows.offsets].long()

    def judged(model: nn.Module, rows: Tensor) -> tuple[Tensor, Tensor | float]:
        logits, balance = model(rows[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten()), balance

    def loss(model: nn.Module, rows: Tensor) -> Tensor:
        value, balance = judged(model, rows)
        return value + BALANCE * balance

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        total = torch.stack([judged(model, part)[0] * len(part) for part in tests.split(EVAL_BATCH)]).sum()
        return {"loss": total.item() / len(tests)}

    return Task(
        GPT(sizes.width, sizes.layers, sizes.heads, sizes.context, sizes.experts),
        windows,
        loss,
        evaluate,
        f"{source}: {len(train):,} to train, {count:,} windows of {sizes.context} held out",
        max_grad_norm=1.0,
        groups=without_decay,
        prepare=lambda first: windows.gather(first).long(),
    )


def _register(name: str, about: str, sizes: ByteSizes, batch_size: int, steps: int, target: float) -> None:
    smoke = ByteSizes(32, 2, 2, 64, sizes.experts)
    workload(
        name,
        metric="loss",
        higher_is_better=False,
        smoke=Scale(3.0, 100, 16, eval_every=20, sizes=smoke),
        small=Scale(target, steps, batch_size, steps // 20, sizes=sizes),
        summary=f"{about} on the bytes of installed Python source",
    )(pycode_gpt)


_register("pycode-gpt-1m", "GPT of 0.9 M", ByteSizes(128, 4, 4, 128), 32, 2000, 1.5)
_register("pycode-gpt-11m", "GPT of 10.9 M", ByteSizes(384, 6, 6, 256), 64, 2000, 1.0)
_register("pycode-gpt-26m", "GPT of 25.7 M", ByteSizes(512, 8, 8, 512), 32, 3000, 0.9)
_register("pycode-moe", "GPT of 4 layers with 8 experts each, 4.5 M,", ByteSizes(128, 4, 4, 128, 8), 32, 2000, 1.5)
