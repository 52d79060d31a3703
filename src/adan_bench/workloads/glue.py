"""BERT fine-tuned on the tasks of GLUE (arXiv:1804.07461), one by one.

Batch sizes, steps and clipping at paper scale are those of the authors' published configurations (MRPC, which they left
out, has Fairseq's). A pair of sentences is `<s> a </s></s> b </s>`, as in Fairseq. The score is that of the development
split; trials hold out every eighth example of the training split instead. Smoke needs no files: its sentences are
generated, and the note says from what.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adan_bench.errors import UsageError
from adan_bench.task import Context, Scale, Task
from adan_bench.workloads.bert_pretrain import PAPER, SMALL, SMOKE, BertSizes
from adan_bench.workloads.registry import workload

if TYPE_CHECKING:
    from torch import Tensor, nn

ENTAILMENT = ("not_entailment", "entailment")
BINARY = ("0", "1")
TRAIN, DEV = 1200, 240  # generated examples

Example = tuple[str, str, float]  # sentence, second sentence or "", label or score


@dataclass(frozen=True)
class GlueTask:
    """One task of GLUE: its files, where the sentences and the answer are, and how the paper's run was.

    columns: names in the header, or places where the files have none; the answer's is last.
    labels: the answers in the order of their numbers; () for a score from 0 to 5.
    """

    name: str
    folder: str
    metric: str
    columns: tuple[str, ...]
    labels: tuple[str, ...]
    adam: float  # the paper's reproduced figure
    steps: int
    clip: float | None = None
    batch_size: int = 16
    places: tuple[int, ...] = ()
    dev: tuple[str, ...] = ("dev.tsv",)


PAIR = ("sentence1", "sentence2")
KINDS = [
    GlueTask("cola", "CoLA", "matthews", (), BINARY, 0.585, 5336, places=(3, 1)),
    GlueTask("sst2", "SST-2", "accuracy", ("sentence", "label"), BINARY, 0.926, 20935, batch_size=32, places=(0, 1)),
    GlueTask(
        "mnli",
        "MNLI",
        "accuracy",
        (*PAIR, "gold_label"),
        ("contradiction", "neutral", "entailment"),
        0.849,
        123_873,
        clip=1.0,
        dev=("dev_matched.tsv", "dev_mismatched.tsv"),
    ),
    GlueTask("qnli", "QNLI", "accuracy", ("question", "sentence", "label"), ENTAILMENT, 0.908, 33_112),
    GlueTask("qqp", "QQP", "accuracy", ("question1", "question2", "is_duplicate"), BINARY, 0.909, 113_272),
    GlueTask("rte", "RTE", "accuracy", (*PAIR, "label"), ENTAILMENT, 0.693, 2036),
    GlueTask("mrpc", "MRPC", "accuracy", ("#1 String", "#2 String", "Quality"), BINARY, 0.86, 2296),  # no figure there
    GlueTask("stsb", "STS-B", "pearson", (*PAIR, "score"), (), 0.887, 3598, clip=0.5),
]


def register(kind: GlueTask) -> None:
    def builder(context: Context) -> Task:
        return build(context, kind)

    builder.__doc__ = f"BERT fine-tuned on GLUE's {kind.folder}, {kind.metric} on the development split."
    files = tuple(f"glue/{kind.folder}/{file}" for file in ("train.tsv", *kind.dev))
    workload(
        f"glue-{kind.name}",
        metric=kind.metric,
        higher_is_better=True,
        after="bert-pretrain",
        smoke=Scale(0.4 if kind.metric == "matthews" else 0.7, 80, 32, eval_every=20, sizes=SMOKE),
        small=Scale(0.05 if kind.metric == "matthews" else 0.7, 2000, 32, needs=files, sizes=SMALL),
        paper=Scale(kind.adam, kind.steps, kind.batch_size, needs=(*files, "text"), sizes=PAPER),
    )(builder)


def build(context: Context, kind: GlueTask) -> Task:
    import torch
    import torch.nn.functional as F
    import transformers

    from adan_bench.data.batching import shuffled
    from adan_bench.data.tokens import END, PAD, START, name
    from adan_bench.workloads.bert_pretrain import present, tokenizer

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
    sizes: BertSizes = context.sizes
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

    order = shuffled([torch.arange(len(train))], context.batch_size, context.seed)

    def batches(position: int) -> tuple[Tensor, Tensor]:
        return encoded([train[i] for i in order(position)[0].tolist()])

    def loss(model: nn.Module, batch: Any) -> Tensor:
        tokens, answers = batch
        logits = model(tokens, attention_mask=present(tokens)).logits.float()
        return F.cross_entropy(logits, answers) if kind.labels else F.mse_loss(logits[:, 0], answers / 5)

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        scores = {}
        for suffix, examples in splits.items():
            outputs, answers = [], []
            for i in range(0, len(examples), 64):
                tokens, right = encoded(examples[i : i + 64])
                tokens = tokens.to(context.device)
                outputs.append(model(tokens, attention_mask=present(tokens)).logits.float().cpu())
                answers.append(right)
            scores[kind.metric + suffix] = METRICS[kind.metric](torch.cat(outputs), torch.cat(answers))
        return scores

    size = words.get_vocab_size()
    model = transformers.BertForSequenceClassification(sizes.config(size, num_labels=max(1, len(kind.labels))))
    if context.init is None:
        note += "; starts at random, not from a pre-trained BERT: give --init"
    else:
        load_encoder(model.bert, context, name(words))
    clip = kind.clip if context.scale == "paper" else 1.0
    return Task(model, batches, loss, evaluate, note, max_grad_norm=clip)


def load_encoder(encoder: nn.Module, context: Context, tokens: str) -> None:
    """The pre-trained encoder; the pooler stays random."""
    missing, unknown = encoder.load_state_dict(pretrained(context, tokens, "bert."), strict=False)
    wrong = [key for key in missing if not key.startswith("pooler.")] + list(unknown)
    if wrong:
        raise UsageError(f"--init {context.init}: no BERT of this size; its weights differ in {', '.join(wrong[:3])}")


def pretrained(context: Context, tokens: str, prefix: str) -> dict[str, Tensor]:
    """The weights of --init whose names begin with `prefix`, without it; its run must have had the same tokens."""
    import json

    assert context.init is not None
    facts = context.init / "environment.json"
    note = str(json.loads(facts.read_text(encoding="utf-8")).get("data", "")) if facts.exists() else ""
    if tokens not in note:
        raise UsageError(
            f"--init {context.init}: its text has another tokenizer than this run's {tokens}; pre-train with the same "
            f"--scale and --data (that run: {note or 'no note'})"
        )
    return {key.removeprefix(prefix): value for key, value in context.weights().items() if key.startswith(prefix)}


def matthews(logits: Tensor, answers: Tensor) -> float:
    """Matthews' correlation of two classes; 0 where all guesses are one class."""
    said = logits.argmax(1).bool()
    right = answers.bool()
    both, neither = (said & right).sum().item(), (~said & ~right).sum().item()
    wrong, missed = (said & ~right).sum().item(), (~said & right).sum().item()
    norm = math.sqrt((both + wrong) * (both + missed) * (neither + wrong) * (neither + missed))
    return (both * neither - wrong * missed) / norm if norm else 0.0


def accuracy(logits: Tensor, answers: Tensor) -> float:
    return (logits.argmax(1) == answers).float().mean().item()


def pearson(logits: Tensor, answers: Tensor) -> float:
    import torch

    correlation = torch.corrcoef(torch.stack([logits[:, 0], answers]))[0, 1].item()
    return correlation if math.isfinite(correlation) else 0.0


METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {"matthews": matthews, "accuracy": accuracy, "pearson": pearson}


def read(path: Any, kind: GlueTask) -> list[Example]:
    """The examples of a tab-separated file, with a header or, for CoLA and SST-2, without one."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # MRPC's begins with a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as text ({error}); get GLUE's {kind.folder} again") from error
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
    if kind.name == "cola":
        make, source = (_acceptable(draw), "sentences of the standard library's documentation, half of them backwards")
    elif kind.name == "sst2":
        make, source = _review, "generated reviews of one or two adjectives, a tenth of them denied"
    elif kind.labels:
        make, source = (
            _pair(len(kind.labels)),
            "generated pairs of sentences whose relation shows in single words, a tenth of them at random",
        )
    else:
        make, source = _similar, "generated pairs of sentences with 0 to 5 words in common"
    examples = [make(draw) for _ in range(TRAIN + DEV)]
    return examples[:TRAIN], examples[TRAIN:], f"{source}, not GLUE"


Maker = Callable[[random.Random], Example]


def _acceptable(draw: random.Random) -> Maker:
    import re

    from adan_bench.data.words import documentation

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
        denied, added, same = (
            f"the {thing} is not {quality}",
            f"the {thing} was made later",
            f"it is a {quality} {thing}",
        )
        label = draw.randrange(classes)
        second = ([denied, added, same] if classes == 3 else [denied, same])[label]
        return first, second, draw.randrange(classes) if draw.random() < 0.1 else label

    return make


def _similar(draw: random.Random) -> Example:
    """A score for how many of five words of the second sentence come from the first."""
    first = [draw.choice(THINGS) for _ in range(5)]
    score = draw.randint(0, 5)
    return " ".join(first), " ".join(first[:score] + [draw.choice(GOOD) for _ in range(5 - score)]), score


for kind in KINDS:
    register(kind)
