"""Tasks of transformers' BERT: masked words, and the tasks of GLUE, from its files or generated."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from adan_bench.data.batching import epoch_order, generator
from adan_bench.data.corpus import Corpus
from adan_bench.data.tokens import END, MASK, PAD, SPECIAL, START, language, library, masking_tokenizer, name
from adan_bench.data.words import documentation
from adan_bench.errors import UsageError, reading
from adan_bench.task import Context, Task
from adan_bench.workloads.language import GlueTask, TextSizes

MASKED = 0.15  # of these, 80% are replaced by <mask> and 10% by any token
IGNORED = -100
TRAIN, DEV = 1200, 240  # generated examples

Example = tuple[str, str, float]  # sentence, second sentence or "", label or score
Maker = Callable[[random.Random], Example]


def bert_config(sizes: TextSizes, vocabulary: int, **head: Any) -> Any:
    """Transformers' configuration; the tokenizer may have found fewer tokens than it was asked for."""
    return transformers.BertConfig(
        vocab_size=vocabulary,
        hidden_size=sizes.width,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        intermediate_size=4 * sizes.width,
        max_position_embeddings=sizes.length,
        hidden_dropout_prob=sizes.dropout,
        attention_probs_dropout_prob=sizes.dropout,
        pad_token_id=PAD,
        initializer_range=sizes.deviation,
        **head,
    )


def pretraining(context: Context) -> Task:
    sizes: TextSizes = context.sizes
    data, own = language(context, "text", "prose", sizes.length - 1, masked=True), context.own()

    def draws(rows: int, *key: int) -> tuple[Tensor, Tensor, Tensor]:
        return drawn((rows, sizes.length), data.tokenizer.get_vocab_size(), generator(*key))

    def begun(rows: Tensor) -> Tensor:
        return torch.cat([torch.full_like(rows[:, :1], START), rows], 1)

    def batches(position: int) -> tuple[Tensor, Any]:
        return data.batches(position), tuple(map(own, draws(context.batch_size, context.seed, position, 1)))

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

    model = transformers.BertForMaskedLM(bert_config(sizes, data.tokenizer.get_vocab_size()))

    def weight(batch: Any) -> Tensor:
        answers: Tensor = batch[1]
        return (answers != IGNORED).sum()

    return Task(model, batches, loss, evaluate, data.note, max_grad_norm=5.0, prepare=prepare, weight=weight)


def tokenizer(context: Context) -> Any:
    """The tokenizer of the pre-training at this scale, derived from the same text."""
    vocabulary = context.sizes.vocabulary
    if context.scale == "paper":
        return masking_tokenizer(Corpus(context.path("text")), vocabulary)
    return library("prose", vocabulary, context.scale)[0]


def present(words: Tensor) -> Tensor:
    """1 where there is a token, 0 where there is padding."""
    return (words != PAD).long()


def drawn(shape: tuple[int, int], vocabulary: int, source: Any) -> tuple[Tensor, Tensor, Tensor]:
    """For every word: whether it is hidden, what becomes of it, and any word."""
    chance, fate = torch.rand((2, *shape), generator=source)
    return chance < MASKED, fate, torch.randint(len(SPECIAL), vocabulary, shape, generator=source)


def masked(words: Tensor, hidden: Tensor, fate: Tensor, anything: Tensor) -> tuple[Tensor, Tensor]:
    """The words with some hidden, and the hidden ones as answers."""
    chosen = hidden & (words >= len(SPECIAL))
    shown = torch.where(chosen & (fate < 0.8), MASK, words)
    shown = torch.where(chosen & (fate >= 0.9), anything, shown)
    return shown, torch.where(chosen, words, IGNORED)


def finetuning(context: Context, kind: GlueTask) -> Task:
    if context.scale == "smoke":
        train, dev, note = generated(kind)
        splits = {"": dev}
    else:
        path = context.path(f"glue/{kind.folder}")
        train = read(path / "train.tsv", kind)
        splits = {"" if file == kind.dev[0] else "_mismatched": read(path / file, kind) for file in kind.dev}
        note = f"{kind.folder} from the data folder"
    if context.tuning:
        train, splits = [example for i, example in enumerate(train) if i % 8], {"": train[::8]}
    note += f": {len(train):,} to train, {len(splits['']):,} held out"
    words = tokenizer(context)
    sizes: TextSizes = context.sizes
    longest = sizes.length

    def encoded(examples: list[Example]) -> tuple[Tensor, Tensor]:
        """Rows of tokens, padded to the longest of them, and the answers."""
        first, second = (
            [encoding.ids for encoding in words.encode_batch([example[i] for example in examples])] for i in (0, 1)
        )
        half = (longest - 4) // 2  # tokens of a sentence where both are long
        rows = []
        for a, b in zip(first, second, strict=True):
            a, b = a[: max(half, longest - 4 - len(b))], b[: max(half, longest - 4 - len(a))]
            rows.append([START, *a, END, *([END, *b, END] if b else [])])
        out = torch.full((len(rows), max(len(row) for row in rows)), PAD)
        for line, row in zip(out, rows, strict=True):
            line[: len(row)] = torch.tensor(row)
        answers = torch.tensor([example[2] for example in examples])
        return out, answers.long() if kind.labels else answers

    order, own = epoch_order(len(train), context.batch_size, context.seed), context.own()

    def batches(position: int) -> tuple[Tensor, Tensor]:
        return encoded([train[i] for i in own(order(position)).tolist()])

    def error(logits: Tensor, answers: Tensor) -> Tensor:
        return F.cross_entropy(logits, answers) if kind.labels else F.mse_loss(logits[:, 0], answers / 5)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        tokens, answers = batch
        return error(model(tokens, attention_mask=present(tokens)).logits.float(), answers)

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        scores: dict[str, float] = {}
        for suffix, examples in splits.items():
            outputs, answers = [], []
            for i in range(0, len(examples), 64):
                tokens, right = encoded(examples[i : i + 64])
                tokens = tokens.to(context.device)
                outputs.append(model(tokens, attention_mask=present(tokens)).logits.float().cpu())
                answers.append(right)
            logits, right = torch.cat(outputs), torch.cat(answers)
            scores[kind.metric + suffix] = METRICS[kind.metric](logits, right)
            if not suffix:  # by which Fairseq chooses a checkpoint
                scores |= {"accuracy": accuracy(logits, right)} if kind.labels else {}
                scores["loss"] = error(logits, right).item()
        return scores

    size = words.get_vocab_size()
    model = transformers.BertForSequenceClassification(bert_config(sizes, size, num_labels=max(1, len(kind.labels))))
    note += load_encoder(model.bert, context, name(words), "bert.", "bert-pretrain")
    clip = kind.clip if context.scale == "paper" else 1.0
    return Task(model, batches, loss, evaluate, note, max_grad_norm=clip)


def load_encoder(encoder: nn.Module, context: Context, tokens: str, prefix: str, before: str) -> str:
    """Take the encoder of --init, a run of `before` with the same tokens, and return what the note says of the start.

    prefix: of its weights' names. A pooler, which masked words do not train, stays random.
    """
    if context.init is None:
        return "; starts at random, not from a pre-trained BERT: give --init"
    facts = context.init / "environment.json"
    note = str(json.loads(facts.read_text(encoding="utf-8")).get("data", "")) if facts.exists() else ""
    if tokens not in note:
        raise UsageError(
            f"--init {context.init}: its text has another tokenizer than this run's {tokens}; pre-train with the same "
            f"--scale and --data (that run: {note or 'no note'})"
        )
    weights = {key: value for key, value in encoder.state_dict().items() if key.startswith("pooler.")}
    weights |= {key.removeprefix(prefix): w for key, w in context.weights().items() if key.startswith(prefix)}
    context.load(encoder, weights, f"no BERT of this size ({{}}); name a run of {before}")
    return ""


def accuracy(logits: Tensor, answers: Tensor) -> float:
    return (logits.argmax(1) == answers).float().mean().item()


def pearson(scores: Tensor, answers: Tensor) -> float:
    """Pearson's correlation; 0 where all scores are the same."""
    correlation = torch.corrcoef(torch.stack([scores[:, 0], answers]))[0, 1].item()
    return correlation if math.isfinite(correlation) else 0.0


def matthews(logits: Tensor, answers: Tensor) -> float:
    """Matthews' correlation of two classes, which is Pearson's of their numbers."""
    return pearson(logits.argmax(1, keepdim=True).double(), answers.double())


METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {"matthews": matthews, "accuracy": accuracy, "pearson": pearson}


def read(path: Path, kind: GlueTask) -> list[Example]:
    """The examples of a tab-separated file, with a header or, for CoLA and SST-2, without one."""
    with reading(path, "cannot be read as text", f"get GLUE's {kind.folder} again"):
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # MRPC's begins with a byte order mark
    header = lines[0].split("\t")
    named = bool(kind.columns) and all(column in header for column in kind.columns)
    if not named and not kind.places:
        raise UsageError(f"{path}: its header lacks {' or '.join(kind.columns)}; it is: {', '.join(header[:12])}")
    places = [header.index(column) for column in kind.columns] if named else list(kind.places)
    numbers = {label: float(i) for i, label in enumerate(kind.labels)}
    examples: list[Example] = []
    rows = [line.rstrip("\r").split("\t") for line in lines[named:] if line.strip()]
    for row in rows:
        try:
            *sentences, answer = (row[place] for place in places)
            value = numbers[answer] if numbers else float(answer)
        except (IndexError, KeyError, ValueError):
            continue  # a handful of QQP's lines are broken
        examples.append((sentences[0], sentences[1] if len(sentences) > 1 else "", value))
    if not examples or len(examples) < 0.99 * len(rows):
        raise UsageError(
            f"{path}: {len(rows) - len(examples):,} of {len(rows):,} lines have no answer of "
            f"{', '.join(kind.labels) or 'a number'} in column {places[-1] + 1}; get GLUE's {kind.folder} again"
        )
    return examples


# What smoke takes instead of files

GOOD = ("moving", "funny", "brilliant", "charming", "clever", "gripping", "lovely", "warm")
BAD = ("dull", "clumsy", "boring", "shallow", "awful", "tedious", "lifeless", "cheap")
THINGS = ("plot", "acting", "film", "ending", "music", "dialogue", "script", "cast")
ADVERBS = ("truly", "rather", "quite", "very", "simply", "somewhat")


def generated(kind: GlueTask) -> tuple[list[Example], list[Example], str]:
    """Examples to train and to hold out, the same for every run, and where they come from."""
    draw = random.Random(kind.name)
    make: Maker = _similar
    source = "generated pairs of sentences with 0 to 5 words in common"
    if kind.name == "cola":
        make, source = _acceptable(draw), "sentences of the standard library's documentation, half of them backwards"
    elif kind.name == "sst2":
        make, source = _review, "generated reviews of one or two adjectives, a tenth of them denied"
    elif kind.labels:
        make = _pair(len(kind.labels))
        source = "generated pairs of sentences whose relation shows in single words, a tenth of them at random"
    examples = [make(draw) for _ in range(TRAIN + DEV)]
    return examples[:TRAIN], examples[TRAIN:], f"{source}, not GLUE"


def _acceptable(draw: random.Random) -> Maker:
    text = " ".join(" ".join(documentation()).split())
    sentences = [s for s in re.findall(r"[A-Z][a-z' ,]+\.", text) if 5 <= len(s.split()) <= 15]
    draw.shuffle(sentences)

    def make(draw: random.Random) -> Example:
        sentence = sentences.pop()
        label = draw.randrange(2)
        return sentence if label else sentence[::-1], "", label

    return make


def _review(draw: random.Random) -> Example:
    """A tenth of them deny what they say, which turns the label round."""
    label, denied = draw.randrange(2), draw.random() < 0.1
    adjectives = [draw.choice((BAD, GOOD)[label ^ denied]) for _ in range(draw.randint(1, 2))]
    adverb = "not" if denied else draw.choice(ADVERBS)
    return f"the {draw.choice(THINGS)} is {adverb} {' and '.join(adjectives)}", "", label


def _pair(classes: int) -> Maker:
    """Entailed: the same said shorter; contradicted: denied; neutral: something is added."""

    def make(draw: random.Random) -> Example:
        thing, quality = draw.choice(THINGS), draw.choice(GOOD + BAD)
        first = f"the {thing} is {draw.choice(ADVERBS)} {quality}"
        seconds = [f"the {thing} is not {quality}", f"the {thing} was made later", f"it is a {quality} {thing}"]
        label = draw.randrange(classes)
        second = (seconds if classes == 3 else seconds[::2])[label]
        return first, second, draw.randrange(classes) if draw.random() < 0.1 else label

    return make


def _similar(draw: random.Random) -> Example:
    """A score for how many of five words of the second sentence come from the first."""
    first = [draw.choice(THINGS) for _ in range(5)]
    score = draw.randint(0, 5)
    return " ".join(first), " ".join(first[:score] + [draw.choice(GOOD) for _ in range(5 - score)]), score
