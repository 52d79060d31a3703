"""What a study looks like while it runs: live bars on a terminal, plain lines elsewhere, JSON lines for machines."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from adan_bench.cli.common import grid, say
from adan_bench.config import RunConfig, RunProgress, as_json
from adan_bench.records.stats import WorkloadSummary
from adan_bench.records.store import finite
from adan_bench.reports.comparison import COLUMNS, TRIALS_TERMS, table_rows, tuning_rows, warn
from adan_bench.reports.conclusions import assignments, budget, conclude, length, number, tuning
from adan_bench.training.jobs import Event, OnEvent
from adan_bench.training.optimizers import defaults, get_optimizer, known


@contextmanager
def showing(console: Console, as_json: bool, errors: set[str] | None = None) -> Iterator[OnEvent]:
    """A function that shows events: as bars, plain lines or, with --json, the only lines on standard output.

    errors: collects those of failed runs that were printed as text, each the first time it occurs.
    """
    errors = set() if errors is None else errors
    if as_json:
        out = sys.stdout
        with redirect_stdout(sys.stderr):  # what libraries print, Ray for example
            yield lambda event: print(json.dumps(finite(_as_json(event)), allow_nan=False), flush=True, file=out)
    elif console.is_terminal:
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[status]}"),
            console=console,
        ) as bars:
            yield _Live(bars, errors)
    else:
        yield _Plain(console, errors)


def _label(event: Event) -> str:
    config, path = event.job.config, event.job.path
    which = {"tune": f"{path.name} {_varied(config)}", "pilot": "pilot run"}
    sized = f"{config.workload}-b{config.batch_size}"  # the folder of a batch size, where there are several
    workload = sized if sized in path.parts else config.workload
    return f"{workload} {config.name} {which.get(config.role, f'seed {config.seed}')}"


def _varied(config: RunConfig) -> str:
    """The settings of a trial that are not the optimizer's defaults, its rate first."""
    usual = {} if config.optimizer not in known() else as_json(defaults(get_optimizer(config.optimizer)))
    tuned = as_json(config.tuned)  # as they are in a record, from which later trials take theirs
    others = {key: value for key, value in tuned.items() if key != "lr" and value != usual.get(key)}
    return assignments({"lr": f"{config.settings['lr']:g}", **others})


def _time_left(event: Event) -> str:
    seconds = event.seconds_left
    return f"{seconds:.0f} s left" if seconds < 120 else f"{seconds / 60:.0f} min left"


def _outcome(event: Event, errors: set[str]) -> str:
    """The result in words; an error that is among those printed before is not repeated, others are added to them."""
    assert event.result is not None
    result = event.result
    if result["status"] == "failed":
        known = result["error"] in errors
        errors.add(result["error"])
        return "failed: the same error as above" if known else f"failed: {result['error']}"
    if result["status"] == "unfinished":
        return f"paused at step {result['step']}"
    if result["status"] == "diverged":
        lost = [key for key, value in result["final"].items() if value is None or not math.isfinite(value)]
        return f"diverged at step {result['step']}" + (f": {', '.join(lost)} not finite" if lost else "")
    numbers = ", ".join(f"{key} {number(value)}" for key, value in result["final"].items())
    return f"{numbers}, {result['step'] / max(result['seconds'], 1e-9):.1f} steps/s"


def _speed(p: RunProgress) -> list[str]:
    """Steps per second and time left, after the first step; on a GPU its load and memory."""
    words = []
    if p.gpu_share is not None:
        words.append(f"GPU {p.gpu_share:.0%}")
    if p.gpu_bytes is not None:
        words.append(f"{p.gpu_bytes / 1e9:.1f} GB")
    if p.seconds_left is None:
        return words
    return [f"{p.steps_per_second:.1f} steps/s", *words, f"{p.seconds_left:.0f} s left"]


class _Live:
    """A bar for the study and one for each run under way."""

    def __init__(self, bars: Progress, errors: set[str]) -> None:
        self.bars, self.errors = bars, errors
        self.whole: TaskID | None = None
        self.tasks: dict[Path, TaskID] = {}
        self.left = ""

    def __call__(self, event: Event) -> None:
        if self.whole is None:
            self.whole = self.bars.add_task("all runs", total=event.total, status="")
        label, config, path = escape(_label(event)), event.job.config, event.job.path
        if path not in self.tasks:
            self.tasks[path] = self.bars.add_task(label, total=config.stop_after or config.steps, status="starting")
        task = self.tasks[path]
        if event.progress is not None:
            p = event.progress
            words = [f"loss {number(p.loss)}", f"metric {number(p.metric)}", *_speed(p)]
            self.bars.update(task, completed=p.step, status="  ".join(words))
        if event.result is not None:
            self.bars.remove_task(self.tasks.pop(path))
            self.bars.console.print(
                f"[dim]{event.done}/{event.total}[/dim] {label}: {escape(_outcome(event, self.errors))}",
                highlight=False,
            )
            self.left = f"  {_time_left(event)}"
        rate = f"  {event.steps_per_second:.1f} steps/s in total" if event.steps_per_second else ""
        status = f"{event.done}/{event.total}{self.left}{rate}"
        self.bars.update(self.whole, total=event.total, completed=event.done, status=status)


class _Plain:
    """One line per finished run, and at most one line in ten seconds about the others."""

    def __init__(self, console: Console, errors: set[str]) -> None:
        self.console, self.errors, self.shown = console, errors, time.monotonic()

    def __call__(self, event: Event) -> None:
        text = None
        if event.result is not None:
            more = f"; {_time_left(event)}" if event.done < event.total else ""
            text = f"[{event.done}/{event.total}] {_label(event)}: {_outcome(event, self.errors)}{more}"
        elif event.progress is not None and time.monotonic() - self.shown > 10:
            p = event.progress
            words = [f"step {p.step}/{p.steps}", f"loss {number(p.loss)}", f"metric {number(p.metric)}", *_speed(p)]
            text = f"{_label(event)}: {', '.join(words)}"
            if event.steps_per_second > p.steps_per_second:
                text += f"; all runs {event.steps_per_second:.1f} steps/s"
        if text is not None:
            self.shown = time.monotonic()
            say(self.console, text)


def _as_json(event: Event) -> dict[str, Any]:
    config = event.job.config
    line: dict[str, Any] = {
        "event": "result" if event.result is not None else "progress" if event.progress is not None else "start",
        "workload": config.workload,
        "optimizer": config.name,
        "seed": config.seed,
        "role": config.role,
        "batch_size": config.batch_size,
        "steps": config.stop_after or config.steps,
        "path": str(event.job.path),
        "done": event.done,
        "total": event.total,
        "total_steps_per_second": event.steps_per_second,
    }
    if event.progress is not None:
        line.update(dataclasses.asdict(event.progress))
    if event.result is not None:
        line["result"] = dict(event.result)
    return line


def _broken(name: str, width: int) -> str:
    """The name of an optimizer, on several lines where it would take more than a quarter of a table's width.

    >>> _broken("adan:state_format=8bit,stochastic_rounding=true", 80).splitlines()
    ['adan:', 'state_format=8bit,', 'stochastic_rounding=', 'true']
    """
    for mark in ("([:,])", "(=)"):
        lines = (re.sub(mark, r"\1\n", line) if len(line) > width // 4 else line for line in name.splitlines())
        name = "\n".join(lines)
    return name


def show_tuning(console: Console, tunings: Sequence[WorkloadSummary]) -> None:
    """The best settings of every optimizer; what a row means stands below."""
    for summary in tunings:
        head, rows = tuning_rows(summary)
        lines = [[_broken(row[0], console.width), *row[1:]] for row in rows]
        table = grid(f"{summary.name}: {budget(summary)}.", head, lines)
        table.columns[0].no_wrap = True
        console.print(table)
    if tunings:
        say(console, TRIALS_TERMS + "\n", style="dim")


def show_summaries(console: Console, summaries: Sequence[WorkloadSummary]) -> None:
    """The table of results and the conclusion of every workload, after a word of caution where one is due."""
    for text in warn(summaries):
        say(console, text, style="bold red")
    for summary in summaries:
        head, rows = table_rows(summary)
        shown = [i for i, name in enumerate(COLUMNS[:-1]) if name not in ("minus the first", "best")]
        rates = [f"{o.settings['lr']:g}" for o in summary.optimizers]
        lines = [[*(row[i] for i in shown), lr] for row, lr in zip(rows, rates, strict=True)]
        lines = [[_broken(line[0], console.width), *line[1:]] for line in lines]
        table = grid(f"{summary.name}: {length(summary)}", [*(head[i] for i in shown), "lr"], lines)
        table.collapse_padding = True  # to fit into 80 columns
        for i, column in enumerate(table.columns):
            column.justify = "right" if i else "left"
        table.columns[0].no_wrap = True
        console.print(table)
        say(console, conclude(summary) + "\n")
    if summaries:
        say(console, tuning(summaries))
