"""Answers to HumanEval: what counts as right, what is stopped, and how pass@k is estimated."""

from __future__ import annotations

import gzip
import json
import time
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.learning import settings

from adan_bench.cli import app as cli
from adan_bench.config import RunConfig
from adan_bench.errors import UsageError
from adan_bench.records.store import RunStore
from adan_bench.studies import paper
from adan_bench.studies.humaneval import FILE, assemble, estimate, pass_at_k, passes, read_problems, writer
from adan_bench.tables import Selection, tables
from adan_bench.training.trainer import run
from adan_bench.workloads import registry
from adan_bench.workloads.registry import get_workload

PROBLEM = {
    "task_id": "Test/0",
    "prompt": 'def double(x):\n    """Twice x."""\n',
    "entry_point": "double",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(-1) == -2\n",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "humaneval").mkdir()
    with gzip.open(folder / FILE, "wt", encoding="utf-8") as file:
        file.write(json.dumps(PROBLEM) + "\n")
    return folder


@pytest.mark.parametrize(
    ("completion", "right"),
    [
        ("    return 2 * x\n", True),
        ("    return x + x\n\ndef other(:\n", True),  # what follows the function is cut off
        ("    return x * x\n", False),
        ("    return 2 *\n", False),
        ("    import sys; sys.exit(0)\n", False),
        ("    import os; os._exit(0)\n", False),
        ("    print('x' * 10**6); return 2 * x\n", True),
    ],
)
def test_what_counts_as_right(completion: str, right: bool) -> None:
    assert passes(assemble(PROBLEM, completion)) is right


@pytest.mark.parametrize(
    "completion", ["    while True: pass\n", "    import time; time.sleep(60)\n", "    input(); return 2 * x\n"]
)
def test_an_endless_answer_is_stopped(completion: str) -> None:
    started = time.monotonic()
    assert not passes(assemble(PROBLEM, completion), seconds=1.0)
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("size", ["bytearray(10**9)", "[bytearray(10**6) for _ in range(1000)]"])
def test_memory_is_limited(size: str) -> None:
    program = assemble(PROBLEM, f"    y = {size}; return 2 * x\n")
    assert not passes(program, memory=200 << 20)
    assert passes(program.replace("10**9", "10").replace("10**6", "10"), memory=200 << 20)


@pytest.mark.parametrize(
    "act",
    [
        "import socket; socket.socket()",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.fork()",
        "import os; os.system('true')",
        "open('OUTSIDE', 'w')",
        "import os; os.remove('OUTSIDE')",
        "import shutil; shutil.rmtree('OUTSIDE')",
    ],
)
def test_what_an_answer_does_not_need_is_refused(act: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("mine", encoding="utf-8")
    assert not passes(act.replace("OUTSIDE", str(kept)) + "\n")
    assert kept.read_text(encoding="utf-8") == "mine"
    assert passes("open('inside', 'w').write('x')\n")


def test_estimate_is_the_share_of_lucky_draws() -> None:
    answers = [True, True, False, False, False]
    for k in (1, 2, 4):
        draws = list(combinations(answers, k))
        assert estimate(5, 2, k) == pytest.approx(sum(any(draw) for draw in draws) / len(draws))
    assert estimate(5, 0, 3) == 0.0
    assert estimate(5, 5, 1) == 1.0


def test_a_tiny_model_solves_nothing(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    run(settings("gpt2-code", steps=1, keep_weights=True), RunStore(folder))
    seen = []
    result = pass_at_k(folder, data, samples=3, ks=(1, 3), tokens=8, on_problem=lambda *event: seen.append(event))
    assert (result["pass@1"], result["pass@3"], result["problems"]) == (0.0, 0.0, 1)
    assert seen == [("Test/0", 0, 3)]
    assert json.loads((folder / "humaneval.json").read_text(encoding="utf-8"))["samples"] == 3
    with pytest.raises(UsageError, match=r"--k 1,10: at most --samples 3; raise --samples or lower --k"):
        pass_at_k(folder, data, samples=3)
    with pytest.raises(UsageError, match=r"no data folder"):
        pass_at_k(folder, None)
    with pytest.raises(UsageError, match=r"no run there"):
        pass_at_k(tmp_path, data)
    arguments = ["humaneval", str(folder), "--data", str(data), "--samples", "1", "--k", "1", "--tokens", "4"]
    with pytest.raises(UsageError, match="add --yes-run-generated-code"):
        cli.app(arguments, standalone_mode=False)
    cli.app([*arguments, "--yes-run-generated-code"], standalone_mode=False)
    assert "pass@1 0.0000 (1 problems)" in capsys.readouterr().out


def test_an_answer_ends_with_its_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the token after a document is an ordinary word of the tokenizer, as GPT-2's <|endoftext|> is."""
    from transformers import GPT2LMHeadModel

    run(settings("gpt2-code", steps=1, keep_weights=True), RunStore(tmp_path / "run"))
    task: Any = get_workload("gpt2-code").task()
    answer, more = (task.tokenizer.encode(text).ids for text in ("return 2", "more"))

    def generate(self: Any, rows: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.cat([rows, torch.tensor([[*answer, task.end, *more]] * len(rows))], 1)

    monkeypatch.setattr(GPT2LMHeadModel, "generate", generate)
    write = writer(tmp_path / "run", None, 0.8, 8, "cpu", 0)
    assert list(write("def f():", 2)) == ["return 2"] * 2


def test_damaged_problems_are_named(tmp_path: Path) -> None:
    file = tmp_path / "HumanEval.jsonl.gz"
    file.write_bytes(b"no gzip")
    with pytest.raises(UsageError, match=r"HumanEval.jsonl.gz: not HumanEval's gzipped JSON lines"):
        list(read_problems(file))
    file.write_bytes(gzip.compress(b'{"prompt": ""}\n'))
    with pytest.raises(UsageError, match=r"every line must have task_id, prompt, entry_point, test"):
        list(read_problems(file))


@pytest.mark.usefixtures("inline_pool")
def test_reproduce_asks_humaneval(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are kept; pass@1, 10 and 100 follow where running code was allowed, and once on disk they stay."""
    table = replace(tables()["gpt2"], runs={"smoke": Selection(rows=("Adan, 150k steps",))})
    monkeypatch.setitem(paper.HUMANEVAL, "smoke", {"samples": 100, "problems": 1, "tokens": 4})
    chosen, found = RunConfig(threads=1, data=data), get_workload("gpt2-code")
    short = replace(found.scales["smoke"], steps=2, eval_every=2)
    monkeypatch.setitem(registry._workloads, found.name, replace(found, scales={"smoke": short}))
    first = paper.reproduce([table], chosen, tmp_path)["tables"][0]["cells"]
    assert [cell["status"] for cell in first] == ["absent"] * 3 + ["done"]
    assert all("add --yes-run-generated-code" in cell["why"] for cell in first[:3])
    asked = paper.reproduce([table], chosen, tmp_path, resume=True, run_code=True)["tables"][0]["cells"]
    assert [cell["status"] for cell in asked] == ["done"] * 4
    (file,) = tmp_path.rglob("humaneval.json")
    assert [cell["values"] for cell in asked[:3]] == [
        [json.loads(file.read_text(encoding="utf-8"))[f"pass@{k}"]] for k in (1, 10, 100)
    ]
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), "pass@10": 0.25}), encoding="utf-8")
    again = paper.reproduce([table], chosen, tmp_path, resume=True)["tables"][0]["cells"]
    assert again[1]["values"] == [0.25]


@pytest.mark.parametrize("changed", [{}, {"temperature": 0.01}, {"tokens": 999}, {"seed": 7}, {"first": 3}])
def test_an_answer_to_another_question_is_not_taken(changed: dict[str, Any], tmp_path: Path) -> None:
    """What a user's own `adan-bench humaneval` left beside the run counts only if it asked as the table does."""
    (tmp_path / "weights.pt").touch()
    asked = {"samples": 100, "first": 2, "temperature": 0.8, "tokens": 16, "seed": 0, **changed}
    (tmp_path / "humaneval.json").write_text(json.dumps({"pass@100": 1.0, **asked}), encoding="utf-8")
    cell = SimpleNamespace(column=SimpleNamespace(evaluation="humaneval"), runs=[tmp_path])
    plan: Any = SimpleNamespace(cells=[cell])
    (score,) = paper.humanevals(plan, RunConfig(), run_code=False).values()
    assert ("absent" in score) == bool(changed)
