"""What is shown while runs go on: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from adan_bench.cli.common import grid
from adan_bench.cli.paper import OUTLINE
from adan_bench.cli.progress import showing
from adan_bench.config import RunProgress, as_json
from adan_bench.training.jobs import Event, Job
from adan_bench.training.optimizers import defaults, get_optimizer


def events(config: Any) -> list[Event]:
    job = Job(config("adan", seed=1), Path("somewhere"))
    finished = {"status": "finished", "step": 60, "seconds": 2.0, "final": {"error": 0.25}, "best": 0.25}
    return [
        Event(job, 0, 2),
        Event(job, 0, 2, progress=RunProgress(30, 60, 0.5, 0.375, 20.0, 1.5)),
        Event(job, 1, 2, result=finished),
        Event(job, 2, 2, result={**finished, "status": "diverged", "final": {"error": None, "more": 1.0}}),
    ]


def test_a_narrow_table_has_all_of_its_text() -> None:
    """A plan in a log of 80 columns: its numbers are wrapped, not cut off, and square brackets are no markup."""
    output = io.StringIO()
    rows = [["vit-s [/trials]", "sgd [/a]", "1", "8", "125,000", "8 × 128", "16,000,000", "(1)"]]
    Console(file=output, width=80).print(grid("1 runs [/a]", OUTLINE, rows))
    assert "…" not in output.getvalue()
    cells = [line.split("│")[1:-1] for line in output.getvalue().splitlines() if line.startswith("│")]
    columns = ["".join(map(str.strip, column)) for column in zip(*cells, strict=True)]
    assert (columns[-2], columns[1]) == ("16,000,000", "sgd [/a]")
    assert "1 runs [/a]" in output.getvalue()


def shown(events: list[Event], terminal: bool = False) -> str:
    output = io.StringIO()
    with showing(Console(file=output, force_terminal=terminal, width=200), as_json=False) as show:
        display: Any = show
        for event in events:
            display.shown = -1e9  # the last line was long ago
            show(event)
            if terminal:
                display.bars.refresh()
    return output.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_live_and_plain(config: Any, terminal: bool) -> None:
    """Loss, metric, steps per second and time left are there; only a terminal gets control characters."""
    text = shown(events(config), terminal)
    for part in ("tiny adan seed 1", "0.5000", "0.3750", "20.0 steps/s", "2 s left", "error 0.2500"):
        assert part in text
    assert "diverged at step 60: error not finite" in text
    assert ("\x1b" in text) == terminal


def test_a_trial_names_what_it_varies(config: Any) -> None:
    """Later trials have their settings from records, where tuples are lists."""
    usual = defaults(get_optimizer("adan"))
    for settings in (usual, as_json(usual)):
        job = Job(config("adan", role="tune", settings={**settings, "lr": 0.1, "eps": 1e-6}), Path("tune-06"))
        text = shown([Event(job, 1, 2, result={"status": "unfinished", "step": 3})])
        assert "tune-06 lr=0.1 eps=1e-06: paused at step 3" in text


def test_json_names_variants(config: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with showing(Console(), as_json=True) as show:
        for label in ("", "adan:state_format=8bit"):
            show(Event(Job(config("adan", label=label), Path("somewhere")), 0, 2))
    names = [json.loads(line)["optimizer"] for line in capsys.readouterr().out.splitlines()]
    assert names == ["adan", "adan:state_format=8bit"]


@pytest.mark.parametrize("terminal", [True, False])
def test_runs_of_several_batch_sizes_are_told_apart(
    config: Any, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    """Two at a time; the first progress of a run has no speed yet, and no comma before it."""
    progress = RunProgress(1, 60, 0.5, None, 20.0, None)
    jobs = [Job(config(batch_size=size), Path(f"out/tiny-b{size}/adan/seed-0")) for size in (16, 32)]
    text = shown([Event(job, 0, 2, progress=progress) for job in jobs], terminal)
    assert "tiny-b16 adan seed 0" in text
    assert "tiny-b32 adan seed 0" in text
    assert terminal or "metric –\n" in text
    with showing(Console(), as_json=True) as show:
        show(Event(jobs[1], 0, 2))
    line = json.loads(capsys.readouterr().out)
    assert (line["batch_size"], line["steps"]) == (32, 60)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_gpu_is_shown(config: Any, terminal: bool) -> None:
    """How busy it is and its memory; nothing of that on a CPU."""
    job, load = Job(config("adan"), Path("somewhere")), {"gpu_share": 0.97, "gpu_bytes": 19e8}
    cpu, gpu = (Event(job, 0, 1, progress=RunProgress(30, 60, 0.5, None, 20.0, 1.5, **more)) for more in ({}, load))
    assert "GPU" not in shown([cpu], terminal)
    text = shown([cpu, gpu], terminal)
    assert "GPU 97%" in text
    assert "1.9 GB" in text


@pytest.mark.parametrize("terminal", [True, False])
def test_square_brackets_are_no_markup(config: Any, terminal: bool) -> None:
    job = Job(config("adan", label="adan:path=[/a]"), Path("somewhere"))
    failed = {"status": "failed", "error": "RuntimeError: no file in [/data/images]", "step": 0}
    text = shown([Event(job, 0, 1), Event(job, 1, 1, result=failed)], terminal)
    assert "tiny adan:path=[/a] seed 0: failed: RuntimeError: no file in [/data/images]" in text
