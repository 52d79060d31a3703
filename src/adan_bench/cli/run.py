"""The command `run`."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console

from adan_bench.cli.common import EXIT_DIVERGED, EXIT_FAILED, Invocation, Json, Set, Workload, complain, run_flags, say
from adan_bench.config import RunConfig, RunProgress
from adan_bench.errors import TimeLimitReached, UsageError
from adan_bench.records.store import RunLocked, RunStore, runs_below


@run_flags(without=("cluster", "jobs", "ranks"))
def run(
    workload: Workload = "",
    optimizer: Annotated[
        str, typer.Option(help="A name from `adan-bench list optimizers`, or a variant such as adan:state_format=8bit.")
    ] = "adan",
    set_: Set = None,
    as_json: Json = False,
    *,
    chosen: RunConfig,
    call: Invocation,
) -> None:
    """Train one workload with one optimizer."""
    from adan_bench.cli.progress import showing
    from adan_bench.studies.competitors import competitors
    from adan_bench.training.configure import configure
    from adan_bench.training.interrupts import Pause, on_ctrl_c, say_finishing
    from adan_bench.training.jobs import Event, Job
    from adan_bench.training.worker import attempt
    from adan_bench.workloads.registry import get_workload

    (competitor,) = competitors(optimizer, set_ or [], flag="--optimizer", most=1)
    config = configure(get_workload(workload, chosen.scale), competitor.spec, chosen, competitor.settings)
    config = replace(config, label=competitor.label)
    path = call.records_in(workload, competitor.folder, f"seed-{config.seed}")
    if others := [other for other in runs_below(path) if other != path]:
        raise UsageError(f"--out {path}: it already holds other runs, for example {others[0]}; name another folder")
    pause = Pause(call.until)
    job, store = Job(config, path, call.resume), RunStore(path)

    def press() -> None:
        if pause.pressed or not pause.stepped:
            raise KeyboardInterrupt
        pause.pressed = True
        say_finishing()

    def tell(progress: RunProgress) -> None:
        try:
            show(Event(job, 0, 1, progress=progress))
        except BrokenPipeError as error:  # as of `--json | head`: the run has not failed
            raise KeyboardInterrupt from error

    first = config.parallel is None or os.environ["RANK"] == "0"
    begins = first and not store.exists
    console = Console(quiet=not first)
    listening = on_ctrl_c(press) if config.parallel is None else nullcontext()  # torchrun ends its ranks itself
    with listening, showing(console, as_json and first) as show:
        try:
            result = attempt(job, tell, pause)
        except RunLocked:
            raise
        except UsageError:
            if begins and store.exists and not store.checkpoints():
                store.discard()  # so that the corrected command finds no run there
            raise
        if as_json or result["status"] != "failed":  # that is said below, with how to continue
            show(Event(job, 1, 1, result=result))
    if result["status"] == "unfinished":
        if pause.pressed:
            raise KeyboardInterrupt
        raise TimeLimitReached(f"time limit reached at step {result['step']}")
    if result["status"] == "failed":
        text = f"{result['error']}; what was recorded is kept; {call.how_to_continue()}"
        raise typer.Exit(complain(text, EXIT_FAILED))
    if not as_json:
        say(console, f"{result['status']}; record: {path}")
    raise typer.Exit(EXIT_DIVERGED if result["status"] == "diverged" else 0)
