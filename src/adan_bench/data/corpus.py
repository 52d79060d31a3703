"""Folders of documents as one run of bytes, of which any part is read without the rest.

Text and code files are a document each. Parquet files (The Stack) hold one per row, JSON lines (RedPajama) one per
line; their row groups and compressed files are decoded as a whole, and the last ones are kept.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from adan_bench.errors import UsageError, listing, reading

PLAIN = (".txt", ".py")
LINES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".json.gz", ".json.zst")
SUFFIXES = (*PLAIN, ".parquet", *LINES)
COLUMNS = ("content", "text", "raw_content")  # The Stack's name, the usual one and RedPajama-v2's
MERGES = "merges.txt"  # of a tokenizer, and no text
END_OF_DOCUMENT = b"\xff"  # which no text in UTF-8 has
MEMORY = 1 << 29  # bytes on disk of the parts that are kept decoded


class FilePart(NamedTuple):
    """A file, or a part of one that is decoded as a whole (its number is `group`), and its size on disk."""

    path: Path
    group: int | None
    size: int


class Corpus:
    """The documents of a folder, each with a mark after it.

    Places are counted in bytes on disk, which for what is decoded differ from those of its text: a part's places are
    shares of its text.
    """

    def __init__(self, folder: Path) -> None:
        files = sorted(path for path in folder.rglob("*") if path.name.endswith(SUFFIXES) and path.name != MERGES)
        self.folder = folder
        self.parts = [part for path in files for part in _parts(path) if part.size > 0]
        if not self.parts:
            raise UsageError(f"{folder}: no text in {', '.join(SUFFIXES)} files; it holds: {listing(folder)}")
        self.ends = list(accumulate(part.size for part in self.parts))
        self.size = self.ends[-1]
        packed = [part.size for part in self.parts if part.group is not None]
        self.part_size = sum(packed) // max(1, len(packed))  # of what is decoded as a whole; 0 where nothing is
        self.kept = min(1024, max(2, MEMORY // max(1, self.part_size)))  # parts among which rows are mixed
        self._decoded = lru_cache(maxsize=2 * self.kept)(_decoded)

    def documents(self, start: int, stop: int) -> list[str]:
        """The text from `start` to `stop`, in pieces: every one but the last ends with its document."""
        content, index = b"", bisect_right(self.ends, start)
        while start < min(stop, self.size):
            part, end = self.parts[index], self.ends[index]
            begin = end - part.size
            content += self._content(part, start - begin, min(stop, end) - begin)
            start, index = end, index + 1
        # a cut may halve a character
        return [piece.decode("utf-8", errors="ignore") for piece in content.split(END_OF_DOCUMENT)]

    def _content(self, part: FilePart, start: int, stop: int) -> bytes:
        if part.group is not None:
            whole = self._decoded(part.path, part.group)
            return whole[start * len(whole) // part.size : stop * len(whole) // part.size]
        with part.path.open("rb") as file:
            file.seek(start)
            content = file.read(min(stop, part.size - 1) - start).replace(END_OF_DOCUMENT, b"\x80")
        return content + END_OF_DOCUMENT * (stop == part.size)


def _parts(path: Path) -> Iterator[FilePart]:
    if path.name.endswith(PLAIN):
        yield FilePart(path, None, path.stat().st_size + 1)  # with its mark
    elif path.name.endswith(LINES):
        yield FilePart(path, 0, path.stat().st_size)
    else:
        metadata = _parquet(path).metadata
        columns = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
        column = columns.index(_column(path, columns))
        for group in range(metadata.num_row_groups):
            yield FilePart(path, group, metadata.row_group(group).column(column).total_uncompressed_size)


def _decoded(path: Path, group: int) -> bytes:
    """The documents of a row group or of a file of JSON lines, a mark after each."""
    documents = _rows(path, group) if path.suffix == ".parquet" else _lines(path)
    return b"".join(text.encode("utf-8", errors="ignore") + END_OF_DOCUMENT for text in documents if text)


def _rows(path: Path, group: int) -> list[str]:
    file = _parquet(path)
    column = _column(path, file.schema_arrow.names)
    with reading(path, f"row group {group} is damaged"):
        rows: list[str] = file.read_row_group(group, columns=[column])[column].to_pylist()
        return rows


def _parquet(path: Path) -> Any:
    import pyarrow.parquet as parquet

    with reading(path, "not a parquet file"):
        return parquet.ParquetFile(path)


def _lines(path: Path) -> list[str]:
    import pyarrow as pa

    how = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix)
    with reading(path, "not JSON lines with one document in each"), pa.input_stream(str(path), compression=how) as file:
        rows = [json.loads(line) for line in file.read().split(b"\n") if line.strip()]
        return [row[_column(path, list(row))] for row in rows]


def _column(path: Path, columns: list[str]) -> str:
    """The name of the column that has the documents."""
    column = next((name for name in COLUMNS if name in columns), None)
    if column is None:
        raise UsageError(f"{path}: no column {' or '.join(COLUMNS)}; it has: {', '.join(columns[:12])}")
    return column
