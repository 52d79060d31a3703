"""Imports point downward only and in no circle: adan knows torch alone, the harness knows adan, never the reverse."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"

#: Files and folders, upper layers first; each imports from itself and from lines below its own.
LAYERS = [
    ["adan_bench.__main__"],
    ["adan_bench.cli", "adan_bench.__init__"],
    ["adan_bench.studies", "adan_bench.reports"],
    ["adan_bench.theory"],
    ["adan_bench.training"],
    ["adan_bench.workloads"],
    ["adan_bench.records", "adan_bench.tables", "adan_bench.data"],
    ["adan_bench.config"],
    ["adan_bench.task"],
    ["adan_bench.errors", "adan_bench.locking"],
    ["adan.__init__"],
    ["adan.gradient_release", "adan.resizing"],
    ["adan.memory_plan"],
    ["adan.optimizer"],
    ["adan.checkpoints"],
    ["adan.plan", "adan.states"],
    ["adan.guard"],
    ["adan.engines.foreach", "adan.engines.cpu", "adan.engines.cuda", "adan.options", "adan.engines.quantized"],
    ["adan.engines.loop"],
    ["adan.engines.kernels", "adan.grad_norm"],
    ["adan.engines.codes", "adan.engines.slots"],
    ["adan.lowbit", "adan.restart"],
    ["adan.engines.__init__", "adan.sharding"],
    ["adan.columns"],
    ["adan.scalars"],
    ["adan.parameter_groups", "adan.suggestion"],
    ["adan.hyperparameters"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


@cache
def modules() -> dict[str, Path]:
    """Every module of both packages by its dotted name."""
    files = sorted(path for package in ("adan", "adan_bench") for path in (SRC / package).rglob("*.py"))
    return {".".join(path.relative_to(SRC).with_suffix("").parts): path for path in files}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path, to_run: bool = False) -> Iterator[str]:
    """What a file imports, anywhere in it; where it is to run, without what is for type checkers alone."""
    tree = parsed(path)
    checking = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    unused = {id(inner) for node in checking for part in node.body for inner in ast.walk(part)} if to_run else set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and id(node) not in unused:
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and id(node) not in unused:
            assert node.level == 0, f"{path} uses a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def named(path: Path) -> Iterator[str]:
    """Modules that the strings of a file name: subprocesses, resources."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"^adan_bench(?:\.\w+)+", node.value)


def within(name: str, known: dict[str, object]) -> str | None:
    """The longest of the known names that a dotted name is or lies in."""
    while name:
        for candidate in (name, f"{name}.__init__"):
            if candidate in known:
                return candidate
        name = name.rpartition(".")[0]
    return None


def test_adan_imports_torch_and_nothing_else() -> None:
    allowed = {"adan", "torch", "triton", *sys.stdlib_module_names}
    own = [name for name in modules() if name.startswith("adan.")]
    assert len(own) > 20
    found = {name: {x.split(".")[0] for x in imports(modules()[name])} - allowed for name in own}
    assert not {name: others for name, others in found.items() if others}


def test_imports_point_downward() -> None:
    offenders = []
    for module, path in modules().items():
        own = within(module, LEVEL)
        if own is None or not f"{module}.".startswith(f"{own}."):
            offenders.append(f"say in LAYERS where {module} stands")
            continue
        for name in (*imports(path), *named(path)):
            other = within(name, LEVEL)
            if other not in (None, own) and within(name, modules()) != module and LEVEL[other] <= LEVEL[own]:
                offenders.append(f"{module} imports {name}, which is not below it")
    assert not offenders


def test_no_circles() -> None:
    graph = {
        module: {within(name, modules()) for name in imports(path, to_run=True)} - {module, None}
        for module, path in modules().items()
    }
    TopologicalSorter(graph).prepare()  # or the error names the modules of a circle


def test_a_file_has_at_most_500_lines():
    folders = (SRC.parent / name for name in ("src", "benchmarks", "examples", "tests", "tools"))
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for f in folders for path in f.rglob("*.py")}
    assert len(lengths) > 300
    assert not [path.name for path, length in lengths.items() if length > 500]


#: In one process each, as torch would stay imported.
LIBRARY = """
import adan_bench, adan_bench.reports.comparison, adan_bench.reports.paper
from adan_bench.workloads.registry import workloads
assert len(workloads()) > 30
"""
COMMANDS = """
from adan_bench.cli import main
for words in ("--help", "run --help", "list", "list optimizers", "list tables"):
    sys.argv = ["adan-bench", *words.split()]
    try:
        main()
    except SystemExit as end:
        assert not end.code, words
    print("imported by", words, heavy & {*sys.modules})
"""


REPORT = """
import tempfile
from adan_bench.cli import main
heavy -= {"numpy", "matplotlib"}
with tempfile.TemporaryDirectory() as folder:
    sys.argv = ["adan-bench", "report", "results/adan_bench/demo/runs.jsonl", "--out", folder]
    try:
        main()
    except SystemExit as end:
        assert not end.code
"""


@pytest.mark.parametrize("code", [LIBRARY, COMMANDS, REPORT], ids=["library", "commands", "report"])
def test_what_only_looks_imports_no_torch(code: str) -> None:
    """Importing torch takes seconds; `list`, `--help` and reports answer without it."""
    begin = "import sys\nheavy = {'torch', 'transformers', 'adan', 'numpy', 'matplotlib'}\n"
    words = [sys.executable, "-c", f"{begin}{code}\nassert not heavy & {{*sys.modules}}"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=SRC.parent)
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr}"
