"""Language modeling on sub-words: byte-level BPE, and folders of text that are read where a batch needs them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import accumulate
from math import gcd
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo import OptimizedModule

from adan_bench.data.batching import Windows, fingerprint, generator, library_files, library_sources, prefetch
from adan_bench.data.cache import decoded
from adan_bench.data.words import documentation
from adan_bench.errors import UsageError, listing
from adan_bench.task import Context, Task

SPECIAL = ("<s>", "<pad>", "</s>", "<mask>")
START, PAD, END, MASK = range(4)
SUFFIXES = (".txt", ".py", ".parquet")
COLUMNS = ("content", "text")  # The Stack's name and the usual one
SAMPLE = 100_000_000  # bytes from which a tokenizer is trained
MARGIN = 1.2  # bytes read for a row, as a multiple of what its tokens take on average


@dataclass
class LanguageTask(Task):
    """A task whose model writes text: what its tokens mean belongs to it."""

    tokenizer: Any = None


@dataclass(frozen=True)
class Language:
    """Rows of tokens to train on, rows held out, and what they mean.

    batches, gather: what the host has of a batch, and the rows of that on the device.
    """

    tokenizer: Any
    batches: Callable[[int], Tensor]
    gather: Callable[[Tensor], Tensor]
    held_out: Tensor
    note: str


def language(context: Context, folder: str, kind: str, length: int, once: bool = False) -> Language:
    """Rows of `length` tokens: of the data folder's `folder` at paper scale, of the standard library at the others.

    Of `context.sizes` it takes the size of the vocabulary and how many rows are held out.

    kind: "source" or "prose", the part of the standard library, of which the last twentieth is held out; from trials,
        that and the one before, which they are evaluated on.
    once: the folder is read once and no more.
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
    tokenizer = corpus.tokenizer(vocabulary)
    reader = Reader(corpus, tokenizer, length, context, once)
    note = f"{folder}: {corpus.size:,} bytes, {reader.per_epoch:,} batches per epoch, {name(tokenizer)}"
    return Language(tokenizer, prefetch(reader), lambda rows: rows, reader.held_out(), note)


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


class FilePart(NamedTuple):
    """A file, or a row group of a parquet file, and its size in bytes."""

    path: Path
    group: int | None
    size: int


class Corpus:
    """The texts of a folder as one run of bytes, any part of which is read without the rest."""

    def __init__(self, folder: Path) -> None:
        files = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES)
        self.folder = folder
        self.parts = [part for path in files for part in _parts(path) if part.size > 0]
        if not self.parts:
            raise UsageError(f"{folder}: no text in {', '.join(SUFFIXES)} files; it holds: {listing(folder)}")
        self.ends = list(accumulate(part.size for part in self.parts))
        self.size = self.ends[-1]
        self.in_order = any(part.group is not None for part in self.parts)  # a row group is decoded as a whole

    def read(self, start: int, stop: int) -> Iterator[str]:
        """The bytes from `start` to `stop`, a text for every part that they touch."""
        index = bisect_right(self.ends, start)
        while start < min(stop, self.size):
            part, end = self.parts[index], self.ends[index]
            begin = end - part.size
            yield _text(part, start - begin, min(stop, end) - begin)
            start, index = end, index + 1

    def tokenizer(self, vocabulary: int) -> Any:
        """The folder's tokenizer.json; without it, one trained on the first 100 MB."""
        from tokenizers import Tokenizer

        path = self.folder / "tokenizer.json"
        if not path.exists():
            step = 1_000_000
            texts = (text for start in range(0, SAMPLE, step) for text in self.read(start, start + step))
            return train_tokenizer(texts, vocabulary)
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing more specific
            raise UsageError(
                f"{path}: not a tokenizer.json of the tokenizers package ({error}); remove it to have one trained"
            ) from error
        if [tokenizer.token_to_id(token) for token in SPECIAL] != [START, PAD, END, MASK]:
            raise UsageError(f"{path}: its first tokens must be {' '.join(SPECIAL)}; remove it to have one trained")
        return tokenizer


class Reader:
    """Batches of a corpus as a function of their position: rows of tokens from equal shares of its bytes.

    A row has 1.2 times the bytes that its tokens take on average; what is over is left out, what is missing is padding.
    Rows are in an order of their own each epoch, but for parquet files, which are read from front to back. The last
    rows are held out; from trials, those and as many before, which they are evaluated on.
    """

    def __init__(self, corpus: Corpus, tokenizer: Any, length: int, context: Context, once: bool) -> None:
        self.corpus, self.encode, self.length, self.once = corpus, tokenizer.encode_batch, length, once
        self.batch_size, self.seed, self.own = context.batch_size, context.seed, context.own()
        sample = list(corpus.read(0, 1_000_000))
        tokens = sum(len(encoding.ids) for encoding in self.encode(sample))
        self.bytes = int(MARGIN * length * sum(len(text.encode()) for text in sample) / max(1, tokens)) + 1
        rows = corpus.size // self.bytes
        self.last = min(context.sizes.held_out, max(1, rows // 10))
        self.rows = rows - self.last * (2 if context.tuning else 1)
        self.per_epoch = self.rows // self.batch_size
        if self.per_epoch < 1:
            raise UsageError(
                f"{corpus.folder}: {corpus.size:,} bytes are too few for {self.batch_size} rows of {length} tokens "
                "and more"
            )

    def __call__(self, position: int) -> Tensor:
        epoch, index = divmod(position, self.per_epoch)
        if self.once and epoch > 0:
            raise UsageError(
                f"{self.corpus.folder}: every token was seen once after {self.per_epoch:,} batches of "
                f"{self.batch_size}; use fewer --steps or more text"
            )
        factor, shift = self._order(epoch)
        first = index * self.batch_size
        rows = [(factor * i + shift) % self.rows for i in range(first, first + self.batch_size)]
        return self._tokens(self.own(rows))

    def held_out(self) -> Tensor:
        return self._tokens(list(range(self.rows, self.rows + self.last)))

    def _order(self, epoch: int) -> tuple[int, int]:
        """Row i comes as factor·i + shift (mod rows): a permutation, as factor and rows have no common divisor."""
        if self.corpus.in_order:
            return 1, 0
        factor, shift = torch.randint(self.rows, (2,), generator=generator(self.seed, epoch)).tolist()
        while gcd(factor, self.rows) != 1:
            factor += 1
        return factor, shift

    def _tokens(self, rows: list[int]) -> Tensor:
        texts = [list(self.corpus.read(row * self.bytes, (row + 1) * self.bytes)) for row in rows]
        encodings = iter(self.encode([text for row in texts for text in row]))
        out = torch.full((len(rows), self.length), PAD)
        for line, row in zip(out, texts, strict=True):
            ids = [i for _ in row for i in [*next(encodings).ids, END]][: self.length]
            line[: len(ids)] = torch.tensor(ids)
        return out


def language_task(
    model: nn.Module, data: Language, loss: Callable[[nn.Module, Any], Tensor], context: Context
) -> LanguageTask:
    """A model trained on rows of tokens, evaluated by its mean loss on those held out."""

    def evaluate(model: nn.Module) -> dict[str, float]:
        """The mean over all tokens but the padding."""
        parts = [part.to(context.device) for part in data.held_out.split(context.batch_size)]
        total = sum(next_token_loss(model, part, "sum").item() for part in parts)
        return {"loss": total / int((data.held_out[:, 1:] != PAD).sum())}

    return LanguageTask(
        model,
        data.batches,
        loss,
        evaluate,
        data.note,
        max_grad_norm=1.0,
        prepare=data.gather,
        weight=lambda rows: (rows[:, 1:] != PAD).sum(),
        tokenizer=data.tokenizer,
    )


def next_token_loss(model: nn.Module, rows: Tensor, reduction: str = "mean") -> Tensor:
    logits = model(rows[:, :-1]).logits
    loss = _compiled_cross_entropy() if isinstance(model, OptimizedModule) else _cross_entropy
    return loss(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction)


def _cross_entropy(logits: Tensor, words: Tensor, reduction: str) -> Tensor:
    return F.cross_entropy(logits.float(), words, ignore_index=PAD, reduction=reduction)


@cache
def _compiled_cross_entropy() -> Callable[[Tensor, Tensor, str], Tensor]:
    """For compiled models: without the logits, of which there are batch × length × vocabulary, in float32."""
    return torch.compile(_cross_entropy)


def first_texts(texts: Iterable[str], size: int) -> Iterator[str]:
    """The texts that begin in the first `size` characters."""
    for text in texts:
        if size <= 0:
            return
        size -= len(text)
        yield text


def _parts(path: Path) -> Iterator[FilePart]:
    if path.suffix != ".parquet":
        yield FilePart(path, None, path.stat().st_size)
        return
    import pyarrow.parquet as parquet

    try:
        metadata = parquet.ParquetFile(path).metadata
    except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
        raise UsageError(f"{path}: not a parquet file ({error}); get it again") from error
    columns = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    column = next((columns.index(c) for c in COLUMNS if c in columns), None)
    if column is None:
        raise UsageError(f"{path}: no column {' or '.join(COLUMNS)}; it has: {', '.join(columns[:12])}")
    for group in range(metadata.num_row_groups):
        yield FilePart(path, group, metadata.row_group(group).column(column).total_uncompressed_size)


def _text(part: FilePart, start: int, stop: int) -> str:
    """A part's text; of a row group, whose size in the file differs a little from that of its text, the same share."""
    if part.group is None:
        with part.path.open("rb") as file:
            file.seek(start)
            content = file.read(stop - start)
    else:
        whole = _row_group(part.path, part.group)
        content = whole[start * len(whole) // part.size : stop * len(whole) // part.size]
    return content.decode("utf-8", errors="ignore")  # a cut may halve a character


@lru_cache(maxsize=2)
def _row_group(path: Path, group: int) -> bytes:
    import pyarrow.parquet as parquet

    try:
        file = parquet.ParquetFile(path)
        column = next(c for c in COLUMNS if c in file.schema_arrow.names)
        rows = file.read_row_group(group, columns=[column])[column].to_pylist()
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: row group {group} is damaged ({error}); get it again") from error
    return "\n\n".join(row for row in rows if row).encode()
