"""GPT-2 on Python code.

At paper scale GPT-2 345M on The Stack. From the authors' published arguments: 24 layers of width 1,024, 16 heads, rows
of 2,048 tokens, 400 per batch, clipping at 1; 150,000 steps with Adan (123 billion tokens), 300,000 with Adam. No token
comes again before all have come once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adan_bench.task import Context, Scale, Task
from adan_bench.workloads.registry import workload


@dataclass(frozen=True)
class GPT2Sizes:
    """length: tokens per sequence; held_out: rows of an evaluation."""

    layers: int
    width: int
    heads: int
    length: int
    vocabulary: int
    dropout: float = 0.0
    held_out: int = 256

    def config(self, vocabulary: int, start: int = 0, end: int = 0) -> Any:
        """Transformers' configuration; the tokenizer may have found fewer tokens than it was asked for."""
        import transformers

        from adan_bench.workloads.parts.networks import without_mask

        return transformers.GPT2Config(
            vocab_size=vocabulary,
            n_positions=self.length,
            n_embd=self.width,
            n_layer=self.layers,
            n_head=self.heads,
            activation_function="gelu_pytorch_tanh",  # GPT-2's own function, as one kernel instead of eight
            resid_pdrop=self.dropout,
            embd_pdrop=self.dropout,
            attn_pdrop=self.dropout,
            bos_token_id=start,
            eos_token_id=end,
            use_cache=False,
            attn_implementation=without_mask(),
        )


@workload(
    "gpt2-code",
    metric="loss",
    higher_is_better=False,
    smoke=Scale(5.2, 120, 16, eval_every=40, sizes=GPT2Sizes(2, 64, 4, 64, 512, held_out=64)),
    small=Scale(3.5, 1000, 32, sizes=GPT2Sizes(6, 320, 5, 256, 8192)),
    # the paper gives no loss: 1 nat per token is about what such models reach on code
    paper=Scale(1.0, 150_000, 400, 1000, ("code",), GPT2Sizes(24, 1024, 16, 2048, 50_000, 0.1)),
)
def gpt2_code(context: Context) -> Task:
    """GPT-2 on Python code: a folder in The Stack's layout, or the standard library's source."""
    import transformers

    from adan_bench.data.tokens import END, START, language, language_task, next_token_loss

    sizes: GPT2Sizes = context.sizes
    data = language(
        context, folder="code", kind="source", length=sizes.length + 1, vocabulary=sizes.vocabulary, rows=sizes.held_out
    )

    model = transformers.GPT2LMHeadModel(sizes.config(data.tokenizer.get_vocab_size(), START, END))
    return language_task(model, data, next_token_loss, context)
