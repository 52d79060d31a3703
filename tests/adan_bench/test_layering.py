"""Imports of the harness point downward only and in no circle, and no file grows much over 500 lines."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "adan_bench"

#: Upper rooms first; a file imports from its own room and from lines below it.
ROOMS = [
    ["__main__"],
    ["cli", "__init__"],
    ["studies", "reports"],
    ["theory"],
    ["training"],
    ["workloads"],
    ["records", "tables", "data"],
    ["config"],
    ["task"],
    ["errors", "locking"],
]


@cache
def modules() -> dict[str, Path]:
    """Every module by its dotted name below the package; a package goes by its own name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return found


def uses(path: Path) -> Iterator[str]:
    """What a file imports, anywhere in it, and modules that its strings name: subprocesses, resources."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"^adan_bench(?:\.\w+)+", node.value)


def imports(path: Path) -> Iterator[str]:
    """What a file imports, in its functions too; not what is for type checkers alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    checking = (node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
    unused = {id(inner) for node in checking for part in node.body for inner in ast.walk(part)}
    for node in ast.walk(tree):
        if id(node) in unused:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_of(name: str) -> str | None:
    """The module of the package that a dotted name lies in."""
    root, _, rest = name.partition(".")
    if root != "adan_bench":
        return None
    while rest and rest not in modules():
        rest = rest.rpartition(".")[0]
    return rest or "__init__"


@pytest.mark.parametrize("module", modules())
def test_imports_point_downward(module: str) -> None:
    level = {room: i for i, rooms in enumerate(ROOMS) for room in rooms}
    room = module.partition(".")[0]
    assert room in level, f"say in ROOMS where {room} stands"
    for name in uses(modules()[module]):
        used = module_of(name)
        if used is not None and used != module:
            other = used.partition(".")[0]
            assert other == room or level[other] > level[room], f"{module} imports {name}, which is not below it"


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules of which each imports the next, and the last the first; empty where there are none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def test_no_circles() -> None:
    graph = {
        module: {used for name in imports(path) if (used := module_of(name)) not in (None, module)}
        for module, path in modules().items()
    }
    assert not circle(graph), " → ".join(circle(graph))


def test_circles_are_found() -> None:
    assert not circle({"a": {"b", "c"}, "b": {"c"}, "c": set()})
    assert sorted(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})[1:]) == ["a", "b", "c"]


def test_files_stay_small() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 550, path.name


@pytest.mark.parametrize(
    "code",
    [
        "import adan_bench",
        "import adan_bench.reports.comparison, adan_bench.reports.paper",
        "from adan_bench.workloads.registry import workloads; assert len(workloads()) > 30",
        *(
            f"import sys; from adan_bench.cli import main; sys.argv = ['adan-bench', *{arguments.split()}]; main()"
            for arguments in ("--help", "run --help", "list", "list optimizers", "list tables")
        ),
    ],
)
def test_what_only_looks_imports_no_torch(code: str) -> None:
    """Importing torch takes seconds; `list`, `--help` and reports answer without it."""
    heavy = "{'torch', 'transformers', 'adan', 'numpy', 'matplotlib'}"
    code = f"import atexit, sys\natexit.register(lambda: print('heavy:', {heavy} & {{*sys.modules}}))\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "heavy: set()"
