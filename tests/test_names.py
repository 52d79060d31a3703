"""One class name has one meaning in the whole repository."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "benchmarks", "tests/support")


def classes(tree: ast.Module) -> Iterator[str]:
    """The classes of a file, without private ones inside of functions and classes."""
    top = set(tree.body)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and (node in top or not node.name.startswith("_")):
            yield node.name


def test_a_class_name_is_given_once() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))):
        for name in classes(ast.parse(path.read_text(encoding="utf-8"))):
            places[name].append(str(path.relative_to(ROOT)))
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_what_counts_as_a_name() -> None:
    source = "class A:\n  class B: ...\n  class _C: ...\nclass _D: ...\ndef f():\n  class E: ...\n  class _F: ...\n"
    assert sorted(classes(ast.parse(source))) == ["A", "B", "E", "_D"]
