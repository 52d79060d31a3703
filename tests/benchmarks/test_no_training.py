"""benchmarks/ times, counts and writes pages; whatever trains a model on data is a run of adan-bench."""

import ast
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parents[2] / "benchmarks").glob("*.py"))
#: The parts of adan_bench that read records and show them; of some scripts, more parts.
READING = ("config", "records", "reports")
MORE = {"planner.py": ("studies.memory",), "codes.py": ("cli",)}  # shapes of models; the command line
MORE["memory.py"] = ("training.optimizers",)  # the bytes of a state
MORE["paper_plan.py"] = ("studies.plan", "tables", "task", "workloads.registry")  # what would be run, and its data
MORE["field_time.py"] = ("training",)  # the harness's own loop, whose steps it times
MORE["short.py"] = ("studies.suggest",)  # the numbers of its rule
#: Scripts that go backward through a model of random tokens or numbers for a few steps, whose cost they measure.
RANDOM_DATA = ("memory.py", "others.py")


def trains(name: str, source: str) -> list[str]:
    """The lines of a script that could belong to a training loop of its own."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom | ast.Import):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            parts = [module.removeprefix("adan_bench.") for module in modules if module.startswith("adan_bench")]
            allowed = (*READING, *MORE.get(name, ()))
            lines += [f"imports adan_bench.{part}" for part in parts if not part.startswith(allowed)]
        if isinstance(node, ast.Attribute) and node.attr == "backward" and name not in RANDOM_DATA:
            lines.append(f"line {node.lineno}: backward")
    return lines


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_benchmark_has_no_training_loop(path: Path) -> None:
    assert trains(path.name, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "from adan_bench.workloads.registry import get_workload",  # a loop over its batches
        "from adan_bench.studies.comparison import Study",  # a study beside the command line
        "from adan_bench.training.trainer import Trainer",
        "loss_of(model, tokens, targets).backward()",  # a model and data of its own
    ],
)
def test_what_earlier_scripts_did_is_found(source: str) -> None:
    assert trains("quality.py", source)
