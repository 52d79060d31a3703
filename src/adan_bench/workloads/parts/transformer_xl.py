"""Transformer-XL's language model (arXiv:1901.02860), with the details of its authors' code, and its task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adan_bench.data.files import PENN_TREEBANK, WIKITEXT
from adan_bench.data.words import Stream, documentation, encode, perplexity, vocabulary, word_files
from adan_bench.task import Context, Task
from adan_bench.workloads.parts.transformer import sinusoids
from adan_bench.workloads.words import XLSizes

IGNORED = -100
Memories = tuple[Tensor, Tensor]  # layers × places × columns × width, and how many of the places are filled
Tails = Sequence[tuple[Tensor, Tensor]]  # by cluster: places in the flattened batch, words counted from its first


class TransformerXL(nn.Module):
    """The mean loss of the words that follow, and the memories for the next call.

    The output layer is an adaptive softmax (arXiv:1609.04309) on the tied embedding: the most frequent words and one
    entry per cluster of rarer ones stand in the first softmax, the words of a cluster in one of their own. Memories
    have one shape from the first call on, in which places that are not filled are never attended to.
    """

    cutoffs: Tensor

    def __init__(self, words: int, sizes: XLSizes) -> None:
        super().__init__()
        self.sizes = sizes
        cutoffs = [cutoff for cutoff in sizes.cutoffs if cutoff < words]
        self.edges = [*cutoffs, words]
        self.register_buffer("cutoffs", torch.tensor(cutoffs, dtype=torch.long), persistent=False)
        self.embedding = nn.Embedding(words, sizes.width)
        self.bias = nn.Parameter(torch.zeros(words))
        self.clusters = nn.Parameter(torch.empty(len(cutoffs), sizes.width))
        self.clusters_bias = nn.Parameter(torch.zeros(len(cutoffs)))
        self.u, self.v = (nn.Parameter(torch.empty(sizes.heads, sizes.width // sizes.heads)) for _ in "uv")
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.drop = nn.Dropout(sizes.dropout)
        for name, parameter in self.named_parameters():
            if "norm" in name and name.endswith("weight"):
                nn.init.normal_(parameter, 1.0, 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
            else:
                nn.init.normal_(parameter, 0.0, 0.02)

    def initial(self, columns: int, device: torch.device | str | None = None) -> Memories:
        sizes = self.sizes
        empty = torch.zeros(sizes.layers, sizes.memory, columns, sizes.width, device=device)
        return empty, torch.zeros((), dtype=torch.long, device=device)

    def forward(
        self, words: Tensor, following: Tensor, tails: Tails | None = None, memories: Memories | None = None
    ) -> tuple[Tensor, Memories]:
        """tails: `tails_of(following)`, where it is known without asking the device."""
        past, filled = memories or self.initial(words.shape[1], words.device)
        length, places = len(words), past.shape[1]
        keys = torch.arange(places + length, device=words.device)
        queries = keys[places:, None]
        visible = (keys <= queries) & (keys >= places - filled)
        positions = self.drop(sinusoids(keys.flip(0).to(self.u.dtype), self.sizes.width))  # from the largest distance
        hidden = self.drop(self.embedding(words) * math.sqrt(self.sizes.width))
        inputs = []
        for layer, before in zip(self.layers, past, strict=True):
            inputs.append(hidden.detach())
            hidden = layer(hidden, torch.cat([before, hidden]), positions, visible, self.u, self.v)
        loss = self._loss(self.drop(hidden).flatten(0, 1), following.flatten(), tails)
        return loss, (torch.cat([past, torch.stack(inputs)], 1)[:, length:], (filled + length).clamp(max=places))

    def _loss(self, hidden: Tensor, following: Tensor, tails: Tails | None) -> Tensor:
        first, weight = self.edges[0], self.embedding.weight
        cluster = torch.bucketize(following, self.cutoffs, right=True)
        head = torch.cat([weight[:first], self.clusters])
        logits = F.linear(hidden, head, torch.cat([self.bias[:first], self.clusters_bias]))
        answers = torch.where(cluster == 0, following, first - 1 + cluster)
        total = F.cross_entropy(logits, answers, reduction="sum")
        for i, (places, answers) in enumerate(self.tails_of(following) if tails is None else tails):
            low, high = self.edges[i : i + 2]
            logits = F.linear(hidden.index_select(0, places), weight[low:high], self.bias[low:high])
            total = total + F.cross_entropy(logits, answers, ignore_index=IGNORED, reduction="sum")
        return total / len(following)

    def largest_tails(self, rows: Tensor) -> list[int]:
        """The most words of each cluster in any of the rows."""
        pairs = zip(self.edges, self.edges[1:], strict=False)
        return [int(((rows >= low) & (rows < high)).sum(1).max()) for low, high in pairs]

    def tails_of(self, following: Tensor, sizes: Sequence[int] | None = None) -> Tails:
        """Where the words of each cluster stand; padded with words that do not count, where a size is given.

        With sizes the device is asked for nothing, so that a CUDA graph can hold it.
        """
        tails, flat = [], following.flatten()
        for i, (low, high) in enumerate(zip(self.edges, self.edges[1:], strict=False)):
            inside = (flat >= low) & (flat < high)
            if sizes is None:
                places = inside.nonzero()[:, 0]
            else:
                places = (~inside).to(torch.uint8).argsort(stable=True)[: sizes[i]]
            tails.append((places, torch.where(inside[places], flat[places] - low, IGNORED)))
        return tails


class Layer(nn.Module):
    """Attention in which positions enter by their distance, then a feed-forward layer; each followed by its norm."""

    def __init__(self, sizes: XLSizes) -> None:
        super().__init__()
        width, self.heads = sizes.width, sizes.heads
        self.query, self.position, self.out = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.key_value = nn.Linear(width, 2 * width, bias=False)
        self.drop = nn.Dropout(sizes.dropout)
        self.norm, self.last_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, sizes.inner),
            nn.ReLU(),
            nn.Dropout(sizes.dropout),
            nn.Linear(sizes.inner, width),
            nn.Dropout(sizes.dropout),
        )

    def forward(
        self, hidden: Tensor, context: Tensor, positions: Tensor, visible: Tensor, u: Tensor, v: Tensor
    ) -> Tensor:
        """context: memory and hidden; the score of a key is (q + u)·k + (q + v)·r, r that of its distance."""
        query, key, value, distance = (
            part.unflatten(-1, (self.heads, -1)).movedim(0, -2).contiguous()  # columns × heads × words × size
            for part in (self.query(hidden), *self.key_value(context).chunk(2, -1), self.position(positions))
        )
        by_content = (query + u[:, None]) @ key.mT
        by_distance = shifted(torch.einsum("bnid,njd->bnij", query + v[:, None], distance))
        scores = ((by_content + by_distance) / math.sqrt(query.shape[-1])).masked_fill(~visible, -math.inf)
        attended = (scores.softmax(-1) @ value).movedim(-2, 0).flatten(2)
        hidden = self.norm(hidden + self.drop(self.out(attended)))
        output: Tensor = self.last_norm(hidden + self.feed(hidden))
        return output


def shifted(scores: Tensor) -> Tensor:
    """From one column per distance to one per key: query i of n has its distances n − 1 − i places further right."""
    padded = F.pad(scores, (1, 0))
    rows, places = scores.shape[-2:]
    return padded.view(*scores.shape[:-2], places + 1, rows)[..., 1:, :].reshape(scores.shape)


def transformer_xl(context: Context) -> Task:
    sizes: XLSizes = context.sizes
    if context.scale == "smoke":
        (train, valid, test), known, note = _characters()
    else:
        files, note = (PENN_TREEBANK, "Penn Treebank") if context.scale == "small" else (WIKITEXT, "WikiText-103")
        ((train, valid, test), known), note = word_files(*map(context.path, files)), f"{note}, words"
    network = TransformerXL(known, sizes)
    carry = network.initial(context.batch_size // context.ranks, context.device)
    stream = Stream(train, context.batch_size, sizes.length, carry, own=context.own())
    largest = network.largest_tails(stream.columns[1 : 1 + stream.per_epoch * sizes.length].view(stream.per_epoch, -1))

    def prepare(batch: tuple[Tensor, int]) -> tuple[Any, ...]:
        words, following, carry = stream.gather(batch)
        return words, following, network.tails_of(following, largest), carry

    def loss(model: nn.Module, batch: Any) -> Tensor:
        value: Tensor
        value, carry = model(*batch)
        stream.keep(carry)
        return value

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        def step(words: Tensor, following: Tensor, memories: Any) -> Any:
            return model(words, following, memories=memories)

        held_out = {"perplexity": valid if context.tuning else test}
        if context.scale == "paper":  # the published score is that of the evaluation with the best validation
            held_out["valid_perplexity"] = valid
        return {name: perplexity(step, text, 10, sizes.length, context.device) for name, text in held_out.items()}

    note += f": {len(train):,} to train, {len(valid):,} and {len(test):,} held out, {known:,} different"
    return Task(network, stream, loss, evaluate, note, max_grad_norm=0.25, prepare=prepare)


def _characters() -> tuple[list[Tensor], int, str]:
    text = "\n".join(documentation())
    numbers = vocabulary(text, size=128)
    splits = text[:-10_000], text[-10_000:-5_000], text[-5_000:]
    note = "documentation strings of the standard library, characters"
    return [encode(part, numbers) for part in splits], len(numbers), note
