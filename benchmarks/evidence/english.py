"""English text, by default of the packages installed here, and sentences of GLUE, as tokens: what BERT reads.

Docstrings and comments are found by regular expressions: 32 MB/s of source on a Neoverse-N1 core, where `ast` reads 2.
They find 9% more than the docstrings of `ast`: any string of three quotes that begins a line.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY = 8_000
SPECIAL = ("[PAD]", "[START]", "[END]", "[MASK]", "[UNK]")
PAD, START, END, MASK, UNKNOWN = range(len(SPECIAL))
SENTENCE = 64  # tokens of a row of GLUE
SAMPLE = 12_000_000  # characters from which the vocabulary is learned
LARGEST_FILE = 1_000_000
SUFFIXES = (".py", ".md", ".rst", ".txt")
#: Tasks of GLUE by their name in adan_bench, and their files.
GLUE = {"cola": ("train", "dev"), "sst2": ("train", "dev", "test")}

_DOCSTRING = re.compile(r'^[ \t]*[rRuU]?("""|\'\'\')(.*?)\1', re.MULTILINE | re.DOTALL)
_COMMENTS = re.compile(r"(?:^[ \t]*#[^\n]*\n)+", re.MULTILINE)
_MARK = re.compile(r"^[ \t]*#[#:!]*", re.MULTILINE)
_PROSE = re.compile(r"[A-Za-z ,.;:'()-]")


def gather(folders: Iterable[Path], processes: int) -> dict[bytes, list[str]]:
    """The paragraphs of each file that has some, by the digest of its content."""
    walks = (walk for folder in folders for walk in os.walk(folder))
    paths = sorted({Path(base, name) for base, _, names in walks for name in names if name.endswith(SUFFIXES)})
    with ProcessPoolExecutor(processes) as pool:
        return {digest: paragraphs for digest, paragraphs in pool.map(_paragraphs, paths, chunksize=32) if paragraphs}


def prepare(name: str, files: dict[bytes, list[str]], data: Path, cache: Path, processes: int) -> str:
    """Write a text's tokens in three splits, its vocabulary, and where the data folder has them, GLUE's sentences.

    name: of the text; what is written begins with it. files: the paragraphs of each document by its digest.
    """
    documents, size = _new(files)
    words = _vocabulary(documents["train"]).to_str()
    with ProcessPoolExecutor(processes) as pool:
        for split, texts in documents.items():
            parts = [texts[i : i + 500] for i in range(0, len(texts), 500)]
            rows = list(pool.map(partial(_joined, words), parts))
            np.save(cache / f"{name}-{split}.npy", np.concatenate(rows or [np.zeros(0, np.int16)]))
    (cache / f"{name}-vocabulary.json").write_text(words, encoding="utf-8")
    counts = [f"{task} {part}" for task in GLUE if (part := _sentences(name, data, cache, task, words))]
    digest = hashlib.sha256("\0".join(text for texts in documents.values() for text in texts).encode()).hexdigest()[:12]
    return f"{size:,} bytes, {len(files):,} documents, sha256 {digest}; {'; '.join(counts) or 'no GLUE'}"


def _paragraphs(path: Path) -> tuple[bytes, list[str]]:
    """The digest of a file's content, and what it has of prose."""
    try:
        content = path.read_bytes()
    except OSError:  # a broken link
        content = b""
    text = content.decode(errors="ignore") if len(content) <= LARGEST_FILE else ""
    if path.suffix == ".py":
        comments = (_MARK.sub("", comment) for comment in _COMMENTS.findall(text))
        text = "\n\n".join([*(match[1] for match in _DOCSTRING.findall(text)), *comments])
    return hashlib.sha256(content).digest(), prose(text)


def prose(text: str) -> list[str]:
    """Paragraphs of six words or more, nine tenths of their characters letters and stops."""
    parts = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    return [part for part in parts if part[:1].isalpha() and _is_prose(part)]


def _is_prose(part: str) -> bool:
    return part.count(" ") >= 5 and len(_PROSE.findall(part)) >= 0.9 * len(part)


def unseen(parts: Iterable[str], seen: set[str]) -> list[str]:
    """Those that have not been seen before, each once; from now on they have."""
    new = [part for part in dict.fromkeys(parts) if part not in seen]
    seen.update(new)
    return new


def _new(files: dict[bytes, list[str]]) -> tuple[dict[str, list[str]], int]:
    """Documents by split, which a file's content decides, and their bytes. No paragraph comes twice, as licenses do."""
    documents: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    seen: set[str] = set()
    size = 0
    for digest in sorted(files):
        if new := unseen(files[digest], seen):
            split = {0: "valid", 1: "test"}.get(int.from_bytes(digest[-4:], "big") % 100, "train")
            documents[split].append("\n".join(new))
            size += len(documents[split][-1].encode())
    return documents, size


def _vocabulary(texts: Sequence[str]) -> Any:
    """Word pieces without case, from as many documents as make the sample."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    words = Tokenizer(models.WordPiece(unk_token=SPECIAL[UNKNOWN]))
    words.normalizer = normalizers.BertNormalizer(lowercase=True)
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=VOCABULARY, special_tokens=list(SPECIAL), limit_alphabet=100, show_progress=False
    )
    sample, size = [], 0
    for text in texts:
        sample.append(text)
        size += len(text)
        if size > SAMPLE:
            break
    words.train_from_iterator(sample, trainer)
    return words


def _joined(words: str, texts: Sequence[str]) -> Any:
    """The tokens of documents, one after the other with an end between."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(words)
    return np.concatenate([np.array([*encoded.ids, END], np.int16) for encoded in tokenizer.encode_batch(list(texts))])


def _sentences(name: str, data: Path, cache: Path, task: str, words: str) -> str:
    """Rows of tokens and labels for each split of a task of GLUE; how many there are."""
    from tokenizers import Tokenizer

    from adan_bench.workloads.glue import KINDS, read

    kind = next(kind for kind in KINDS if kind.name == task)
    if not (data / "glue" / kind.folder).exists():
        return ""
    tokenizer = Tokenizer.from_str(words)
    counts = []
    for split in GLUE[task]:
        examples = read(data / "glue" / kind.folder / f"{split}.tsv", kind)
        rows = np.full((len(examples), SENTENCE), PAD, np.int16)
        for row, encoded in zip(rows, tokenizer.encode_batch([text for text, _, _ in examples]), strict=True):
            tokens = [START, *encoded.ids[: SENTENCE - 2], END]
            row[: len(tokens)] = tokens
        np.save(cache / f"{name}-{task}-{split}-tokens.npy", rows)
        np.save(cache / f"{name}-{task}-{split}-labels.npy", np.array([label for _, _, label in examples], np.int64))
        counts.append(f"{len(rows):,}")
    return " + ".join(counts)
