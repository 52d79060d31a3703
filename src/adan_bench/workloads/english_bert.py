"""A BERT of 5.2 million parameters on English word pieces, and its encoder fine-tuned on CoLA and SST-2.

small: the text is the prose of the packages that are installed here, or, with the option `text` = "debian", Debian's
documentation from the data folder. smoke: that of Python's own library, and generated sentences. SST-2's trials look at
the development split, its results at the test split. CoLA has no test split with answers: its results are of the
development split, and its trials hold out every eighth sentence of the training split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adan_bench.errors import UsageError
from adan_bench.task import Context, Scale, Task
from adan_bench.workloads.glue import KINDS, METRICS, GlueTask, generated, pretrained, read
from adan_bench.workloads.registry import workload

if TYPE_CHECKING:
    from torch import Tensor, nn

    from adan_bench.workloads.glue import Example
    from adan_bench.workloads.parts.transformer import BERT

MASKED = 0.15  # of these, 80% are masked and 10% replaced by any piece
HELD_OUT = 512  # rows of an evaluation
EVAL_BATCH = 128
SENTENCE = 64  # tokens of a row of GLUE


@dataclass(frozen=True)
class EnglishSizes:
    """length: word pieces per row."""

    width: int
    layers: int
    heads: int
    length: int
    vocabulary: int

    def encoder(self) -> BERT:
        from adan_bench.workloads.parts.transformer import BERT

        return BERT(self.width, self.layers, self.heads, self.length, self.vocabulary)


SMOKE = EnglishSizes(32, 2, 2, SENTENCE, 1_000)
SMALL = EnglishSizes(256, 4, 4, 128, 8_000)


@workload(
    "english-bert",
    metric="loss",
    higher_is_better=False,
    smoke=Scale(6.5, 100, 16, eval_every=20, sizes=SMOKE),
    small=Scale(2.8, 8000, 128, eval_every=400, sizes=SMALL),
    options=("text",),
)
def english_bert(context: Context) -> Task:
    """BERT of 4 layers on masked word pieces of English prose: of installed packages, or Debian's documentation."""
    import torch
    import torch.nn.functional as F

    from adan_bench.data.batching import Windows, generator
    from adan_bench.data.english import SPECIAL, START, english
    from adan_bench.workloads.parts.classification import without_decay
    from adan_bench.workloads.parts.transformer import MaskedLanguage

    sizes: EnglishSizes = context.sizes
    text = english(context, sizes.vocabulary)
    asked = round(MASKED * (sizes.length - 1))
    train, held_out = (
        Windows(text.splits[split].to(context.device), sizes.length - 1, context.batch_size, context.seed)
        for split in ("train", "valid" if context.tuning else "test")
    )

    def draws(count: int, *key: int) -> tuple[Tensor, ...]:
        """Noise whose order decides which pieces are asked about, what becomes of them, and any pieces."""
        source, shape = generator(*key), (count, asked)
        noise, fate = torch.rand(count, sizes.length - 1, generator=source), torch.rand(shape, generator=source)
        return noise, fate, torch.randint(len(SPECIAL), sizes.vocabulary, shape, generator=source)

    def begun(rows: Tensor) -> Tensor:
        return F.pad(rows.long(), (1, 0), value=START)

    def batches(position: int) -> Any:
        return train(position), draws(context.batch_size, context.seed, position, 1)

    def prepare(batch: Any) -> tuple[Tensor, ...]:
        return masked(begun(train.gather(batch[0])), *batch[1])

    def loss(model: nn.Module, batch: Any) -> Tensor:
        tokens, places, right = batch
        return F.cross_entropy(model(tokens, places).float().flatten(0, 1), right.flatten())

    count = min(HELD_OUT, len(held_out.tokens) // sizes.length)
    starts = torch.arange(count, device=context.device).unsqueeze(1) * sizes.length
    fixed = masked(begun(held_out.gather(starts)), *(part.to(context.device) for part in draws(count, 0)))

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        parts = zip(*(part.split(EVAL_BATCH) for part in fixed), strict=True)
        return {"loss": torch.stack([loss(model, part) * len(part[0]) for part in parts]).sum().item() / count}

    note = f"{len(train.tokens):,} word pieces of {text.note} to train, {count} rows of {sizes.length} held out"
    model = MaskedLanguage(sizes.encoder())
    return Task(model, batches, loss, evaluate, note, max_grad_norm=1.0, groups=without_decay, prepare=prepare)


def masked(tokens: Tensor, noise: Tensor, fate: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows as BERT sees them, the places that it is asked about, and what was there. A row's first is never asked."""
    import torch

    from adan_bench.data.english import MASK

    places = noise.argsort(1)[:, : fate.shape[1]] + 1
    right = tokens.gather(1, places)
    said = torch.where(fate < 0.8, MASK, torch.where(fate < 0.9, other, right))
    return tokens.scatter(1, places, said), places, right


def sentences(context: Context, kind: GlueTask) -> Task:
    import torch
    import torch.nn.functional as F

    from adan_bench.data.batching import epoch_order
    from adan_bench.data.english import END, PAD, START, english
    from adan_bench.data.tokens import name
    from adan_bench.workloads.parts.classification import without_decay
    from adan_bench.workloads.parts.transformer import SentenceClassifier

    text = english(context, context.sizes.vocabulary)
    train, tests, note = examples(context, kind)

    def encoded(part: list[Example]) -> tuple[Tensor, Tensor]:
        rows = torch.full((len(part), SENTENCE), PAD)
        for row, encoding in zip(rows, text.tokenizer.encode_batch([sentence for sentence, _, _ in part]), strict=True):
            ids = [START, *encoding.ids[: SENTENCE - 2], END]
            row[: len(ids)] = torch.tensor(ids)
        return rows.to(context.device), torch.tensor([int(label) for _, _, label in part], device=context.device)

    rows, labels = encoded(train)
    held_out, answers = encoded(tests)
    order = epoch_order(len(rows), context.batch_size, context.seed)

    def prepare(chosen: Tensor) -> tuple[Tensor, Tensor]:
        return rows.index_select(0, chosen), labels.index_select(0, chosen)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]).float(), batch[1])

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        logits = torch.cat([model(part).float() for part in held_out.split(2_000)])
        return {kind.metric: METRICS[kind.metric](logits, answers), "loss": F.cross_entropy(logits, answers).item()}

    encoder = context.sizes.encoder()
    if context.init is None:
        note += "; starts at random, not from a pre-trained BERT: give --init"
    else:
        try:
            encoder.load_state_dict(pretrained(context, name(text.tokenizer), "encoder."))
        except RuntimeError as error:
            reason = str(error).splitlines()[1].strip()
            raise UsageError(
                f"--init {context.init}: no BERT of this size ({reason}); name a run of english-bert"
            ) from error
    model = SentenceClassifier(encoder, len(kind.labels))
    note = f"{note}; {name(text.tokenizer)}"
    return Task(model, order, loss, evaluate, note, max_grad_norm=1.0, groups=without_decay, prepare=prepare)


def examples(context: Context, kind: GlueTask) -> tuple[list[Example], list[Example], str]:
    """Sentences to train, sentences held out, and a note."""
    if context.scale == "smoke":
        train, tests, note = generated(kind)
    else:
        folder = context.path(f"glue/{kind.folder}")
        train, dev = (read(folder / f"{split}.tsv", kind) for split in ("train", "dev"))
        tests = read(folder / "test.tsv", kind) if kind.name == "sst2" and not context.tuning else dev
        note = f"GLUE's {kind.folder}"
    if context.tuning and (context.scale == "smoke" or kind.name != "sst2"):
        train, tests = [example for i, example in enumerate(train) if i % 8], train[::8]
    return train, tests, f"{note}: {len(train):,} sentences to train, {len(tests):,} held out"


def _register(name: str, small: Scale) -> None:
    kind = next(kind for kind in KINDS if kind.name == name)

    def build(context: Context) -> Task:
        return sentences(context, kind)

    workload(
        f"english-{name}",
        metric=kind.metric,
        higher_is_better=True,
        after="english-bert",
        smoke=Scale(0.4 if kind.metric == "matthews" else 0.7, 80, 32, eval_every=20, sizes=SMOKE),
        small=small,
        options=("text",),
        summary=f"BERT of 4 layers on English, fine-tuned on GLUE's {kind.folder}",
    )(build)


def _files(folder: str, *splits: str) -> tuple[str, ...]:
    return tuple(f"glue/{folder}/{split}.tsv" for split in splits)


# Ten epochs each.
_register("cola", Scale(0.1, 2670, 32, needs=_files("CoLA", "train", "dev"), sizes=SMALL))
_register("sst2", Scale(0.77, 2160, 32, needs=_files("SST-2", "train", "dev", "test"), sizes=SMALL))
