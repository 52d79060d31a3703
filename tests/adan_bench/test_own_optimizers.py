"""Optimizers of a user's script beside the bundled ones: every command, worker processes, resuming, and wrong ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.learning import chosen
from torch import nn

from adan_bench.errors import UsageError
from adan_bench.records.store import read_run, read_runs
from adan_bench.training import optimizers
from adan_bench.training.configure import configure
from adan_bench.training.scripts import load_script
from adan_bench.workloads.parts.classification import without_decay
from adan_bench.workloads.registry import get_workload

SIGNS = """
import torch
from adan_bench import optimizer

@optimizer("signsgd", lr=0.03, choices=[{"momentum": 0.9}, {"momentum": 0.5}])
class SignSGD(torch.optim.Optimizer):
    def __init__(self, params, lr=0.01, momentum=0.0):
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be at least 0 and below 1, got {momentum}")
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                average.lerp_(p.grad, 1 - group["momentum"])
                p.sub_(average.sign(), alpha=group["lr"])

@optimizer("nesterov", lr=0.01, defaults={"momentum": 0.8})
def nesterov(params, **settings):
    return torch.optim.SGD(params, nesterov=True, **settings)
"""


@pytest.fixture(autouse=True)
def no_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins with the bundled optimizers alone, and leaves none behind."""
    monkeypatch.setattr(optimizers, "OWN", {})


@pytest.fixture
def script(tiny: Path, tmp_path: Path) -> Path:
    """Two optimizers and a workload in one file."""
    path = tmp_path / "mine.py"
    path.write_text(tiny.read_text(encoding="utf-8").replace('"tiny"', '"beside"') + SIGNS, encoding="utf-8")
    return path


@pytest.mark.usefixtures("forked_workers")
def test_compare_in_worker_processes(bench: Any, script: Path, tmp_path: Path) -> None:
    """Tuned with its choices, with a variant and --set, two at a time; each is in the report under its name."""
    names, out = ["signsgd", "signsgd:momentum=0.7", "nesterov"], tmp_path / "a"
    arguments = ["compare", "--script", script, "--optimizers", ",".join(names), "--out", out]
    arguments += ["--seeds", 1, "--tune", 4, "--jobs", 2, "--steps", 20, "--set", "nesterov.momentum=0.6"]
    shown = bench.ran(*arguments)
    records = read_runs(out)[0]
    by_name = {name: [r for r in records if r.config.name == name] for name in names}
    assert [len(found) for found in by_name.values()] == [5] * 3
    tried = [r.config.settings for r in by_name["signsgd"] if r.config.role == "tune"]
    assert {settings.get("momentum") for settings in tried} >= {0.9}
    assert {settings["lr"] for settings in tried} >= {0.00169, 0.533}  # 2.5 decades around the center
    assert all(r.config.settings["momentum"] == 0.6 for r in by_name["nesterov"])
    assert all(r.config.settings["momentum"] == 0.7 for r in by_name["signsgd:momentum=0.7"])
    first = next(r for r in by_name["signsgd"] if r.config.role == "run")
    assert first.result["implementation"] == "the script's own step"
    assert json.loads((first.path / "config.json").read_text(encoding="utf-8"))["optimizer"]["target"] == "mine:SignSGD"
    page = (out / "report.html").read_text(encoding="utf-8")
    assert all(name in shown and name in page for name in names)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("result.json")}
    bench.ran(*arguments, "--resume")
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("result.json")}


def test_a_run_resumes_exactly(bench: Any, script: Path, tmp_path: Path) -> None:
    script.write_text(SIGNS, encoding="utf-8")  # the optimizer alone; the workload is known here already
    command = ["run", "tiny", "--script", script, "--optimizer", "signsgd", "--set", "momentum=0.9"]
    command += ["--keep-weights", "--checkpoint-every", 20, "--threads", 1, "--out"]
    bench.ran(*command, tmp_path / "whole")
    assert bench(*command, tmp_path / "parts", "--time-limit", "0.001s")[0] == 4
    bench.ran(*command, tmp_path / "parts", "--resume")
    whole, parts = (torch.load(tmp_path / name / "weights.pt") for name in ("whole", "parts"))
    assert all(torch.equal(whole[key], parts[key]) for key in whole)
    assert read_run(tmp_path / "whole").config.settings == {"lr": 0.03, "momentum": 0.9}


def test_a_state_that_no_checkpoint_can_hold(bench: Any, tmp_path: Path) -> None:
    """Found when the first one is written, not when a run of days is to be resumed."""
    script, out = tmp_path / "mine.py", tmp_path / "a"
    state = 'self.state[p].setdefault("window", __import__("collections").deque(maxlen=2)).append(1.0)'
    script.write_text(SIGNS.replace("p.sub_", f"{state}; p.sub_"), encoding="utf-8")
    command = ["run", "tiny", "--script", script, "--optimizer", "signsgd", "--checkpoint-every", 20, "--out", out]
    code, _, err = bench(*command)
    assert code == 1
    assert "with a collections.deque in it; keep tensors and plain numbers in the state" in err
    assert not list(out.glob("checkpoint-*"))


def test_list(bench: Any, script: Path) -> None:
    rows = json.loads(bench("list", "optimizers", "--script", script, "--json")[1])
    assert [row["name"] for row in rows] == ["signsgd", "nesterov"]
    assert rows[-2]["from"] == "mine:SignSGD"
    assert rows[-2]["then"] == "momentum=0.9; momentum=0.5"
    assert rows[-1]["then"] == "more rates"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--optimizer", "mine.py:SignSGD"], ["no optimizer 'mine.py'", "@adan_bench.optimizer", "--script FILE"]),
        (["--optimizer", "signsg"], ["did you mean signsgd?", "to add one: @adan_bench.optimizer"]),
        (["--optimizer", "signsgd", "--set", "beta=1"], ["signsgd has no setting 'beta'; it has: lr, momentum"]),
        (["--optimizer", "signsgd", "--set", "momentum=2"], ["signsgd rejects lr=0.03 momentum=2: momentum must be"]),
        (["--optimizer", "nesterov", "--set", "beta=1"], ["nesterov rejects", "beta=1", "unexpected keyword"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_it_does_not_take(
    bench: Any, script: Path, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    err = bench.refused("run", "beside", "--script", script, "--out", tmp_path / "a", *arguments)
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    ("decorated", "words"),
    [
        ('@optimizer("adan", lr=1)\ndef f(params, lr): ...', "'adan' is a bundled optimizer; give yours another name"),
        ('@optimizer("a:b", lr=1)\ndef f(params, lr): ...', "name must be a word of letters, .*got 'a:b'"),
        ('@optimizer("all", lr=1)\ndef f(params, lr): ...', "got 'all'"),
        ('@optimizer("a", lr=0)\ndef f(params, lr): ...', "lr must be a number above 0, got 0"),
        ('@optimizer("a", lr="1")\ndef f(params, lr): ...', "lr must be a number above 0, got '1'"),
        ('@optimizer("a", lr=1)\ndef f(params): ...', "a has no setting 'lr'; it has: none"),
        ('@optimizer("a", lr=1, capturable="no")\ndef f(params, lr): ...', "capturable must be True or False, got"),
        ('@optimizer("a", lr=1, defaults=[1])\ndef f(params, lr): ...', r"defaults must be a dictionary.*got \[1\]"),
        ('@optimizer("a", lr=1, defaults={"b": 1})\ndef f(params, lr): ...', "a has no setting 'b'; it has: lr"),
        ('@optimizer("a", lr=1, choices={"b": 1})\ndef f(params, lr, b): ...', "choices must be a list of .*'b': 1"),
        ('@optimizer("a", lr=1, choices=[{"c": 1}])\ndef f(params, lr, b): ...', "a has no setting 'c'; it has: lr, b"),
        ('optimizer("a", lr=1)(3)', r"@optimizer\('a'\) decorates a class .*, got 3"),
    ],
)
def test_a_wrong_declaration(tmp_path: Path, decorated: str, words: str) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(f"from adan_bench import optimizer\n{decorated}\n", encoding="utf-8")
    with pytest.raises(UsageError, match=f"--script {path}: .*{words}"):
        load_script(path)
    assert optimizers.OWN == {}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("pass", "a: wrong:f made None; return a torch.optim.Optimizer"),
        ("return Bare(params, {})", "a: its parameter groups have no 'lr' to schedule"),
        ("return torch.optim.SGD(params, lr=-lr)", "a rejects lr=1: Invalid learning rate: -1"),
    ],
)
def test_a_function_that_makes_no_optimizer(tmp_path: Path, body: str, words: str) -> None:
    """Seen before any run begins."""
    path = tmp_path / "wrong.py"
    path.write_text(
        "import torch\nfrom adan_bench import optimizer\nclass Bare(torch.optim.Optimizer): ...\n"
        f'@optimizer("a", lr=1)\ndef f(params, lr):\n    {body}\n',
        encoding="utf-8",
    )
    load_script(path)
    spec = optimizers.get_optimizer("a")
    with pytest.raises(UsageError, match=words):
        optimizers.check_values(spec, optimizers.defaults(spec))


def test_no_cuda_graph_unless_it_says_so(script: Path) -> None:
    """A count of steps in Python would stand still in a graph, and nobody would notice."""
    load_script(script)
    assert "@optimizer('signsgd') does not declare capturable=True" in optimizers.get_optimizer("signsgd").eager
    optimizers.optimizer("mine", lr=0.1, capturable=True)(torch.optim.Adagrad)
    spec = optimizers.get_optimizer("mine")
    assert spec.eager == ""
    built = optimizers.build(spec, [nn.Parameter(torch.zeros(2))], {"lr": 0.1})
    assert optimizers.implementation(built) == "fused"


def test_its_own_weight_decay_reaches_the_parameter_groups(tmp_path: Path) -> None:
    """Where a workload makes groups, it sets the decay of each: the default of the class belongs into the settings."""
    script = tmp_path / "decaying.py"
    script.write_text(
        "import torch\nfrom adan_bench import optimizer\n"
        "@optimizer('decaying', lr=1e-3)\nclass Decaying(torch.optim.AdamW):\n"
        "    def __init__(self, params, lr=1e-3, weight_decay=0.1):\n"
        "        super().__init__(params, lr=lr, weight_decay=weight_decay)\n"
        "@optimizer('plain', lr=1e-3, defaults={'weight_decay': 0.3})\nclass Plain(Decaying):\n    pass\n",
        encoding="utf-8",
    )
    load_script(script)
    specs = [optimizers.get_optimizer(name) for name in ("decaying", "plain")]
    assert [optimizers.defaults(spec) for spec in specs] == [
        {"lr": 1e-3, "weight_decay": 0.1},
        {"lr": 1e-3, "weight_decay": 0.3},
    ]
    config = configure(get_workload("vit-s"), specs[0], chosen(script=script))
    groups = without_decay(nn.Linear(2, 2), config.settings)  # as vit-s has them
    assert sorted(group["weight_decay"] for group in groups) == [0.0, 0.1]
