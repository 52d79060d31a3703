"""Language modeling on sub-words: byte-level BPE, and folders of text that are read where a batch needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from math import gcd
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo import OptimizedModule

import adan
from adan_bench.data.batching import Windows, fingerprint, generator, library_files, library_sources, prefetch
from adan_bench.data.cache import decoded
from adan_bench.data.corpus import MERGES, Corpus
from adan_bench.data.words import documentation
from adan_bench.errors import UsageError
from adan_bench.task import Context, Settings, Task

SPECIAL = ("<s>", "<pad>", "</s>", "<mask>")
START, PAD, END, MASK = range(4)
ENDS = ("</s>", "<|endoftext|>")  # ours, and GPT-2's
SAMPLE = 100_000_000  # bytes from which a tokenizer is trained
MARGIN = 1.2  # bytes read for a row, as a multiple of what its tokens take on average


@dataclass
class LanguageTask(Task):
    """A task whose model writes text: what its tokens mean belongs to it (`Language`)."""

    tokenizer: Any = None
    end: int = END
    pad: int = PAD


@dataclass(frozen=True)
class Language:
    """Rows of tokens to train on, rows held out, and what they mean.

    batches, gather: what the host has of a batch, and the rows of that on the device.
    end, pad: the tokens after a document and after a short row. Where the tokenizer has none for padding, it is one
        more than it has.
    """

    tokenizer: Any
    batches: Callable[[int], Tensor]
    gather: Callable[[Tensor], Tensor]
    held_out: Tensor
    note: str
    end: int = END
    pad: int = PAD

    @property
    def vocabulary(self) -> int:
        """Tokens that a model must know."""
        return max(int(self.tokenizer.get_vocab_size()), self.pad + 1)


def language(
    context: Context, folder: str, kind: str, length: int, once: bool = False, masked: bool = False
) -> Language:
    """Rows of `length` tokens: of the data folder's `folder` at paper scale, of the standard library at the others.

    Of `context.sizes` it takes the size of the vocabulary and how many rows are held out.

    kind: "source" or "prose", the part of the standard library, of which the last twentieth is held out; from trials,
        that and the one before, which they are evaluated on.
    once: the folder is read once and no more. masked: its tokenizer must have BERT's special tokens.
    """
    vocabulary = context.sizes.vocabulary
    if context.scale != "paper":
        tokenizer, tokens, note = library(kind, vocabulary, context.scale)
        part = len(tokens) // 20
        tokens = tokens[:-part] if context.tuning else tokens
        held_out = Windows(tokens[-part:], length, context.sizes.held_out, seed=0)
        train = Windows(tokens[:-part].to(context.device), length, context.batch_size, context.seed, context.own())
        return Language(tokenizer, train, train.gather, held_out.gather(held_out(0)), note)
    corpus = Corpus(context.path(folder))
    tokenizer = (masking_tokenizer if masked else folder_tokenizer)(corpus, vocabulary)
    reader = Reader(corpus, tokenizer, length, context, once)
    note = f"{folder}: {corpus.size:,} bytes, {reader.per_epoch:,} batches per epoch, {name(tokenizer)}"
    rows, meaning = reader.held_out(), (reader.end, reader.pad)
    return Language(tokenizer, prefetch(reader), lambda rows: rows, rows, note, *meaning)


def name(tokenizer: Any) -> str:
    """A tokenizer's size and checksum: equal names mean equal tokens."""
    return f"tokenizer of {tokenizer.get_vocab_size():,}, sha256 {fingerprint(tokenizer.to_str().encode())}"


@lru_cache(maxsize=4)  # a worker process makes many runs
def library(kind: str, vocabulary: int, scale: str) -> tuple[Any, Tensor, str]:
    """A tokenizer of the standard library's source or prose, its tokens, and a note."""
    import platform

    import tokenizers

    def encoded() -> dict[str, Tensor]:
        texts = library_sources() if kind == "source" else [text for text in documentation() if text]
        texts = list(first_texts(texts, 600_000)) if scale == "smoke" else texts
        trained = train_tokenizer(texts, vocabulary)
        ids = [i for encoding in trained.encode_batch(texts) for i in [*encoding.ids, END]]
        return {"ids": torch.tensor(ids), "tokenizer": torch.tensor([*trained.to_str().encode()], dtype=torch.uint8)}

    # Training a tokenizer takes seconds; another version of the package may train another one.
    tensors = decoded(f"{kind}-{vocabulary}-{scale}-{tokenizers.__version__}", library_files(), encoded)
    tokenizer = tokenizers.Tokenizer.from_str(bytes(tensors["tokenizer"].numpy()).decode())
    ids, source = tensors["ids"], f"{kind} of Python {platform.python_version()}'s standard library"
    return tokenizer, ids, f"{source}, {len(ids):,} tokens, {name(tokenizer)}"


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Any:
    """Byte-level BPE. Unlike WordPiece's, its training gives the same vocabulary in every process."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def folder_tokenizer(corpus: Corpus, vocabulary: int) -> Any:
    """The folder's tokenizer.json, or GPT-2's vocab.json and merges.txt; else one trained on the first 100 MB."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    path, pair = corpus.folder / "tokenizer.json", [corpus.folder / name for name in ("vocab.json", MERGES)]
    try:
        if path.exists():
            return Tokenizer.from_file(str(path))
        if all(file.exists() for file in pair):
            tokenizer = Tokenizer(models.BPE.from_file(*map(str, pair)))
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.decoder = decoders.ByteLevel()
            return tokenizer
    except Exception as error:  # the library raises nothing more specific
        file = path if path.exists() else pair[0]
        raise UsageError(f"{file}: no tokenizer of tokenizers ({error}); remove it to have one trained") from error
    step = 1_000_000
    texts = (text for start in range(0, SAMPLE, step) for text in corpus.documents(start, start + step))
    return train_tokenizer(texts, vocabulary)


def end_of(tokenizer: Any, corpus: Corpus) -> int:
    """The token that follows a document."""
    found = [i for token in ENDS if (i := tokenizer.token_to_id(token)) is not None]
    if not found:
        raise UsageError(f"{corpus.folder}: its tokenizer has no {' or '.join(ENDS)}; remove it to have one trained")
    return int(found[0])


def masking_tokenizer(corpus: Corpus, vocabulary: int) -> Any:
    """`folder_tokenizer` for BERT, which needs the special tokens in their places."""
    tokenizer = folder_tokenizer(corpus, vocabulary)
    if [tokenizer.token_to_id(token) for token in SPECIAL] != [START, PAD, END, MASK]:
        words = " ".join(SPECIAL)
        raise UsageError(f"{corpus.folder}: its tokenizer must begin with {words}; remove it to have one trained")
    return tokenizer


class Reader:
    """Batches of a corpus as a function of their position: rows of tokens from equal shares of its bytes.

    A row has 1.2 times the bytes that its tokens take on average; what is over is left out, what is missing is padding.
    Rows are in an order of their own each epoch. Where parts of the corpus are decoded as a whole, blocks of rows about
    as large are, and the rows of as many blocks as are kept decoded. The last rows are held out; from trials, those and
    as many before, which they are evaluated on.
    """

    def __init__(self, corpus: Corpus, tokenizer: Any, length: int, context: Context, once: bool) -> None:
        self.corpus, self.encode, self.length, self.once = corpus, tokenizer.encode_batch, length, once
        self.batch_size, self.seed, self.own = context.batch_size, context.seed, context.own()
        self.end, pad = end_of(tokenizer, corpus), tokenizer.token_to_id(SPECIAL[PAD])
        self.pad: int = tokenizer.get_vocab_size() if pad is None else pad
        sample = min(1_000_000, corpus.size)
        (tokens,) = map(len, self._encoded([(0, sample)]))
        self.bytes = int(MARGIN * length * sample / max(1, tokens)) + 1
        rows = corpus.size // self.bytes
        self.last: int = min(context.sizes.held_out, max(1, rows // 10))
        self.first_held_out = rows - self.last * (2 if context.tuning else 1)
        self.blocks = -(-self.first_held_out * self.bytes // max(self.bytes, corpus.part_size))
        self.block: int = self.first_held_out // max(1, self.blocks)
        self.rows = self.blocks * self.block  # but for fewer than there are blocks
        self.per_epoch = self.rows // self.batch_size
        if self.per_epoch < 1:
            few = f"{corpus.size:,} bytes are too few for {self.batch_size} rows of {length} tokens"
            raise UsageError(f"{corpus.folder}: {few}; use more text or a smaller --batch-size")

    def __call__(self, position: int) -> Tensor:
        epoch, index = divmod(position, self.per_epoch)
        if self.once and epoch > 0:
            batches = f"{self.per_epoch:,} batches of {self.batch_size}"
            raise UsageError(f"{self.corpus.folder}: {batches} are all that it has; use fewer --steps or more text")
        first = index * self.batch_size
        return self._tokens([self.place(epoch, i) for i in self.own([*range(first, first + self.batch_size)])])

    def held_out(self) -> Tensor:
        return self._tokens(list(range(self.first_held_out, self.first_held_out + self.last)))

    def place(self, epoch: int, index: int) -> int:
        """The row that comes as the `index`-th of an epoch."""
        together = 1 if self.block == 1 else self.corpus.kept  # blocks whose rows are mixed
        window, index = divmod(index, together * self.block)
        blocks = min(together, self.blocks - window * together)
        index = permuted(index, blocks * self.block, self.seed, epoch, window) if self.block > 1 else index
        block, row = divmod(index, self.block)
        return permuted(window * together + block, self.blocks, self.seed, epoch) * self.block + row

    def _encoded(self, places: list[tuple[int, int]]) -> list[list[int]]:
        """The tokens from one byte to another, with an end after every document that ends there."""
        texts = [self.corpus.documents(*place) for place in places]
        encodings = iter(self.encode([text for row in texts for text in row]))
        return [[i for _ in row for i in [*next(encodings).ids, self.end]][:-1] for row in texts]

    def _tokens(self, rows: list[int]) -> Tensor:
        out = torch.full((len(rows), self.length), self.pad)
        for line, ids in zip(
            out, self._encoded([(row * self.bytes, (row + 1) * self.bytes) for row in rows]), strict=True
        ):
            line[: len(ids)] = torch.tensor(ids[: self.length])
        return out


def permuted(index: int, size: int, *key: int) -> int:
    """Where a permutation of `size` that depends on the key has what stood at `index`.

    >>> sorted(permuted(i, 5, 0, 1) for i in range(5))
    [0, 1, 2, 3, 4]
    """
    if size <= 1 << 20:
        return int(_permutation(size, *key)[index])
    factor, shift = _affine(size, *key)
    return int(factor * index + shift) % size


@lru_cache(maxsize=8)
def _permutation(size: int, *key: int) -> Tensor:
    return torch.randperm(size, generator=generator(*key))


@lru_cache(maxsize=8)
def _affine(size: int, *key: int) -> tuple[int, int]:
    """Two numbers: factor·i + shift (mod size) is a permutation where factor and size have no common divisor."""
    factor, shift = map(int, torch.randint(size, (2,), generator=generator(*key)))
    while gcd(factor, size) != 1:
        factor += 1
    return factor, shift


def language_task(
    model: nn.Module, data: Language, loss: Callable[[nn.Module, Any], Tensor], context: Context
) -> LanguageTask:
    """A model trained on rows of tokens, evaluated by its mean loss on those held out."""

    def evaluate(model: nn.Module) -> dict[str, float]:
        """The mean over all tokens but the padding."""
        parts = [part.to(context.device) for part in data.held_out.split(context.batch_size)]
        total = sum(next_token_loss(model, part, data.pad, "sum").item() for part in parts)
        return {"loss": total / int((data.held_out[:, 1:] != data.pad).sum())}

    def weight(rows: Tensor) -> Tensor:
        return (rows[:, 1:] != data.pad).sum()

    groups = None if context.scale != "paper" else vectors_without_decay
    rest: dict[str, Any] = {"max_grad_norm": 1.0, "groups": groups, "prepare": data.gather, "weight": weight}
    meaning: dict[str, Any] = {"tokenizer": data.tokenizer, "end": data.end, "pad": data.pad}
    return LanguageTask(model, data.batches, loss, evaluate, data.note, **rest, **meaning)


def vectors_without_decay(model: nn.Module, settings: Settings) -> list[dict[str, Any]]:
    """Two groups as Megatron-LM has them (megatron/optimizer/__init__.py): biases and norms do not decay."""
    return adan.parameter_groups(model, settings.get("weight_decay", 0.0), no_decay_names=(), named=False)


def next_token_loss(model: nn.Module, rows: Tensor, pad: int, reduction: str = "mean") -> Tensor:
    logits = model(rows[:, :-1]).logits
    loss = _compiled_cross_entropy() if isinstance(model, OptimizedModule) else _cross_entropy
    return loss(logits.flatten(0, 1), rows[:, 1:].flatten(), pad, reduction)


def _cross_entropy(logits: Tensor, words: Tensor, pad: int, reduction: str) -> Tensor:
    return F.cross_entropy(logits.float(), words, ignore_index=pad, reduction=reduction)


@cache
def _compiled_cross_entropy() -> Callable[[Tensor, Tensor, int, str], Tensor]:
    """For compiled models: without the logits, of which there are batch × length × vocabulary, in float32."""
    return torch.compile(_cross_entropy)


def first_texts(texts: Iterable[str], size: int) -> Iterator[str]:
    """The texts that begin in the first `size` characters."""
    for text in texts:
        if size <= 0:
            return
        size -= len(text)
        yield text
