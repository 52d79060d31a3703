"""Imports point downward only: adan knows torch and nothing else, the harness knows adan, and never the reverse."""

import ast
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"

#: Upper layers first; a file may import from its own line's files and from lines below it.
LAYERS = [
    ["adan.__init__"],
    ["adan.gradient_release", "adan.resizing"],
    ["adan.memory_plan", "adan.optimizer"],
    ["adan.checkpoints"],
    ["adan.plan", "adan.states"],
    ["adan.guard"],
    [
        "adan.engines.loop",
        "adan.engines.foreach",
        "adan.engines.cpu",
        "adan.engines.cuda",
        "adan.options",
        "adan.engines.quantized",
    ],
    ["adan.engines.kernels", "adan.grad_norm"],
    ["adan.engines.codes", "adan.engines.slots"],
    ["adan.lowbit", "adan.restart"],
    ["adan.engines.__init__", "adan.sharding"],
    ["adan.columns"],
    ["adan.scalars"],
    ["adan.parameter_groups", "adan.suggestion"],
    ["adan.hyperparameters"],
]


def files(package):
    return sorted((SRC / package).rglob("*.py"))


def imports(path):
    """Every module that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", files("adan"), ids=str)
def test_adan_imports_torch_and_nothing_else(path):
    roots = {name.split(".")[0] for name in imports(path)}
    assert roots <= {"adan", "torch", "triton", *sys.stdlib_module_names}


def test_imports_of_adan_point_downward():
    level = {name: i for i, names in enumerate(LAYERS) for name in names}
    for path in files("adan"):
        module = ".".join(path.relative_to(SRC).with_suffix("").parts)
        assert module in level, f"say in LAYERS where {module} stands"
        for name in imports(path):
            assert level.get(name, 99) >= level[module] or name == module, f"{module} imports {name}, which is above it"


def test_a_file_has_at_most_500_lines():
    folders = (SRC.parent / name for name in ("src", "benchmarks", "examples", "tests", "tools"))
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for f in folders for path in f.rglob("*.py")}
    assert len(lengths) > 300
    assert not [path.name for path, length in lengths.items() if length > 500]
