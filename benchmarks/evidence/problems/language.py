"""Text: GPT over bytes, BERT and GLUE over word pieces, an LSTM and Transformer-XL over words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from evidence import english, models
from evidence.data import array
from evidence.problems.problem import EVAL_BATCH, Problem, Setup, begin, harness_task, shuffle, without_cudnn_attention

#: Of English, by the name of a text.
SOURCES = {"english": "docstrings, comments and pages of installed packages", "debian": "Debian's documentation"}
BALANCE = 0.02  # the weight of a router's loss, as the released Mixtral's


def gpt(
    setup: Setup,
    batch_size: int = 64,
    width: int = 384,
    layers: int = 6,
    heads: int = 6,
    context: int = 256,
    experts: int = 0,
) -> Problem:
    """A GPT over the bytes of Python source; windows are drawn at random. experts: a mixture in each layer."""
    device = setup.device
    without_cudnn_attention()
    model = models.GPT(width, layers, heads, context, experts)
    routed = [module for module in model.modules() if isinstance(module, models.Experts)]
    text = array(setup.cache, "python-train", device)
    held_out = array(setup.cache, f"python-{'valid' if setup.tuning else 'test'}", device)
    offsets = torch.arange(context + 1, device=device)
    count = min(1_024, len(held_out) // (context + 1))
    starts = torch.arange(count, device=device).unsqueeze(1) * ((len(held_out) - context - 1) // count)
    windows = held_out[starts + offsets].long()

    def next_byte(rows: Tensor) -> Tensor:
        return F.cross_entropy(model(rows[:, :-1]).float().flatten(0, 1), rows[:, 1:].flatten())

    def loss(step: Tensor) -> Tensor:
        first = torch.randint(0, len(text) - context - 1, (batch_size, 1), device=device)
        total = next_byte(text[first + offsets].long())
        for module in routed:
            total = total + BALANCE * module.balance
            module.balance = module.balance.detach()
        return total

    def evaluate() -> Mapping[str, float]:
        parts = windows.split(128)
        total = torch.stack([next_byte(part) * len(part) for part in parts]).sum()
        return {"loss": total.item() / len(windows)}

    note = f"bytes of Python source: {len(text):,} to train, {len(windows):,} windows of {context} held out"
    per_epoch = max(1, len(text) // (batch_size * context))
    return Problem(model, loss, evaluate, "loss", False, per_epoch, note, max_grad_norm=1.0, compiles=not experts)


def bert(
    setup: Setup,
    batch_size: int = 128,
    width: int = 256,
    layers: int = 4,
    heads: int = 4,
    length: int = 128,
    text: str = "english",
) -> Problem:
    """BERT's masked language model on English text of word pieces; windows are drawn at random.

    text: as `evidence.data.prepare` names it.
    """
    device = setup.device
    without_cudnn_attention()
    encoder = models.BERT(width, layers, heads, length, english.VOCABULARY)
    model = models.MaskedLanguage(encoder)
    pieces = array(setup.cache, f"{text}-train", device)
    held_out = array(setup.cache, f"{text}-{'valid' if setup.tuning else 'test'}", device)
    offsets = torch.arange(length - 1, device=device)

    def rows(source: Tensor, first: Tensor) -> Tensor:
        return F.pad(source[first + offsets].long(), (1, 0), value=english.START)

    starts = torch.arange(min(512, len(held_out) // length), device=device).unsqueeze(1) * length
    fixed = masked(rows(held_out, starts), torch.Generator(device).manual_seed(0))

    def named(tokens: Tensor, places: Tensor, right: Tensor) -> Tensor:
        return F.cross_entropy(model(tokens, places).float().flatten(0, 1), right.flatten())

    def loss(step: Tensor) -> Tensor:
        first = torch.randint(0, len(pieces) - length, (batch_size, 1), device=device)
        return named(*masked(rows(pieces, first)))

    def evaluate() -> Mapping[str, float]:
        parts = list(zip(*(part.split(128) for part in fixed), strict=True))
        total = torch.stack([named(*part) * len(part[0]) for part in parts]).sum()
        return {"loss": total.item() / len(starts)}

    note = f"{len(pieces):,} word pieces of {SOURCES[text]} to train, {len(starts):,} rows of {length} held out"
    per_epoch = max(1, len(pieces) // (batch_size * length))
    return Problem(model, loss, evaluate, "loss", False, per_epoch, note, max_grad_norm=1.0, handed_over=encoder)


def glue(
    setup: Setup,
    task: str,
    start: str | None = None,
    batch_size: int = 32,
    width: int = 256,
    layers: int = 4,
    heads: int = 4,
    length: int = 128,
    text: str = "english",
) -> Problem:
    """A task of GLUE. start: the key of a run of `bert` whose encoder is fine-tuned; text: what that one read.

    SST-2's trials look at the development split, its results at the test split. CoLA has no test split with answers:
    its results are of the development split, and its trials hold out every eighth sentence of the training split.
    """
    from adan_bench.workloads.glue import KINDS, METRICS

    device = setup.device
    without_cudnn_attention()
    encoder = models.BERT(width, layers, heads, length, english.VOCABULARY)
    begin(encoder, setup, start)
    model = models.Classifier(encoder, 2)
    metric = next(kind.metric for kind in KINDS if kind.name == task)

    def split(name: str) -> tuple[Tensor, Tensor]:
        tokens, labels = (array(setup.cache, f"{text}-{task}-{name}-{part}", device) for part in ("tokens", "labels"))
        return tokens.long(), labels

    rows, labels = split("train")
    if setup.tuning and "test" not in english.GLUE[task]:
        apart = torch.arange(len(rows), device=device) % 8 == 0
        held_out, answers, rows, labels = rows[apart], labels[apart], rows[~apart], labels[~apart]
    else:
        held_out, answers = split(english.GLUE[task][1 if setup.tuning else -1])
    per_epoch = len(rows) // batch_size
    order = torch.zeros(len(rows), dtype=torch.int64, device=device)
    within = torch.arange(batch_size, device=device)

    def begin_epoch(epoch: int) -> None:
        shuffle(order, setup.seed, epoch)

    def loss(step: Tensor) -> Tensor:
        chosen = order.index_select(0, step % per_epoch * batch_size + within)
        return F.cross_entropy(model(rows.index_select(0, chosen)).float(), labels.index_select(0, chosen))

    def evaluate() -> Mapping[str, float]:
        logits = torch.cat([model(part).float() for part in held_out.split(EVAL_BATCH)])
        return {metric: METRICS[metric](logits, answers), "loss": F.cross_entropy(logits, answers).item()}

    note = f"GLUE's {task}: {len(rows):,} sentences to train, {len(held_out):,} held out"
    return Problem(model, loss, evaluate, metric, True, per_epoch, note, begin_epoch, max_grad_norm=1.0, compiles=False)


def masked(tokens: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Rows as BERT sees them, the 15% of their places that it is asked about, and what was there.

    Of these, 80% are masked and 10% replaced at random. A row's first token is never asked about.
    """
    count, device = round(0.15 * (tokens.shape[1] - 1)), tokens.device
    shape = len(tokens), count
    noise = torch.rand(len(tokens), tokens.shape[1] - 1, device=device, generator=generator)
    kind = torch.rand(shape, device=device, generator=generator)
    other = torch.randint(len(english.SPECIAL), english.VOCABULARY, shape, device=device, generator=generator)
    places = noise.argsort(1)[:, :count] + 1
    right = tokens.gather(1, places)
    said = torch.where(kind < 0.8, torch.full_like(right, english.MASK), torch.where(kind < 0.9, other, right))
    return tokens.scatter(1, places, said), places, right


class Treebank:
    """A language model of the harness on Penn Treebank, its text on the device."""

    def __init__(self, setup: Setup, workload: str, scale: str, batch_size: int, **training: Any) -> None:
        from adan_bench.data.words import penn_treebank
        from adan_bench.task import Context

        self.task = harness_task(setup, workload, scale, batch_size, **training)
        splits, _ = penn_treebank(Context(setup.seed, batch_size, setup.cache / "data"))
        self.held_out = splits[1 if setup.tuning else 2]
        self.model, self.device = self.task.model.to(setup.device), setup.device
        self.length, self.per_epoch = self.task.batches.length, self.task.batches.per_epoch
        self.columns = self.task.batches.columns.to(setup.device)
        self.rows = torch.arange(self.length + 1, device=setup.device)

    def words(self, position: Tensor) -> Tensor:
        """A row of an epoch, and the word that follows it."""
        return self.columns.index_select(0, position * self.length + self.rows).long()

    def problem(self, loss: Callable[[Tensor], Tensor], step: Callable[..., Any]) -> Problem:
        """step: as `perplexity` takes it. Judged as the task is, but on one split: the other would cost as much."""
        from adan_bench.data.words import perplexity

        def evaluate() -> Mapping[str, float]:
            return {"perplexity": perplexity(step, self.held_out, 10, self.length, self.device)}

        return Problem(
            self.model,
            loss,
            evaluate,
            "perplexity",
            False,
            self.per_epoch,
            self.task.note,
            max_grad_norm=self.task.max_grad_norm,
            decay_all=True,
            compiles=False,
        )


def lstm(
    setup: Setup,
    layers: int = 1,
    batch_size: int = 20,
    scale: str = "paper",
    schedule: str = "cosine",
    warmup: float = 0.05,
    fixed_recurrent: bool = False,
) -> Problem:
    """The harness's AWD-LSTM; the state that is carried along lies in buffers of its own."""
    text = Treebank(setup, f"lstm-{layers}", scale, batch_size, fixed_recurrent=fixed_recurrent)
    model = text.model
    carry = [torch.zeros(2, batch_size, layer.hidden_size, device=setup.device) for layer in model.layers]

    def loss(step: Tensor) -> Tensor:
        position = step % text.per_epoch
        words = text.words(position)
        going_on = (position > 0).float()
        logits, following, penalty = model(words[:-1], [state * going_on for state in carry])
        for buffer, state in zip(carry, following, strict=True):
            buffer.copy_(state)
        return F.cross_entropy(logits.float().flatten(0, 1), words[1:].flatten()) + penalty

    def judged(words: Tensor, following: Tensor, state: Any) -> tuple[Tensor, Any]:
        logits, state, _ = model(words, state)
        return F.cross_entropy(logits.float().flatten(0, 1), following.flatten()), state

    return replace(text.problem(loss, judged), schedule=schedule, warmup=warmup, carried=carry)


def transformer_xl(setup: Setup, batch_size: int = 20) -> Problem:
    """The harness's Transformer-XL; the memory lies in buffers of its own."""
    text = Treebank(setup, "transformer-xl", "small", batch_size)
    model = text.model
    past, filled = model.initial(batch_size, setup.device)
    # Where the rarer words stand, by row: by cluster, places and answers.
    by_row = [text.task.prepare(text.task.batches(i))[2] for i in range(text.per_epoch)]
    tails = [
        [torch.stack(parts).to(setup.device) for parts in zip(*row, strict=True)] for row in zip(*by_row, strict=True)
    ]

    def loss(step: Tensor) -> Tensor:
        position = step % text.per_epoch
        words = text.words(position)
        here = [[part.index_select(0, position).squeeze(0) for part in parts] for parts in tails]
        memory = past, filled * (position > 0).squeeze(0)  # an epoch begins with none
        total, (hidden, count) = model(words[:-1], words[1:], here, memory)
        past.copy_(hidden)
        filled.copy_(count)
        return total

    def judged(words: Tensor, following: Tensor, memories: Any) -> Any:
        return model(words, following, memories=memories)

    # Runs in bf16 with a compiled loss collapsed on a GPU: torch 2.11 computes other gradients of the attention then
    # (`evidence gradients`).
    return replace(text.problem(loss, judged), bf16=False, carried=(past, filled))
