"""Studies that are killed, interrupted by Ctrl-C, or lose a worker or the reader of their output."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.forked import Program
from support.learning import settings
from support.pools import always
from support.scripts import one_weight

from adan_bench.records.store import RunStore, read_run, read_runs
from adan_bench.training.jobs import Event, Job
from adan_bench.training.pool import LocalPool
from adan_bench.training.scripts import load_script


@pytest.mark.usefixtures("forked_workers")
def test_a_worker_that_dies_costs_one_run(bench: Any, tmp_path: Path) -> None:
    """A process that is gone in the middle, an exception: recorded as failed, the others run, the exit code says so."""
    loss = "if context.seed == 0: os._exit(9)\n        if context.seed == 1: raise torch.OutOfMemoryError('boom')"
    script = one_weight(tmp_path / "bad.py", "bad", loss=loss, scales="smoke=Scale(1, 3, 1)")
    arguments = ("--optimizers", "adam", "--seeds", "3", "--out", tmp_path / "a")
    code, out, _ = bench("compare", "--script", script, *arguments)
    assert code == 1
    records = read_runs(tmp_path / "a")[0]
    assert [r.status for r in records] == ["failed", "failed", "finished"]
    assert "code 9" in records[0].result["error"]
    error = "out of memory with 1 examples at a time: begin anew with --accumulate 2 (OutOfMemoryError: boom)"
    assert records[1].result["error"] == error
    assert "2 of 3 did not finish" in out


def test_ctrl_c_pauses_a_comparison(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a terminal, to the command and its workers: checkpoints, exit code 130, and the command that continues."""
    monkeypatch.chdir(tmp_path)
    arguments = ["compare", "tiny", "--script", str(tiny), "--optimizers", "adan,adamw", "--steps", "100000"]
    with (tmp_path / "errors").open("w", encoding="utf-8") as errors:
        process = Program([sys.executable, "-m", "adan_bench.cli", *arguments], stderr=errors)
    while not any(file.stat().st_size > 0 for file in tmp_path.rglob("metrics.jsonl")):
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    (folder,) = (tmp_path / "runs").iterdir()
    wanted = f"continue with: adan-bench {' '.join(arguments)} --out runs/{folder.name} --resume"
    first, last = (tmp_path / "errors").read_text(encoding="utf-8").splitlines()
    assert "writing a checkpoint; Ctrl-C again ends at once" in first
    assert last == f"adan-bench: interrupted; {wanted}"
    (store,) = (RunStore(file.parent) for file in folder.rglob("config.json"))  # no other has begun
    assert store.resume_step > 0
    assert not store.ended


@pytest.fixture
def press(sigint: None) -> Iterator[Any]:
    """Ctrl-C for this process alone, once a condition holds."""
    waiting = []

    def when(holds: Callable[[], bool], times: int = 1) -> None:
        def wait() -> None:
            while not holds():
                time.sleep(0.01)
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.2)

        waiting.append(threading.Thread(target=wait))
        waiting[-1].start()

    yield when
    for thread in waiting:
        thread.join()


@pytest.mark.usefixtures("forked_workers")
def test_ctrl_c_costs_no_step(bench: Any, tiny: Path, tmp_path: Path, press: Any) -> None:
    """A signal to the command alone; --resume ends with the numbers of an undisturbed study."""
    options = ["tune", "tiny", "--script", tiny, "--optimizers", "adan", "--steps", "600", "--trials", 2, "--out"]
    out, runs = tmp_path / "a", lambda: read_runs(out)[0]
    press(lambda: any(file.stat().st_size > 0 for file in out.rglob("metrics.jsonl")))
    code, _, err = bench(*options, out)
    assert (code, err.splitlines()[-1].endswith(f"--out {out} --resume")) == (130, True)
    (begun,) = runs()
    assert 0 < RunStore(begun.path).resume_step < 600
    assert bench(*options, out, "--resume")[0] == 0
    bench.ran(*options, tmp_path / "b")
    for record in runs():
        there = read_run(tmp_path / "b" / record.path.relative_to(out))
        for kind, key in (("train", "loss"), ("eval", "error")):
            assert [line[::2] for line in record.curve(kind, key)] == [line[::2] for line in there.curve(kind, key)]


def stuck(folder: Path, build: bool = False) -> Path:
    """A workload that is at some point for a minute, where the file "sign" tells that it is there."""
    wait = f"if {{}}: pathlib.Path({str(folder / 'sign')!r}).touch(), time.sleep(60)"
    return one_weight(folder / "stuck.py", "stuck", built=wait.format(build), loss=wait.format("len(steps) > 1"))


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize(("build", "presses"), [(False, 2), (True, 1)], ids=["in a step", "before the first step"])
def test_ctrl_c_at_once(bench: Any, tmp_path: Path, press: Any, build: bool, presses: int) -> None:
    """The second one does not wait for a step; before a run's first step there is nothing to wait for."""
    script, out = stuck(tmp_path, build), tmp_path / "a"
    press((tmp_path / "sign").exists, presses)
    started = time.monotonic()
    assert bench("compare", "--script", script, "--optimizers", "adam", "--seeds", "1", "--out", out)[0] == 130
    assert time.monotonic() - started < 30
    assert not list(out.rglob("result.json"))


@pytest.mark.usefixtures("forked_workers")
def test_an_output_without_a_reader_ends_the_study_at_once(tmp_path: Path) -> None:
    """As of `compare --json | head -1`: the worker is in a step of a minute."""
    script = stuck(tmp_path)
    load_script(script)
    config = settings("stuck", "adam", script=script)

    def show(event: Event) -> None:
        if event.progress is not None:
            raise BrokenPipeError

    pool, started = LocalPool(tmp_path / "a", config), time.monotonic()
    with pytest.raises(BrokenPipeError), contextlib.closing(pool):
        pool.run(always([Job(config, tmp_path / "a" / "0")]), show)
    assert time.monotonic() - started < 30
    assert not list(tmp_path.rglob("result.json"))


def test_a_run_whose_output_has_lost_its_reader_has_not_failed(tiny: Path, tmp_path: Path) -> None:
    words = ["-m", "adan_bench.cli", "run", "tiny", "--script", str(tiny), "--steps", "3000", "--json"]
    program = Program([sys.executable, *words, "--out", str(tmp_path / "a")], stdout=subprocess.PIPE)
    assert json.loads(program.stdout.readline())["event"] == "progress"
    program.stdout.close()
    assert program.wait(60)
    assert read_run(tmp_path / "a").status == "unfinished"
