"""Pack the English of Debian's documentation packages into the file that `english-bert` reads as its text "debian".

    apt-get download $(python tools/pack_documentation.py --packages)
    for file in *.deb; do dpkg -x $file TREE; done
    python tools/pack_documentation.py TREE DATA    # writes DATA/debian.txt.xz

A document is a file, or 200 paragraphs of it: a dictionary is one file, and what it is made of decides its split.
"""

from __future__ import annotations

import argparse
import gzip
import html
import lzma
import re
import zlib
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from adan_bench.data.installed import DEBIAN, prose, unseen

PACKAGES = (
    *("apache2-doc", "cmake-doc", "debian-handbook", "debian-policy", "debian-reference-en", "developers-reference"),
    *("dict-foldoc", "dict-gcide", "dict-jargon", "erlang-doc", "exim4-doc-html", "ghc-doc", "gimp-help-en", "git-doc"),
    *("libreoffice-help-en-us", "linux-doc-6.1", "llvm-15-doc", "openjdk-17-doc", "perl-doc", "postgresql-doc-15"),
    *("python3.11-doc", "sqlite3-doc", "wordnet-base"),
)
LENGTH = 200  # paragraphs

_SILENT = re.compile(r"<(script|style|pre|code|head|nav)\b.*?</\1>", re.DOTALL | re.IGNORECASE)
_BLOCK = re.compile(r"</?(?:p|div|li|ul|ol|td|tr|th|table|h\d|dd|dt|dl|br|blockquote|section)\b[^>]*>", re.IGNORECASE)
_TAG = re.compile(r"<[^>]*>")
#: Some packages have translations in the same folders.
_ENGLISH = re.compile(r"\b(the|of|and|is|are|with|for|this|that|by|or)\b")


def pack(tree: Path, target: Path, processes: int = 8) -> str:
    """Write what a tree of unpacked packages has of English prose, no paragraph twice; how much that is."""
    paths = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    seen: set[str] = set()
    documents: list[str] = []
    with ProcessPoolExecutor(processes) as pool:
        for paragraphs in pool.map(english_of, paths, chunksize=64):
            new = unseen(paragraphs, seen)
            documents += ["\n".join(new[i : i + LENGTH]) for i in range(0, len(new), LENGTH)]
    if not documents:
        raise SystemExit(f"{tree}: no English documentation in it; unpack packages of Debian's there (dpkg -x)")
    content = "\n\n".join(documents).encode()
    target.mkdir(parents=True, exist_ok=True)
    (target / DEBIAN).write_bytes(lzma.compress(content, preset=6))
    return f"{len(content):,} bytes in {len(documents):,} documents"


def english_of(path: Path) -> list[str]:
    """The English paragraphs of a file of documentation; none where its kind is not known."""
    content, name = path.read_bytes(), path.name
    if path.suffix in (".gz", ".dz"):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error):
            return []
        name = path.stem
    text = content.decode(errors="ignore")
    if name.endswith((".html", ".xhtml")):
        text = html.unescape(_TAG.sub("", _BLOCK.sub("\n\n", _SILENT.sub(" ", text))))
    elif path.parent.name == "wordnet" and name.startswith("data."):
        text = "\n\n".join(line.partition("| ")[2] for line in text.splitlines())
    elif name.endswith(".dict"):
        text = re.sub(r"\n(?=\S)", "\n\n", text)  # what belongs to an entry is indented
    elif not name.endswith((".txt", ".rst", ".pod")):
        return []
    return [part for part in prose(text) if _ENGLISH.search(part)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path, nargs="?", help="where the packages are unpacked")
    parser.add_argument("target", type=Path, nargs="?", help="the data folder")
    parser.add_argument("--packages", action="store_true", help="print their names instead")
    arguments = parser.parse_args()
    if arguments.packages:
        print(*PACKAGES)
    elif arguments.target is None:
        parser.error("give TREE and DATA, or --packages")
    else:
        print(pack(arguments.tree, arguments.target))
