"""What is trained: data on the device, a model, a loss that reads its batch by a step count on the device, a metric.

Nothing in a `loss` waits for the device, reads host memory or depends on a Python number that changes from step to
step, so that a CUDA graph can hold it. Tuning looks at a validation split; what is reported, at the test split after
training on all training data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evidence import english, models
from evidence.data import VALIDATION, array

EVAL_BATCH = 2_000


@dataclass
class Problem:
    """A training problem, built for one seed.

    loss: the step count, a tensor of one element, to the mean loss of that step's batch.
    begin_epoch: called by the host before the first step of an epoch.
    per_epoch: steps of an epoch.
    decay_all: biases and norms decay too.
    captures: whether a CUDA graph can hold a step.
    compiles: whether a captured step's loss is compiled, which pays where many small kernels can become one.
    stream: what gives the batches and has a state that a checkpoint must hold.
    groups: parameters and their shares of the learning rate, where these differ; as a harness's task has them.
    handed_over: the part of the model whose weights other runs start from.
    """

    model: nn.Module
    loss: Callable[[Tensor], Tensor]
    evaluate: Callable[[], Mapping[str, float]]
    metric: str
    higher_is_better: bool
    per_epoch: int
    note: str
    begin_epoch: Callable[[int], None] = field(default=lambda epoch: None)
    max_grad_norm: float | None = None
    decay_all: bool = False
    channels_last: bool = False
    captures: bool = True
    compiles: bool = True
    bf16: bool = True
    schedule: str = "cosine"
    warmup: float = 0.05
    stream: Any = None
    groups: Callable[[nn.Module, dict[str, Any]], list[dict[str, Any]]] | None = None
    handed_over: nn.Module | None = None


@dataclass(frozen=True)
class Setup:
    """Where and for what a problem is built."""

    seed: int
    tuning: bool
    device: str
    cache: Path


def build(name: str, options: Mapping[str, Any], setup: Setup) -> Problem:
    if name not in PROBLEMS:
        raise ValueError(f"problem {name!r}: there are {', '.join(PROBLEMS)}")
    problem = PROBLEMS[name](setup, **options)
    problem.model = problem.model.to(setup.device)
    if problem.channels_last:
        problem.model = problem.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return problem


def without_cudnn_attention() -> None:
    """The backward pass of cuDNN's attention is reported to give NaN on Hopper for some lengths, 64 among them.

    https://github.com/pytorch/pytorch/issues/196678
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def weights_of(cache: Path, key: str) -> Path:
    """Where a run leaves the weights that others start from."""
    return cache / "weights" / f"{key}.pt"


def begin(model: nn.Module, setup: Setup, key: str | None, own: str = "") -> None:
    """Load the weights that the run with this key left, but for parameters whose names begin with `own`."""
    if key is None:
        return
    path = weights_of(setup.cache, key)
    if not path.exists():
        raise FileNotFoundError(f"start {key}: {path} is not there; make the run with that key again, or copy the file")
    found = torch.load(path, map_location="cpu", weights_only=True)
    mine = {name: value for name, value in model.state_dict().items() if own and name.startswith(own)}
    model.load_state_dict({**found, **mine})


# CIFAR-10


def vit(
    setup: Setup,
    batch_size: int = 256,
    width: int = 256,
    layers: int = 6,
    heads: int = 4,
    start: str | None = None,
) -> Problem:
    """start: the key of a run of `mae` whose encoder is fine-tuned."""
    without_cudnn_attention()
    model = models.ViT(width, layers, heads)
    begin(model, setup, start, own="head")
    problem = _cifar(setup, model, batch_size, smoothing=0.1, cutout=8)
    problem.max_grad_norm = 1.0
    return problem


def mae(setup: Setup, batch_size: int = 256, width: int = 256, layers: int = 6, heads: int = 4) -> Problem:
    """The ViT pre-trained by drawing three quarters of the patches from the others."""
    without_cudnn_attention()
    encoder = models.ViT(width, layers, heads)
    model = models.MAE(encoder)
    data = Cifar(setup, batch_size, torch.contiguous_format)
    count = len(encoder.pos_embed)
    noise = torch.rand(len(data.held_out), count, generator=torch.Generator().manual_seed(0)).to(setup.device)

    def loss(step: Tensor) -> Tensor:
        images, _ = data.batch(step, cutout=0)
        return model(images, torch.rand(batch_size, count, device=setup.device))

    def evaluate() -> Mapping[str, float]:
        parts = zip(data.held_out.split(EVAL_BATCH), noise.split(EVAL_BATCH), strict=True)
        total = torch.stack([model(data.normal(pixels), order) * len(pixels) for pixels, order in parts]).sum()
        return {"loss": total.item() / len(data.held_out)}

    return Problem(
        model,
        loss,
        evaluate,
        "loss",
        False,
        data.per_epoch,
        data.note(0),
        data.begin_epoch,
        max_grad_norm=1.0,
        handed_over=encoder,
    )


def convnext(setup: Setup, batch_size: int = 256, width: int = 64, depths: tuple[int, ...] = (2, 2, 6, 2)) -> Problem:
    problem = _cifar(setup, models.ConvNeXt(tuple(depths), width), batch_size, smoothing=0.1, cutout=8)
    problem.channels_last = True
    return problem


def resnet34(setup: Setup, batch_size: int = 128, width: int = 64, depths: tuple[int, ...] = (3, 4, 6, 3)) -> Problem:
    problem = _cifar(setup, models.ResNet(tuple(depths), width), batch_size, smoothing=0.0, cutout=0)
    problem.decay_all = problem.channels_last = True
    return problem


class Cifar:
    """CIFAR-10 on the device: batches by step, their images shifted by up to 4 pixels and flipped; what is held out."""

    def __init__(self, setup: Setup, batch_size: int, memory_format: torch.memory_format) -> None:
        device = setup.device
        images, labels = (array(setup.cache, f"cifar-train-{part}", device) for part in ("images", "labels"))
        if setup.tuning:
            cut = max(len(images) - VALIDATION, len(images) // 2)
            self.held_out, self.answers, images, labels = images[cut:], labels[cut:], images[:cut], labels[:cut]
        else:
            self.held_out, self.answers = (
                array(setup.cache, f"cifar-test-{part}", device) for part in ("images", "labels")
            )
        self.setup, self.batch_size, self.memory_format = setup, batch_size, memory_format
        self.images, self.labels = images, labels
        self.per_epoch = len(images) // batch_size
        self.order = torch.zeros(len(images), dtype=torch.int64, device=device)
        self.within = torch.arange(batch_size, device=device)
        self.mean, self.std = (
            torch.tensor(values, device=device).view(1, 3, 1, 1)
            for values in ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
        )

    def normal(self, pixels: Tensor) -> Tensor:
        return (pixels.float() / 255 - self.mean) / self.std

    def begin_epoch(self, epoch: int) -> None:
        shuffle(self.order, self.setup.seed, epoch)

    def batch(self, step: Tensor, cutout: int) -> tuple[Tensor, Tensor]:
        chosen = self.order.index_select(0, step % self.per_epoch * self.batch_size + self.within)
        x = augmented(self.normal(self.images.index_select(0, chosen)), 4, cutout)
        return x.contiguous(memory_format=self.memory_format), self.labels.index_select(0, chosen)

    def note(self, cutout: int) -> str:
        return (
            f"CIFAR-10, JPEG copy: {len(self.images):,} images to train, shifted by up to 4 pixels, flipped"
            f"{f', a square of {cutout} pixels cut out' if cutout else ''}; {len(self.held_out):,} held out"
            f"{' of the training split' if self.setup.tuning else ', the test split'}"
        )


def shuffle(order: Tensor, seed: int, epoch: int) -> None:
    key = torch.Generator().manual_seed(10_000 * seed + epoch)
    order.copy_(torch.randperm(len(order), generator=key))


def _cifar(setup: Setup, model: nn.Module, batch_size: int, smoothing: float, cutout: int) -> Problem:
    """An image classifier on CIFAR-10. cutout: the side of a square that each image loses."""
    data = Cifar(setup, batch_size, torch.contiguous_format if isinstance(model, models.ViT) else torch.channels_last)

    def loss(step: Tensor) -> Tensor:
        images, labels = data.batch(step, cutout)
        return F.cross_entropy(model(images).float(), labels, label_smoothing=smoothing)

    def evaluate() -> Mapping[str, float]:
        right, total = torch.zeros((), device=setup.device), torch.zeros((), device=setup.device)
        for pixels, answer in zip(data.held_out.split(EVAL_BATCH), data.answers.split(EVAL_BATCH), strict=True):
            logits = model(data.normal(pixels).contiguous(memory_format=data.memory_format)).float()
            right += (logits.argmax(1) == answer).sum()
            total += F.cross_entropy(logits, answer, reduction="sum")
        return {"accuracy": right.item() / len(data.answers), "loss": total.item() / len(data.answers)}

    note = data.note(cutout) + (f"; label smoothing {smoothing}" if smoothing else "")
    return Problem(model, loss, evaluate, "accuracy", True, data.per_epoch, note, data.begin_epoch)


def augmented(images: Tensor, shift: int, cutout: int) -> Tensor:
    """Each image shifted by up to `shift` pixels over zeros, flipped by a fair coin, with a square of zeros."""
    count, channels, height, width = images.shape
    device = images.device
    rows, columns = torch.arange(height, device=device), torch.arange(width, device=device)
    dy, dx = torch.randint(0, 2 * shift + 1, (2, count, 1), device=device)
    flip = torch.randint(0, 2, (count, 1), device=device)
    y = rows + dy
    x = torch.where(flip == 1, width - 1 - columns, columns) + dx
    places = (y.unsqueeze(2) * (width + 2 * shift) + x.unsqueeze(1)).view(count, 1, -1).expand(-1, channels, -1)
    out = F.pad(images, [shift] * 4).flatten(2).gather(2, places).view_as(images)
    if cutout:
        cy, cx = torch.randint(0, height, (2, count, 1), device=device)
        inside_y, inside_x = (
            ((at - c) >= -(cutout // 2)) & ((at - c) < cutout // 2) for at, c in ((rows, cy), (columns, cx))
        )
        out = out.masked_fill((inside_y.unsqueeze(2) & inside_x.unsqueeze(1)).unsqueeze(1), 0.0)
    return out


# Language


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
    setup: Setup, batch_size: int = 128, width: int = 256, layers: int = 4, heads: int = 4, length: int = 128
) -> Problem:
    """BERT's masked language model on English text of word pieces; windows are drawn at random."""
    device = setup.device
    without_cudnn_attention()
    encoder = models.BERT(width, layers, heads, length, english.VOCABULARY)
    model = models.MaskedLanguage(encoder)
    text = array(setup.cache, "english-train", device)
    held_out = array(setup.cache, f"english-{'valid' if setup.tuning else 'test'}", device)
    offsets = torch.arange(length - 1, device=device)

    def rows(source: Tensor, first: Tensor) -> Tensor:
        return F.pad(source[first + offsets].long(), (1, 0), value=english.START)

    starts = torch.arange(min(512, len(held_out) // length), device=device).unsqueeze(1) * length
    fixed = masked(rows(held_out, starts), torch.Generator(device).manual_seed(0))

    def named(tokens: Tensor, places: Tensor, right: Tensor) -> Tensor:
        return F.cross_entropy(model(tokens, places).float().flatten(0, 1), right.flatten())

    def loss(step: Tensor) -> Tensor:
        first = torch.randint(0, len(text) - length, (batch_size, 1), device=device)
        return named(*masked(rows(text, first)))

    def evaluate() -> Mapping[str, float]:
        parts = list(zip(*(part.split(128) for part in fixed), strict=True))
        total = torch.stack([named(*part) * len(part[0]) for part in parts]).sum()
        return {"loss": total.item() / len(starts)}

    note = (
        f"English of installed packages: {len(text):,} word pieces to train, {len(starts):,} rows of {length} held out"
    )
    per_epoch = max(1, len(text) // (batch_size * length))
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
) -> Problem:
    """A task of GLUE. start: the key of a run of `bert` whose encoder is fine-tuned.

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
        tokens, labels = (array(setup.cache, f"{task}-{name}-{part}", device) for part in ("tokens", "labels"))
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


def lstm(setup: Setup, layers: int = 1, batch_size: int = 20, scale: str = "paper") -> Problem:
    """The harness's AWD-LSTM on Penn Treebank; the state that is carried along lies in buffers of its own."""
    from adan_bench.data.words import penn_treebank, perplexity
    from adan_bench.spec import Context

    task = _task(setup, f"lstm-{layers}", scale, batch_size)
    splits, _ = penn_treebank(Context(setup.seed, batch_size, setup.cache / "data"))
    held_out = splits[1 if setup.tuning else 2]
    model, stream = task.model.to(setup.device), task.batches
    columns, length, per_epoch = stream.columns.to(setup.device), stream.length, stream.per_epoch
    rows = torch.arange(length + 1, device=setup.device)
    carry = [torch.zeros(2, batch_size, layer.hidden_size, device=setup.device) for layer in model.layers]

    def loss(step: Tensor) -> Tensor:
        position = step % per_epoch
        words = columns.index_select(0, position * length + rows).long()
        going_on = (position > 0).float()
        logits, following, penalty = model(words[:-1], [state * going_on for state in carry])
        for kept, state in zip(carry, following, strict=True):
            kept.copy_(state)
        total: Tensor = F.cross_entropy(logits.float().flatten(0, 1), words[1:].flatten()) + penalty
        return total

    def evaluate() -> Mapping[str, float]:
        """As the task does it, but on one split: the other would cost as much again."""

        def step(words: Tensor, following: Tensor, state: Any) -> tuple[Tensor, Any]:
            logits, state, _ = model(words, state)
            return F.cross_entropy(logits.float().flatten(0, 1), following.flatten()), state

        return {"perplexity": perplexity(step, held_out, 10, length, setup.device)}

    return Problem(
        model,
        loss,
        evaluate,
        "perplexity",
        False,
        per_epoch,
        task.note,
        max_grad_norm=task.max_grad_norm,
        decay_all=True,
        compiles=False,
    )


def transformer_xl(setup: Setup, batch_size: int = 20) -> Problem:
    """The harness's Transformer-XL on Penn Treebank; the memory lies in buffers of its own."""
    from adan_bench.data.words import penn_treebank, perplexity
    from adan_bench.spec import Context

    device = setup.device
    task = _task(setup, "transformer-xl", "small", batch_size)
    splits, _ = penn_treebank(Context(setup.seed, batch_size, setup.cache / "data"))
    held_out = splits[1 if setup.tuning else 2]
    model, stream = task.model.to(device), task.batches
    columns, length, per_epoch = stream.columns.to(device), stream.length, stream.per_epoch
    rows = torch.arange(length + 1, device=device)
    past, filled = model.initial(batch_size, device)
    # Where the rarer words stand, by row: by cluster, places and answers.
    found = [stream(i)[2] for i in range(per_epoch)]
    tails = [[torch.stack(parts).to(device) for parts in zip(*row, strict=True)] for row in zip(*found, strict=True)]

    def loss(step: Tensor) -> Tensor:
        position = step % per_epoch
        words = columns.index_select(0, position * length + rows).long()
        here = [[part.index_select(0, position).squeeze(0) for part in parts] for parts in tails]
        memory = past, filled * (position > 0).squeeze(0)  # an epoch begins with none
        total, (kept, count) = model(words[:-1], words[1:], here, memory)
        past.copy_(kept)
        filled.copy_(count)
        return total

    def evaluate() -> Mapping[str, float]:
        """As the task does it, but on one split."""

        def step(words: Tensor, following: Tensor, memories: Any) -> Any:
            return model(words, following, memories=memories)

        return {"perplexity": perplexity(step, held_out, 10, length, device)}

    limit = task.max_grad_norm
    return Problem(
        model, loss, evaluate, "perplexity", False, per_epoch, task.note, max_grad_norm=limit, decay_all=True
    )


# Graphs


def cora(setup: Setup, layers: int = 14, channels: int = 64) -> Problem:
    """DeeperGCN on the citations of Cora, with the public split: a step sees the whole graph and 140 labels."""
    folder, device = setup.cache / "data" / "graphs" / "cora", setup.device
    with np.load(folder / "features.npz") as found:
        words = np.zeros(found["shape"], np.float32)
        words[np.repeat(np.arange(len(words)), np.diff(found["indptr"])), found["indices"]] = found["data"]
    x = torch.from_numpy(words / words.sum(1, keepdims=True).clip(min=1)).to(device)
    one_way = torch.from_numpy(np.loadtxt(folder / "edges.csv", int, delimiter=",", skiprows=1).T.copy())
    rows = [line.split(",") for line in (folder / "nodes.csv").read_text().split()[1:]]
    labels = torch.tensor([int(label) for _, label, _ in rows], device=device)

    def chosen(name: str) -> Tensor:
        return torch.tensor([i for i, row in enumerate(rows) if row[2] == name], device=device)

    train, held_out = chosen("train"), chosen("valid" if setup.tuning else "test")
    model = models.DeepGCN(
        torch.cat([one_way, one_way.flip(0)], 1), x.shape[1], channels, layers, int(labels.max()) + 1
    )

    def loss(step: Tensor) -> Tensor:
        return F.cross_entropy(model(x).index_select(0, train), labels.index_select(0, train))

    def evaluate() -> Mapping[str, float]:
        logits, answers = model(x)[held_out], labels[held_out]
        accuracy = (logits.argmax(1) == answers).float().mean().item()
        return {"accuracy": accuracy, "loss": F.cross_entropy(logits, answers).item()}

    note = f"Cora, public split: {len(train)} of {len(rows):,} nodes to train, {len(held_out):,} held out"
    return Problem(model, loss, evaluate, "accuracy", True, 1, note, compiles=False, bf16=False)


# Detection


def detr(setup: Setup, batch_size: int = 16, scale: str = "small", size: tuple[int, int] = (320, 240)) -> Problem:
    """The harness's Deformable-DETR on photographs of blood cells, scaled to a size in pixels.

    Trials hold out every sixth of the photographs that train, and look at the loss on them: the average precision says
    little where it is near zero.
    """
    from adan_bench.data.batching import prepared
    from adan_bench.data.coco import blood_cells
    from adan_bench.spec import Context
    from adan_bench.workloads.deformable_detr import detection
    from adan_bench.workloads.registry import get_workload

    sizes = get_workload("deformable-detr", scale).scales[scale].sizes
    context = Context(setup.seed, batch_size, setup.cache / "data", str(setup.device), scale, sizes=sizes)
    train, held_out = blood_cells(context, (size[0], size[1]))
    if setup.tuning:
        apart = train.ids[::6]
        train, held_out = train.subset(sorted({*train.ids} - {*apart})), train.subset(apart)
    note = (
        f"BCCD: {len(train.ids)} photographs of blood cells to train, {size[0]}×{size[1]} pixels, mirrored by a fair "
        f"coin; {len(held_out.ids)} held out{' of the training split' if setup.tuning else ''}"
    )
    task = detection(context, train, held_out, note)

    count = min(batch_size, len(held_out.ids))
    others = detection(replace(context, batch_size=count), held_out, held_out, "") if setup.tuning else None

    def evaluate() -> Mapping[str, float]:
        values = dict(task.evaluate(task.model))
        if others is not None:
            batches = [prepared(others, i, setup.device) for i in range(len(held_out.ids) // count)]
            values["loss"] = sum(task.loss(task.model, batch).item() for batch in batches) / len(batches)
        return values

    def loss(step: Tensor) -> Tensor:
        return task.loss(task.model, prepared(task, int(step.item()), setup.device))

    return Problem(
        task.model,
        loss,
        evaluate,
        "loss" if setup.tuning else "box AP",
        not setup.tuning,
        len(train.ids) // batch_size,
        task.note,
        max_grad_norm=task.max_grad_norm,
        decay_all=True,
        captures=False,
        compiles=False,
        bf16=False,
        groups=task.groups,
    )


# The harness


def harness(
    setup: Setup,
    workload: str,
    scale: str,
    batch_size: int,
    schedule: str,
    warmup: float,
) -> Problem:
    """A workload of `adan_bench` as it is."""
    from adan_bench.data.batching import prepared
    from adan_bench.workloads.registry import get_workload

    found = get_workload(workload, scale)
    task = _task(setup, workload, scale, batch_size)

    def loss(step: Tensor) -> Tensor:
        return task.loss(task.model, prepared(task, int(step.item()), setup.device))

    return Problem(
        task.model,
        loss,
        lambda: task.evaluate(task.model),
        found.metric,
        found.higher_is_better,
        1,
        task.note,
        max_grad_norm=task.max_grad_norm,
        decay_all=True,
        captures=False,
        compiles=False,
        bf16=False,
        schedule=schedule,
        warmup=warmup,
        stream=task.batches if hasattr(task.batches, "state_dict") else None,
    )


def _task(setup: Setup, workload: str, scale: str, batch_size: int) -> Any:
    from adan_bench.workloads.registry import get_workload

    data = setup.cache / "data"
    return get_workload(workload, scale).task(setup.seed, batch_size, data, str(setup.device))


PROBLEMS: dict[str, Callable[..., Problem]] = {
    "vit": vit,
    "resnet34": resnet34,
    "convnext": convnext,
    "mae": mae,
    "gpt": gpt,
    "bert": bert,
    "glue": glue,
    "lstm": lstm,
    "transformer-xl": transformer_xl,
    "cora": cora,
    "detr": detr,
    "harness": harness,
}
