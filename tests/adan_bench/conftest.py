"""A workload small enough for every test: milliseconds a step, and every source of randomness in it."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from support.made_up_tables import Reproduced

TINY = '''
import random
import numpy as np
import torch
from torch import nn
from adan_bench import Scale, Task, shuffled, workload

@workload("tiny", metric="error", higher_is_better=False, smoke=Scale(0.5, 60, 16, eval_every=20))
def tiny(context):
    """A regression with dropout and noise from three generators."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(256, 8, generator=g)
    y = x @ torch.randn(8, 1, generator=g)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1))
    def loss(model, batch):
        noise = 1 + 0.1 * random.random() + 0.1 * np.random.rand()
        return noise * (model(batch[0]) - batch[1]).square().mean()
    def evaluate(model):
        return {"error": (model(x) - y).square().mean().item()}
    batches, roles = shuffled([x, y], context.batch_size, context.seed), {"0.weight": "matrix/2"}
    return Task(model, batches, loss, evaluate, note="made up", roles=roles)
'''


@pytest.fixture(autouse=True)
def no_process_group_is_left() -> Iterator[None]:
    """Ranks stay together for their worker's next run; a test that makes one in this process ends it here."""
    yield
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        atexit.unregister(distributed.destroy_process_group)
        distributed.destroy_process_group()


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of decoded data for this run of the tests, shared by the processes of pytest-xdist."""
    own = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADAN_CACHE", str((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "cache"))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_core() -> Iterator[None]:
    """Of the machine's cores every run has one, unless a test asks for more threads: tests share the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("adan_bench.training.configure.cores", lambda: 1)
        yield


@pytest.fixture(autouse=True)
def blank_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are composed, and saved as empty files: to draw one takes matplotlib 0.35 s.

    Tests of what figures show have a fixture of this name that does nothing.
    """

    def save(figure: Any, file: Path | BytesIO, **options: Any) -> None:
        if isinstance(file, Path):
            file.touch()

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", save)


def registered(path: Path, text: str) -> Path:
    """A script of workloads, which are registered here too."""
    from adan_bench.training.scripts import load_script

    path.write_text(text, encoding="utf-8")
    load_script(str(path))
    return path


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script that registers the workload "tiny", registered here too."""
    return registered(tmp_path_factory.mktemp("script") / "tiny.py", TINY)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of studies, of which one follows another and one repeats another."""
    from support.study_files import STUDIES

    monkeypatch.setattr("os.fsync", lambda _: None)  # no machine fails here, and a shared disk is slow
    for name, text in STUDIES.items():
        (tmp_path / f"{name}.toml").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def config(tiny: Path) -> Callable[..., Any]:
    """Configurations of the tiny workload."""
    from dataclasses import replace

    from support.learning import chosen

    from adan_bench.training.configure import configure
    from adan_bench.training.optimizers import get_optimizer
    from adan_bench.workloads.registry import get_workload

    def make(optimizer: str = "adan", workload: str = "tiny", **changes: Any) -> Any:
        options = chosen(script=tiny if workload == "tiny" else None)
        return replace(configure(get_workload(workload), get_optimizer(optimizer), options), **changes)

    return make


@pytest.fixture(scope="session")
def regressions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script that registers the workloads of the made-up tables, registered here too."""
    from support.made_up_tables import SCRIPT

    return registered(tmp_path_factory.mktemp("script") / "script.py", SCRIPT)


@pytest.fixture(scope="session")
def reproduced(regressions: Path, tmp_path_factory: pytest.TempPathFactory) -> Reproduced:
    """Everything that a table may hold, run once."""
    from support.learning import chosen
    from support.made_up_tables import everything
    from support.pools import inline_pools

    from adan_bench.studies.paper import reproduce

    tables, out = everything(), tmp_path_factory.mktemp("reproduction")
    with inline_pools():
        return reproduce(tables, chosen(script=regressions), out), out, tables


@pytest.fixture
def sigint() -> Iterator[None]:
    """Ctrl-C as in a terminal; tests in the background of a shell ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def inline_pool() -> Iterator[None]:
    """For tests of what a study does, rather than of its workers."""
    from support.pools import inline_pools

    with inline_pools():
        yield


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that need not import torch; `test_killed_in_the_middle_of_its_search` has those that users have."""
    import subprocess
    from types import SimpleNamespace

    from support.forked import Program

    forked = SimpleNamespace(Popen=Program, PIPE=subprocess.PIPE)
    monkeypatch.setattr("adan_bench.training.pool.subprocess", forked)


class Bench:
    """`adan-bench` in this process: (exit code, standard output, standard error)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *arguments: Any) -> tuple[int, str, str]:
        from adan_bench.cli import app as cli
        from adan_bench.records.environment import COMMAND

        self.monkeypatch.setattr(sys, "argv", ["adan-bench", *map(str, arguments)])
        self.monkeypatch.setenv(COMMAND, "")  # which main sets
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        captured = self.capsys.readouterr()
        code = exit_.value.code
        return (code if isinstance(code, int) else 0), captured.out, captured.err

    def ran(self, *arguments: Any) -> str:
        """What it prints where the exit code is 0, with nothing on standard error."""
        code, out, err = self(*arguments)
        assert (code, err) == (0, "")
        return out

    def refused(self, *arguments: Any) -> str:
        """The one line that it writes, and nothing else, where its exit code is 2."""
        code, out, err = self(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        return err


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bench:
    return Bench(monkeypatch, capsys)
