"""BERT, trained from scratch to fill in masked words.

The paper takes Fairseq's setting for BERT, which predicts masked words alone, no next sentence: 12 layers of width 768,
rows of 512 tokens, byte-level BPE, dropout 0.1. From the authors' published configuration: 256 rows per batch (8 × 32),
1,000,000 steps, clipping at 5. A row is the next 511 tokens of the text; Fairseq's breaks off at the end of a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adan_bench.task import Context, Scale, Task
from adan_bench.workloads.registry import workload

if TYPE_CHECKING:
    from torch import Tensor, nn

MASKED = 0.15  # of these, 80% are replaced by <mask> and 10% by any token
IGNORED = -100


@dataclass(frozen=True)
class BertSizes:
    """length: tokens per sequence; deviation: of the first weights; held_out: rows of an evaluation."""

    layers: int
    width: int
    heads: int
    length: int
    vocabulary: int
    dropout: float = 0.1
    deviation: float = 0.02
    held_out: int = 256

    def config(self, vocabulary: int, **head: Any) -> Any:
        """Transformers' configuration; the tokenizer may have found fewer tokens than it was asked for."""
        import transformers

        from adan_bench.data.tokens import PAD

        return transformers.BertConfig(
            vocab_size=vocabulary,
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            intermediate_size=4 * self.width,
            max_position_embeddings=self.length,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
            pad_token_id=PAD,
            initializer_range=self.deviation,
            **head,
        )


SMOKE = BertSizes(2, 64, 4, 40, 1024, dropout=0.0, deviation=0.1, held_out=64)
SMALL = BertSizes(4, 256, 4, 128, 8192)
PAPER = BertSizes(12, 768, 12, 512, 50_000)


@workload(
    "bert-pretrain",
    metric="loss",
    higher_is_better=False,
    smoke=Scale(6.3, 150, 16, eval_every=50, sizes=SMOKE),
    small=Scale(5.5, 1500, 64, sizes=SMALL),
    # the paper gives no loss of the pre-training: 2 nats per masked token is about what BERT-base reaches
    paper=Scale(2.0, 1_000_000, 256, 10_000, ("text",), PAPER),
)
def bert_pretrain(context: Context) -> Task:
    """BERT on masked words of a text folder, or of the standard library's documentation."""
    import torch
    import torch.nn.functional as F
    import transformers

    from adan_bench.data.batching import generator
    from adan_bench.data.tokens import START, language

    sizes: BertSizes = context.sizes
    data = language(
        context, folder="text", kind="prose", length=sizes.length - 1, vocabulary=sizes.vocabulary, rows=sizes.held_out
    )

    def draws(rows: int, *key: int) -> tuple[Tensor, Tensor, Tensor]:
        return drawn((rows, sizes.length), data.tokenizer.get_vocab_size(), generator(*key))

    def begun(rows: Tensor) -> Tensor:
        return torch.cat([torch.full_like(rows[:, :1], START), rows], 1)

    def batches(position: int) -> tuple[Tensor, Any]:
        return data.batches(position), draws(context.batch_size, context.seed, position, 1)

    def prepare(batch: Any) -> tuple[Tensor, Tensor]:
        return masked(begun(data.gather(batch[0])), *batch[1])

    def loss(model: nn.Module, batch: Any) -> Tensor:
        words, answers = batch
        # With a dimension for heads and one for queries the mask is taken as it is; else its values would be read back.
        logits = model(words, attention_mask=present(words).bool()[:, None, None]).logits.float()
        return F.cross_entropy(logits.flatten(0, 1), answers.flatten(), ignore_index=IGNORED)

    held_out = masked(begun(data.held_out), *draws(len(data.held_out), 0))

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        parts = zip(*(t.to(context.device).split(context.batch_size) for t in held_out), strict=True)
        losses = [(loss(model, part).item(), int((part[1] != IGNORED).sum())) for part in parts]
        return {"loss": sum(value * count for value, count in losses) / sum(count for _, count in losses)}

    model = transformers.BertForMaskedLM(sizes.config(data.tokenizer.get_vocab_size()))
    return Task(model, batches, loss, evaluate, data.note, max_grad_norm=5.0, prepare=prepare)


def tokenizer(context: Context) -> Any:
    """The tokenizer of the pre-training at this scale, derived from the same text."""
    from adan_bench.data.tokens import Corpus, library_tokenizer

    vocabulary = context.sizes.vocabulary
    if context.scale == "paper":
        return Corpus(context.path("text")).tokenizer(vocabulary)
    return library_tokenizer("prose", vocabulary, context.scale)


def present(words: Tensor) -> Tensor:
    """1 where there is a token, 0 where there is padding."""
    from adan_bench.data.tokens import PAD

    return (words != PAD).long()


def drawn(shape: tuple[int, int], vocabulary: int, source: Any) -> tuple[Tensor, Tensor, Tensor]:
    """For every word: whether it is hidden, what becomes of it, and any word."""
    import torch

    from adan_bench.data.tokens import SPECIAL

    chance, fate = torch.rand((2, *shape), generator=source)
    return chance < MASKED, fate, torch.randint(len(SPECIAL), vocabulary, shape, generator=source)


def masked(words: Tensor, hidden: Tensor, fate: Tensor, anything: Tensor) -> tuple[Tensor, Tensor]:
    """The words with some hidden, and the hidden ones as answers."""
    import torch

    from adan_bench.data.tokens import MASK, SPECIAL

    chosen = hidden & (words >= len(SPECIAL))
    shown = torch.where(chosen & (fate < 0.8), MASK, words)
    shown = torch.where(chosen & (fate >= 0.9), anything, shown)
    return shown, torch.where(chosen, words, IGNORED)
