"""Imports of the harness point downward only, and no file grows much over 500 lines."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).parents[2] / "src"

#: Upper layers first; a module may import from lower lines only. Workloads stand together, below what runs them.
LAYERS = [
    ["cli"],
    ["cli_tables", "cli_theory"],
    ["cli_shared", "reproduce"],
    ["theory"],
    ["reproduction_report", "console", "worker"],
    ["study", "speed", "tables"],
    ["jobs", "report"],
    ["train", "figures", "conclusions"],
    ["stats", "optimizers", "__init__"],
    ["palette", "environment", "schedule", "workloads"],
    ["humaneval"],
    ["registry", "digits", "models", "classification", "coco", "language"],
    ["images", "augment", "words", "confined"],
    ["store", "data", "parallel"],
    ["spec"],
]


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_imports_point_downward() -> None:
    level = {name: i for i, names in enumerate(LAYERS) for name in names}
    for path in sorted((SRC / "adan_bench").rglob("*.py")):
        module = path.relative_to(SRC / "adan_bench").with_suffix("").parts[0]
        assert module in level, f"say in LAYERS where {module} stands"
        for name in imports(path):
            parts = name.split(".")
            # The registry asks the package of workloads which files it has; that is how none is named.
            if parts[0] == "adan_bench" and len(parts) > 1 and parts[1] in level and module != "registry":
                below = level[parts[1]] > level[module] or parts[1] == module
                assert below, f"{path.name} imports {name}, which is not below it"


def test_files_stay_small() -> None:
    for path in (SRC / "adan_bench").rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 550, path.name
