"""GPT-2 on Python code, byte by byte."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from adan_bench.task import Context, Scale, Task
from adan_bench.workloads.gpt2_code import GPT2Sizes
from adan_bench.workloads.registry import workload

if TYPE_CHECKING:
    from torch import Tensor, nn

SIZE = 2_000_000  # bytes


@workload(
    "pycode-gpt2",
    metric="loss",
    higher_is_better=False,
    smoke=Scale(2.8, 160, 16, sizes=GPT2Sizes(layers=2, width=64, heads=4, length=64, vocabulary=256, held_out=128)),
)
def pycode_gpt2(context: Context) -> Task:
    """GPT-2 (2 layers of width 64, 64 bytes of context) on the standard library's own source."""
    import platform

    import torch
    import torch.nn.functional as F
    import transformers

    from adan_bench.data.batching import Windows, fingerprint, library_sources

    sizes: GPT2Sizes = context.sizes
    text = "".join(library_sources()).encode()[:SIZE]
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long().to(context.device)
    split = len(tokens) * 9 // 10
    tests = Windows(tokens[split:], sizes.length + 1, sizes.held_out, seed=0)
    held_out = tests.gather(tests(0).to(context.device))  # the same for every run

    def loss(model: nn.Module, batch: Any) -> Tensor:
        logits = model(batch[:, :-1]).logits.float()
        return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        return {"loss": loss(model, held_out).item()}

    note = f"standard library of Python {platform.python_version()}, {len(text):,} bytes, sha256 {fingerprint(text)}"
    model = transformers.GPT2LMHeadModel(sizes.config(sizes.vocabulary))
    windows = Windows(tokens[:split], sizes.length + 1, context.batch_size, context.seed)
    return Task(model, windows, loss, evaluate, note, prepare=windows.gather)
