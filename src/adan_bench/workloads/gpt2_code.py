"""GPT-2 on Python code.

At paper scale GPT-2 345M on The Stack. From the authors' published arguments: 24 layers of width 1,024, 16 heads, rows
of 2,048 tokens, 400 a batch, clipping at 1; 150,000 steps with Adan (123 billion tokens), 300,000 with Adam. No token
comes again before all have come once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from adan_bench.spec import Context, Task
from adan_bench.workloads.registry import workload

SIZES = {  # layers, width, heads, tokens in a row, vocabulary, dropout
    "smoke": (2, 64, 4, 64, 512, 0.0),
    "small": (6, 320, 5, 256, 8192, 0.0),
    "paper": (24, 1024, 16, 2048, 49_152, 0.1),
}


def config(scale: str, vocabulary: int) -> Any:
    import transformers

    from adan_bench.data.tokens import END, START

    layers, width, heads, length, _, dropout = SIZES[scale]
    library: Any = transformers
    return library.GPT2Config(
        vocab_size=vocabulary,
        n_positions=length,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=START,
        eos_token_id=END,
        use_cache=False,
    )


@workload(
    "gpt2-code",
    metric="loss",
    higher_is_better=False,
    target=5.2,
    steps=120,
    eval_every=40,
    batch_size=16,
    scales={
        "small": {"target": 3.5, "steps": 1000, "batch_size": 32},
        # the paper gives no loss: 1 nat a token is about what such models reach on code
        "paper": {"target": 1.0, "steps": 150_000, "eval_every": 1000, "batch_size": 400, "needs": ("code",)},
    },
)
def gpt2_code(context: Context) -> Task:
    """GPT-2 on Python code: a folder in The Stack's layout, or the standard library's source."""
    import transformers

    from adan_bench.data.tokens import LanguageTask, held_out_loss, language, next_token_loss

    length, vocabulary = SIZES[context.scale][3:5]
    rows = 64 if context.scale == "smoke" else 256
    data = language(context, folder="code", kind="source", length=length + 1, vocabulary=vocabulary, rows=rows)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return next_token_loss(model, batch)

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        return {"loss": held_out_loss(model, data.held_out, context.batch_size, context.device)}

    library: Any = transformers
    model = library.GPT2LMHeadModel(config(context.scale, data.tokenizer.get_vocab_size()))
    return LanguageTask(model, data.batches, loss, evaluate, data.note, max_grad_norm=1.0, tokenizer=data.tokenizer)
