"""Models of words that carry a state along: LSTMs on Penn Treebank, Transformer-XL (arXiv:1901.02860) on WikiText-103.

lstm-*: AWD-LSTM (arXiv:1708.02182) in the setting of AdaBelief's published scripts (arXiv:2010.07468), which the paper
follows, stating none of its own. The option `random_rows` gives the rows that code's random lengths, and each update a
learning rate in proportion. With `fixed_recurrent` the recurrent weights keep their initial values, as they do in that
code: it makes a new parameter of the dropped weights at every step, and no gradient reaches those that the optimizer
has. It looks at the test split, one column of words, after every epoch and reports the best.

transformer-xl: at paper scale the base model of its authors' script (https://github.com/kimiyoung/transformer-xl,
run_wt103_base.sh), an adaptive softmax over 267,735 words. An epoch's last row is left out where it is shorter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from adan_bench.data.files import PENN_TREEBANK, WIKITEXT
from adan_bench.task import Scale
from adan_bench.workloads.registry import built_by, workload

by_perplexity = partial(workload, metric="perplexity", higher_is_better=False)

EPOCH = 663  # rows of 70 words in 20 columns of 929,589 words
RANDOM_EPOCH = 686  # rows of random length, of 67.75 words on average


@dataclass(frozen=True)
class LstmSizes:
    """Widths, words per sequence, dropout of output, hidden layers, input, words and recurrent weights."""

    embedding: int = 400
    hidden: int = 1150
    length: int = 70
    output: float = 0.4
    between: float = 0.25
    input: float = 0.4
    words: float = 0.1
    recurrent: float = 0.5


@dataclass(frozen=True)
class XLSizes:
    """The model, the words of a step and of the memory; cutoffs: the first words of the softmax's clusters."""

    layers: int
    width: int
    heads: int
    inner: int
    dropout: float
    length: int
    memory: int
    cutoffs: tuple[int, ...] = ()


SMOKE = LstmSizes(embedding=48, hidden=64, length=20, output=0.1, between=0.1, input=0.1, words=0.0, recurrent=0.1)
PLAIN = LstmSizes(embedding=64, hidden=64, length=20, output=0, between=0, input=0, words=0, recurrent=0)

by_perplexity(
    "ptb-lstm",
    smoke=Scale(650, 200, 20, eval_every=40, sizes=PLAIN),
    summary="LSTM (1 layer of width 64, tied embedding) on Penn Treebank, else on the standard library's documentation",
)(built_by("lstm", "ptb_lstm"))

for _layers, _adamw in ((1, 84.7), (2, 72.8), (3, 69.9)):  # AdamW's test perplexity in the paper
    by_perplexity(
        f"lstm-{_layers}",
        smoke=Scale(250, 120, 20, eval_every=40, sizes=SMOKE),
        small=Scale(150, 6 * EPOCH, 20, EPOCH, PENN_TREEBANK, LstmSizes()),
        paper=Scale(_adamw, 200 * RANDOM_EPOCH, 20, RANDOM_EPOCH, PENN_TREEBANK, LstmSizes()),
        options=("random_rows", "fixed_recurrent"),
        summary=f"AWD-LSTM ({_layers} layer{'s' if _layers > 1 else ''}) on Penn Treebank, test perplexity",
    )(built_by("lstm", "awd_lstm", _layers))

_WIKITEXT = XLSizes(16, 410, 10, 2100, 0.1, 150, 150, (20_000, 40_000, 200_000))
by_perplexity(
    "transformer-xl",
    smoke=Scale(30, 120, 16, eval_every=40, sizes=XLSizes(2, 48, 2, 96, 0.0, 32, 32, (32, 48))),
    small=Scale(250, 4000, 20, needs=PENN_TREEBANK, sizes=XLSizes(6, 256, 8, 1024, 0.2, 70, 70, (2000, 5000))),
    paper=Scale(24.2, 200_000, 60, 4000, WIKITEXT, _WIKITEXT),
    summary="Transformer-XL with memory between batches, on WikiText-103, Penn Treebank, or characters; "
    "test perplexity",
)(built_by("transformer_xl", "transformer_xl"))
