"""What a user's workload must be, and the one line that says so where it is not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from adan_bench import Scale, Task, workload
from adan_bench.errors import UsageError
from adan_bench.records.store import read_run
from adan_bench.training import optimizers
from adan_bench.workloads import registry

GOOD = """
import torch
from torch import nn
from adan_bench import Scale, Task, shuffled, workload

@workload("own", metric="error", higher_is_better=False, smoke=Scale(0.5, 4, 2))
def own(context):
    x = torch.ones(2, 3)
    def loss(model, batch):
        return model(batch).square().mean()
    def evaluate(model):
        return {"error": model(x).square().mean().item()}
    return Task(nn.Linear(3, 1), lambda position: x, loss, evaluate)
"""

DECLARED = '@workload("same", metric="m", higher_is_better=True, smoke=Scale(1, 1))'
OPTIMIZER = 'import adan_bench\n@adan_bench.optimizer("same", lr=1)\ndef same(params, lr): ...\n'


@pytest.fixture(autouse=True)
def leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_workloads", dict(registry._workloads))
    monkeypatch.setattr(optimizers, "OWN", {})


def run(bench: Any, tmp_path: Path, old: str, new: str) -> tuple[int, str]:
    assert old in GOOD
    script = tmp_path / "own.py"
    script.write_text(GOOD.replace(old, new), encoding="utf-8")
    code, out, err = bench("run", "own", "--script", script, "--out", tmp_path / "out")
    assert len(err.splitlines()) == 1
    assert "failed" not in out  # the reason is said once
    return code, err


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("lambda position: x", "torch.utils.data.DataLoader(x)", "Task: batches must be a function, got a DataLoader"),
        ("lambda position: x", "[x]", "Task: batches must be a function, got a list; write adan_bench.shuffled"),
        ("    return Task(nn", "    Task(nn", "own: its function returned None; end it with: return Task(...)"),
        ("Task(nn.Linear(3, 1)", "Task([nn.Linear(3, 1)]", "Task: model must be a torch.nn.Module, got a list"),
        (" loss, evaluate)", " 3, evaluate)", "Task: loss must be a function, got 3; write def loss(model, batch):"),
        ("loss, evaluate)", "loss, {'error': 1})", "Task: evaluate must be a function, got {'error': 1}; write def"),
        ("loss, evaluate)", "loss, evaluate, prepare=None)", "Task: prepare must be a function, got None; write def"),
        ("loss, evaluate)", "loss, evaluate, max_grad_norm=-1)", "Task: max_grad_norm must be a number above 0, or"),
        ("Scale(0.5, 4, 2)", "Scale(0.5, -10)", "Scale: steps must be a whole number from 1 on, got -10"),
        ("Scale(0.5, 4, 2)", "Scale(0.5, 4, 2.5)", "Scale: batch_size must be a whole number from 1 on, got 2.5"),
        ("Scale(0.5, 4, 2)", "Scale(0.5, 4, 2, -1)", "Scale: eval_every must be a whole number from 0 on, got -1"),
        ("Scale(0.5, 4, 2)", "Scale('0.5', 4)", "Scale: target must be a value of the metric, got '0.5'"),
        ("Scale(0.5, 4, 2)", "Scale(float('nan'), 4)", "Scale: target must be a value of the metric, got nan; for"),
        ("Scale(0.5, 4, 2)", "Scale(0.5, '4')", "Scale: steps must be a whole number from 1 on, got '4'"),
        ("Scale(0.5, 4, 2)", "Scale(0.5, 4, needs='a.csv')", "Scale: needs must be a tuple of names, got 'a.csv'"),
        ('"own"', '"../own"', "@workload: name must be a word of letters, digits and _.+-, got '../own'"),
        ("\n@workload", f"\n{DECLARED}\n{DECLARED}\n@workload", "it has two @workload('same'); give one of them"),
        ("\n@workload", f"\n{OPTIMIZER}{OPTIMIZER}\n@workload", "it has two @optimizer('same'); give one of them"),
        ("better=False", 'better="no"', "@workload('own'): higher_is_better must be True or False, got 'no'"),
        ('metric="error"', "metric=3", "@workload('own'): metric must be the name of a number that evaluate returns"),
        (", smoke", ", tune_metric=3, smoke", "@workload('own'): tune_metric must be the name of a number that"),
        (
            ", smoke",
            ", tune_metric='error', tune_higher_is_better='no', smoke",
            "@workload('own'): tune_higher_is_better must be True or False, got 'no'",
        ),
        (", smoke", ", options='text', smoke", "@workload('own'): options must be a tuple of names, got 'text'"),
        (", smoke", ", summary=3, smoke", "@workload('own'): summary must be a line of text, got 3"),
        ("lambda position: x", "shuffled([x, x[:1]], 1, 0)", "shuffled: tensors must be of one length, got 2 and 1"),
        ("lambda position: x", "shuffled(x, 1, 0)", "shuffled: tensors must be a list of tensors, got a Tensor; write"),
        ("lambda position: x", "shuffled([[1, 2]], 1, 0)", "shuffled: tensors must be a list of tensors, got [[1, 2]]"),
        ("lambda position: x", "shuffled([x[:0]], 1, 0)", "batch_size=1 is more than the 0 examples; look at"),
        ("def own(context)", "def own()", "@workload('own'): its function must take one argument, the context"),
        ("lambda position: x", "shuffled([], 1, 0)", "shuffled: tensors must be a list of tensors, got []; write "),
        ("Scale(0.5, 4, 2)", "4", "@workload('own'): smoke must be a Scale, got 4; for example Scale(target=0.9"),
    ],
)
def test_seen_before_the_run_begins(bench: Any, tmp_path: Path, old: str, new: str, words: str) -> None:
    code, err = run(bench, tmp_path, old, new)
    assert code == 2
    assert words in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('{"error": model(x).square().mean().item()}', "0.5", "own: evaluate() returned 0.5; return {'error': value}"),
        ("model(x).square().mean().item()}", "model(x)}", "own: evaluate() returned a value that is not one number ("),
        ('{"error": model', '{"eror": model', "own: evaluate() returned eror, not the declared metric 'error'"),
        ('{"error": model', '{"step": 1, "error": model', "own: evaluate() returned 'step', a key of every record"),
        ("batch).square().mean()", "batch)", "own: loss() returned a tensor of shape (2, 1); return the mean as a"),
        ("batch).square().mean()", "batch).mean().item()", "own: loss() returned "),
        ("batch).square().mean()", "batch).mean().detach()", "own: loss() returned a tensor without a gradient"),
    ],
)
def test_seen_in_the_run(bench: Any, tmp_path: Path, old: str, new: str, words: str) -> None:
    """It has failed, and the message is not about a line of the harness."""
    code, err = run(bench, tmp_path, old, new)
    assert code == 1
    assert words in err
    assert "trainer.py" not in err
    assert read_run(tmp_path / "out").status == "failed"


def test_it_may_be_in_a_module_beside_the_script(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "beside_own.py").write_text(GOOD.replace('"own"', '"beside"'), encoding="utf-8")
    (tmp_path / "own.py").write_text("import beside_own\n", encoding="utf-8")
    bench.ran("run", "beside", "--script", tmp_path / "own.py", "--out", tmp_path / "out")


def test_needs_may_be_a_list() -> None:
    names: Any = ["a.csv", "b.csv"]
    assert Scale(0.5, 4, needs=names).needs == ("a.csv", "b.csv")


def test_an_optional_function_may_be_absent() -> None:
    from torch import nn

    batches: Any = print
    assert Task(nn.Linear(1, 1), batches, batches, batches, groups=None, rate=None).rate is None
    with pytest.raises(UsageError, match="Task: rate must be a function, got 2; write def rate"):
        Task(nn.Linear(1, 1), batches, batches, batches, rate=2)


def test_a_direction_needs_a_metric() -> None:
    with pytest.raises(UsageError, match="tune_higher_is_better without a tune_metric; give both or neither"):
        workload("x", metric="m", higher_is_better=True, smoke=Scale(1.0, 4), tune_higher_is_better=False)
