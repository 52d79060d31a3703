"""Tasks of a small BERT on English: masked word pieces, and sentences of GLUE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adan_bench.data.batching import Windows, epoch_order, generator
from adan_bench.data.installed import END, MASK, PAD, SPECIAL, START, english
from adan_bench.data.tokens import name
from adan_bench.task import Context, Task
from adan_bench.workloads.language import GlueTask, TextSizes
from adan_bench.workloads.parts.bert import MASKED, METRICS, Example, generated, load_encoder, read
from adan_bench.workloads.parts.classification import without_decay
from adan_bench.workloads.parts.transformer import BERT, MaskedLanguage, SentenceClassifier

HELD_OUT = 512  # rows of an evaluation
EVAL_BATCH = 128
SENTENCE = 64  # tokens of a row of GLUE


def pretraining(context: Context) -> Task:
    sizes: TextSizes = context.sizes
    text = english(context, sizes.vocabulary)
    asked, own = round(MASKED * (sizes.length - 1)), context.own()
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
        return own(train(position)), tuple(map(own, draws(context.batch_size, context.seed, position, 1)))

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
    model = MaskedLanguage(BERT(sizes))
    return Task(model, batches, loss, evaluate, note, max_grad_norm=1.0, groups=without_decay, prepare=prepare)


def masked(tokens: Tensor, noise: Tensor, fate: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows as BERT sees them, the places that it is asked about, and what was there. A row's first is never asked."""
    places = noise.argsort(1)[:, : fate.shape[1]] + 1
    right = tokens.gather(1, places)
    said = torch.where(fate < 0.8, MASK, torch.where(fate < 0.9, other, right))
    return tokens.scatter(1, places, said), places, right


def finetuning(context: Context, kind: GlueTask) -> Task:
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
    order, own = epoch_order(len(rows), context.batch_size, context.seed), context.own()

    def prepare(chosen: Tensor) -> tuple[Tensor, Tensor]:
        return rows.index_select(0, chosen), labels.index_select(0, chosen)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]).float(), batch[1])

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        logits = torch.cat([model(part).float() for part in held_out.split(2_000)])
        return {kind.metric: METRICS[kind.metric](logits, answers), "loss": F.cross_entropy(logits, answers).item()}

    body = BERT(context.sizes)
    note += load_encoder(body, context, name(text.tokenizer), "encoder.", "english-bert")
    model = SentenceClassifier(body, len(kind.labels))
    note = f"{note}; {name(text.tokenizer)}"

    def batches(position: int) -> Tensor:
        return own(order(position))

    return Task(model, batches, loss, evaluate, note, max_grad_norm=1.0, groups=without_decay, prepare=prepare)


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
