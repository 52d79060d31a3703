"""LSTMs on Penn Treebank: a plain one, and one, two and three layers in the setting of AdaBelief (arXiv:2010.07468).

The paper follows that setting and states none of its own. From AdaBelief's published scripts: AWD-LSTM
(arXiv:1708.02182) with a tied embedding of 400 and hidden layers of 1,150; dropout 0.4, 0.25, 0.4 and 0.1 on output,
hidden layers, input and words, 0.5 on the recurrent weights; activation penalties 2 and 1; batch 20, 70 words, clipping
at 0.25, 200 epochs. The option `random_rows` gives the rows that code's random lengths, and each update a learning rate
in proportion. With `fixed_recurrent` the recurrent weights keep their initial values, as they do in that code: it makes
a new parameter of the dropped weights at every step, and no gradient reaches those that the optimizer has. It looks at
the test split, one column of words, after every epoch and reports the best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from adan_bench.data.files import PENN_TREEBANK
from adan_bench.task import Context, Scale, Task
from adan_bench.workloads.parts.sizes import LstmSizes
from adan_bench.workloads.registry import workload

if TYPE_CHECKING:
    from torch import Tensor, nn

EPOCH = 663  # rows of 70 words in 20 columns of 929,589 words
RANDOM_EPOCH = 686  # rows of random length, of 67.75 words on average
SMOKE_WORDS = 2_000  # with Penn Treebank's 10,000 the output layer alone would take 20 s
HELD_OUT = 10_000  # words; the whole of Penn Treebank's 82,430 would take longer than the training between two looks


SMOKE = LstmSizes(embedding=48, hidden=64, length=20, output=0.1, between=0.1, input=0.1, words=0.0, recurrent=0.1)
PLAIN = LstmSizes(embedding=64, hidden=64, length=20, output=0, between=0, input=0, words=0, recurrent=0)


def lstm(context: Context, layers: int, splits: Sequence[Tensor], known: int, note: str, plain: bool) -> Task:
    """splits: to train, for trials, for results; plain: without activation penalties and clipping."""
    import torch.nn.functional as F

    from adan_bench.data.words import Stream, perplexity
    from adan_bench.workloads.parts.lstm import LSTM

    length, network = context.sizes.length, LSTM(known, layers, context.sizes)
    if context.training.get("fixed_recurrent"):
        network.fix_recurrent()
    random_rows = context.seed if context.training.get("random_rows") else None
    train, held_out = splits[0], splits[1 if context.tuning else 2]
    stream = Stream(train, context.batch_size, length, network.initial(context.batch_size, context.device), random_rows)

    def following_loss(logits: Tensor, following: Tensor) -> Tensor:
        return F.cross_entropy(logits.float().flatten(0, 1), following.flatten())

    def loss(model: nn.Module, batch: Any) -> Tensor:
        words, following, carry = batch
        logits, carry, penalty = model(words, carry)
        stream.keep(carry)
        total = following_loss(logits, following)
        return total if plain else total + penalty

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        def step(words: Tensor, following: Tensor, carry: Any) -> tuple[Tensor, Any]:
            logits, carry, _ = model(words, carry)
            return following_loss(logits, following), carry

        columns = 1 if context.scale == "paper" and not context.tuning else 10
        return {"perplexity": perplexity(step, held_out, columns, length, context.device)}

    note += f": {len(train):,} words to train, {len(held_out):,} held out, vocabulary of {known:,}"
    clip = None if plain else 0.25
    rate = None if random_rows is None else stream.rate
    return Task(network, stream, loss, evaluate, note, max_grad_norm=clip, prepare=stream.gather, rate=rate)


@workload(
    "ptb-lstm", metric="perplexity", higher_is_better=False, smoke=Scale(650, 200, 20, eval_every=40, sizes=PLAIN)
)
def ptb_lstm(context: Context) -> Task:
    """LSTM (1 layer of width 64, tied embedding) on Penn Treebank, else on the standard library's documentation."""
    from adan_bench.data.words import documentation_splits, penn_treebank

    if context.has(PENN_TREEBANK[0]):
        splits, known = penn_treebank(context)
        note = "Penn Treebank, standard split"
    else:
        splits, known, note = documentation_splits(20)
    splits = [splits[0], *(split[:HELD_OUT] for split in splits[1:])]
    return lstm(context, 1, splits, known, note, plain=True)


def awd_lstm(context: Context, layers: int) -> Task:
    from adan_bench.data.words import documentation_splits, penn_treebank

    if context.scale != "smoke":
        splits, known = penn_treebank(context)
        note = "Penn Treebank, standard split"
    else:
        splits, known, note = documentation_splits(40, SMOKE_WORDS)
    return lstm(context, layers, splits, known, note, plain=False)


def register(layers: int, adamw: float) -> None:
    """One workload for each depth; `adamw` is the paper's test perplexity of AdamW."""

    def build(context: Context) -> Task:
        return awd_lstm(context, layers)

    workload(
        f"lstm-{layers}",
        metric="perplexity",
        higher_is_better=False,
        smoke=Scale(250, 120, 20, eval_every=40, sizes=SMOKE),
        small=Scale(150, 6 * EPOCH, 20, EPOCH, PENN_TREEBANK, LstmSizes()),
        paper=Scale(adamw, 200 * RANDOM_EPOCH, 20, RANDOM_EPOCH, PENN_TREEBANK, LstmSizes()),
        options=("random_rows", "fixed_recurrent"),
        summary=f"AWD-LSTM ({layers} layer{'s' if layers > 1 else ''}) on Penn Treebank, test perplexity",
    )(build)


for _layers, _adamw in ((1, 84.7), (2, 72.8), (3, 69.9)):
    register(_layers, _adamw)
