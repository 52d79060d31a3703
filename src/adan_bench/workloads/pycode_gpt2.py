"""GPT-2 on Python code, byte by byte."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from adan_bench.spec import Context, Task
from adan_bench.workloads.registry import workload

LENGTH = 64
SIZE = 2_000_000  # bytes


@workload("pycode-gpt2", metric="loss", higher_is_better=False, target=2.8, steps=160, eval_every=16, batch_size=16)
def pycode_gpt2(context: Context) -> Task:
    """GPT-2 (2 layers of width 64, 64 bytes of context) on the standard library's own source."""
    import platform

    import torch
    import torch.nn.functional as F
    import transformers

    from adan_bench.data.batching import fingerprint, library_sources, windows

    text = "".join(library_sources()).encode()[:SIZE]
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long().to(context.device)
    split = len(tokens) * 9 // 10
    held_out = windows(tokens[split:], LENGTH + 1, 128, seed=0)(0)  # the same 128 windows for every run

    def loss(model: nn.Module, batch: Any) -> Tensor:
        logits = model(batch[:, :-1]).logits.float()
        return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        return {"loss": loss(model, held_out).item()}

    library: Any = transformers
    config = library.GPT2Config(
        vocab_size=256,
        n_positions=LENGTH,
        n_embd=64,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    note = f"standard library of Python {platform.python_version()}, {len(text):,} bytes, sha256 {fingerprint(text)}"
    batches = windows(tokens[:split], LENGTH + 1, context.batch_size, context.seed)
    return Task(library.GPT2LMHeadModel(config), batches, loss, evaluate, note)
