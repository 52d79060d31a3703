"""Text of the packages installed here, in three splits: Python source as bytes, and English prose as word pieces.

Either may also be Debian's documentation.

Docstrings and comments are found by regular expressions: 32 MB/s of source on a Neoverse-N1 core, where `ast` reads 2.
They find 9% more than the docstrings of `ast`: any string of three quotes that begins a line.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adan_bench.data.batching import library_files
from adan_bench.data.cache import decoded
from adan_bench.data.files import SPLITS
from adan_bench.data.tokens import first_texts, name
from adan_bench.errors import reading, unknown
from adan_bench.task import Context

MOST_BYTES = 400_000_000
LARGEST_FILE = 1_000_000
DEBIAN = "debian.txt.xz"  # documents with an empty line between, a paragraph a line; tools/pack_documentation.py
SPECIAL = ("[PAD]", "[START]", "[END]", "[MASK]", "[UNK]")
PAD, START, END, MASK, UNKNOWN = range(len(SPECIAL))
SAMPLE = 12_000_000  # characters from which the vocabulary is learned
SUFFIXES = (".py", ".md", ".rst", ".txt")

_DOCSTRING = re.compile(r'^[ \t]*[rRuU]?("""|\'\'\')(.*?)\1', re.MULTILINE | re.DOTALL)
_COMMENTS = re.compile(r"(?:^[ \t]*#[^\n]*\n)+", re.MULTILINE)
_MARK = re.compile(r"^[ \t]*#[#:!]*", re.MULTILINE)
_PROSE = re.compile(r"[A-Za-z ,.;:'()-]")


def installed(suffixes: tuple[str, ...]) -> list[Path]:
    """The files of Python's library and of the installed packages with these endings, in the order of their names."""
    folders = {sysconfig.get_path(name) for name in ("stdlib", "purelib")}
    walks = (walk for folder in folders for walk in os.walk(folder))
    return sorted({Path(base, name) for base, _, names in walks for name in names if name.endswith(suffixes)})


def debian(context: Context, usual: str, *more: str) -> Path | None:
    """Debian's documentation, if the option `text` names it or one of `more`; never at smoke scale."""
    text, texts = context.training.get("text", usual), (usual, "debian", *more)
    if text not in texts:
        raise unknown("text", text, texts)
    return context.path(DEBIAN) if text != usual and context.scale != "smoke" else None


@lru_cache(maxsize=2)  # a worker process makes many runs
def as_bytes(path: Path | None, whole: bool) -> tuple[dict[str, Tensor], str]:
    """The bytes of each split, and how much that is.

    path: of packed documentation; None: Python source of all packages or, if not whole, of the library's top folder.
    """
    paths = [path] if path else installed((".py",)) if whole else library_files()

    def read() -> dict[str, Tensor]:
        if path:
            return _bytes(((digest, "\n".join(text).encode()) for digest, text in _packed(path)), 100)
        contents = filter(None, map(content_of, paths))
        return _bytes(((hashlib.sha256(content).digest(), content) for content in contents), 100 if whole else 10)

    tensors = decoded("debian" if path else "python", paths, read, by_stamp=not path)
    splits = {split: tensors[split] for split in SPLITS}
    name, size = bytes(tensors["digest"].tolist()).hex(), sum(map(len, splits.values()))
    source = "documents of Debian's documentation" if path else "files of Python source"
    return splits, f"{int(tensors['files']):,} {source}, {size:,} bytes, sha256 {name}"


def _bytes(documents: Iterable[tuple[bytes, bytes]], count: int) -> dict[str, Tensor]:
    """All different documents, one after the other with a zero byte between."""
    texts = dict(documents)
    parts: dict[str, list[bytes]] = {split: [] for split in SPLITS}
    size = 0
    for digest in sorted(texts):
        parts[split_of(digest, count)].append(texts[digest])
        size += len(texts[digest])
        if size > MOST_BYTES:
            break
    joined = {split: b"\0".join(files) for split, files in parts.items()}
    name = hashlib.sha256(b"".join(joined.values())).digest()[:6]
    tensors = {split: torch.frombuffer(bytearray(content), dtype=torch.uint8) for split, content in joined.items()}
    return {**tensors, "files": torch.tensor(sum(map(len, parts.values()))), "digest": torch.tensor([*name])}


def content_of(path: Path) -> bytes:
    """A file's bytes; none of a broken link or of one that is larger than a megabyte."""
    try:
        return path.read_bytes() if path.stat().st_size <= LARGEST_FILE else b""
    except OSError:
        return b""


def split_of(digest: bytes, count: int = 100) -> str:
    """The split of a document, which its content decides: one of `count` is for validation and one for the test."""
    return {0: "valid", 1: "test"}.get(int.from_bytes(digest[-4:], "big") % count, "train")


# English


@dataclass(frozen=True)
class English:
    """Word pieces of each split, what they mean, and a note."""

    splits: dict[str, Tensor]
    tokenizer: Any
    note: str


def english(context: Context, vocabulary: int) -> English:
    """The text that the option `text` names; at smoke scale, the documentation in Python's own library."""
    path = debian(context, "english")
    if context.scale == "smoke":
        return _english("smoke", tuple(library_files()), vocabulary)
    return _english("debian", (path,), vocabulary) if path else _english("english", None, vocabulary)


@lru_cache(maxsize=2)  # a worker process makes many runs
def _english(text: str, paths: tuple[Path, ...] | None, vocabulary: int) -> English:
    import tokenizers

    files = installed(SUFFIXES) if paths is None else list(paths)

    def encoded() -> dict[str, Tensor]:
        documents = _packed(files[0]) if text == "debian" else (_paragraphs(path) for path in files)
        return _encoded(documents, vocabulary, 10 if text == "smoke" else 100)

    # Two trainings of word pieces may differ: all runs of a study read them from the cache.
    tensors = decoded(f"{text}-{vocabulary}-{tokenizers.__version__}", files, encoded, by_stamp=text != "debian")
    tokenizer = tokenizers.Tokenizer.from_str(bytes(tensors["tokenizer"].numpy()).decode())
    source = "Debian's documentation" if text == "debian" else "docstrings, comments and pages of installed packages"
    return English({split: tensors[split] for split in SPLITS}, tokenizer, f"{source}, {name(tokenizer)}")


def _paragraphs(path: Path) -> tuple[bytes, list[str]]:
    """The digest of a file's content, and what it has of prose."""
    content = content_of(path)
    text = content.decode(errors="ignore")
    if path.suffix == ".py":
        comments = (_MARK.sub("", comment) for comment in _COMMENTS.findall(text))
        text = "\n\n".join([*(match[1] for match in _DOCSTRING.findall(text)), *comments])
    return hashlib.sha256(content).digest(), prose(text)


def _packed(path: Path) -> Iterable[tuple[bytes, list[str]]]:
    with reading(path, "not a packed text", "make it by tools/pack_documentation.py"):
        documents = lzma.decompress(path.read_bytes()).decode().split("\n\n")
    return ((hashlib.sha256(text.encode()).digest(), text.split("\n")) for text in documents)


def prose(text: str) -> list[str]:
    """Paragraphs of six words or more, nine tenths of their characters letters and stops."""
    parts = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    parts = (part for part in parts if part[:1].isalpha() and part.count(" ") >= 5)
    return [part for part in parts if len(_PROSE.findall(part)) >= 0.9 * len(part)]


def unseen(parts: Iterable[str], seen: set[str]) -> list[str]:
    """Paragraphs that have not been seen before, each once; they are added to what was seen."""
    new = [part for part in dict.fromkeys(parts) if part not in seen]
    seen.update(new)
    return new


def _encoded(files: Iterable[tuple[bytes, list[str]]], vocabulary: int, count: int) -> dict[str, Tensor]:
    """The tokens of each split, an end after every document. No paragraph comes twice, as licenses do."""
    documents: dict[str, list[str]] = {split: [] for split in SPLITS}
    seen: set[str] = set()
    for digest, paragraphs in sorted(dict(files).items()):
        if new := unseen(paragraphs, seen):
            documents[split_of(digest, count)].append("\n".join(new))
    tokenizer = _trained(documents["train"], vocabulary)
    tensors = {"tokenizer": torch.tensor([*tokenizer.to_str().encode()], dtype=torch.uint8)}
    for split, texts in documents.items():
        ids = [i for encoding in tokenizer.encode_batch(texts) for i in [*encoding.ids, END]]
        tensors[split] = torch.tensor(ids, dtype=torch.int16)
    return tensors


def _trained(texts: Sequence[str], vocabulary: int) -> Any:
    """Word pieces without case, from as many documents as make the sample."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    words = Tokenizer(models.WordPiece(unk_token=SPECIAL[UNKNOWN]))
    words.normalizer = normalizers.BertNormalizer(lowercase=True)
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary, special_tokens=list(SPECIAL), limit_alphabet=100, show_progress=False
    )
    words.train_from_iterator(first_texts(texts, SAMPLE), trainer)
    return words
