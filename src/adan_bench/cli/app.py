"""The command line: wiring only."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from adan_bench.cli import paper, study, theory
from adan_bench.cli.common import (
    EXIT_DIVERGED,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_TIME_LIMIT,
    EXIT_USAGE,
    Jobs,
    Json,
    Out,
    Resume,
    Seeds,
    TimeLimit,
    check_file,
    check_folder,
    deadline,
    how_to_continue,
    numbers,
    records_in,
    remove_unused,
    run_flags,
)
from adan_bench.cli.memory import memory
from adan_bench.cli.pack import pack
from adan_bench.cli.reporting import write_and_show
from adan_bench.config import Progress, RunConfig
from adan_bench.errors import TimeLimitReached, UsageError
from adan_bench.records.store import ARCHIVE

app = typer.Typer(
    name="adan-bench",
    help="Compare optimizers on real workloads. "
    "Exit codes: 0 done, 1 a run failed, 2 a wrong name, option or value, 3 diverged, 4 the time limit was reached.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
paper.register(app)
study.register(app)
app.command()(memory)
app.command()(pack)
app.add_typer(theory.app, name="theory")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"adan-bench {metadata.version('adan')}")  # not adan.__version__: that would import torch
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None: ...


class Kind(str, Enum):
    workloads = "workloads"
    optimizers = "optimizers"
    tables = "tables"
    studies = "studies"


DETAILS = {  # the second line of an entry of `list`
    Kind.workloads: "{metric} · {steps} steps of {batch} · data: {data} · scales: {scales}",
    Kind.optimizers: "tuned over lr {lr}, then {then} · gradients per update: {passes}",
    Kind.tables: "{place} · {cells} cells · run: {run here}",
    Kind.studies: "{on} · {who} · {trials}, {seeds}",
}

Workloads = Annotated[
    list[str] | None,
    typer.Argument(metavar="WORKLOAD...", help="See: adan-bench list workloads; all of --script's unless given."),
]
Optimizers = Annotated[
    str, typer.Option(help="Names separated by commas, variants such as adan:state_format=8bit, or 'all'.")
]
Halving = Annotated[
    int,
    typer.Option(min=1, max=4, help="Successive halving: keep the best 1/N of the trials at each rung; 1 disables it."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting, e.g. lr=0.003; adan.lr=0.003 is for adan alone."),
]


@app.command("list")
def list_(
    kind: Annotated[Kind, typer.Argument()] = Kind.workloads,
    script: Annotated[Path | None, typer.Option(help="A Python file with your own workloads and optimizers.")] = None,
    as_json: Json = False,
) -> None:
    """Show the workloads, the optimizers, the paper's tables, or the bundled studies."""
    if script is not None:
        from adan_bench.training.scripts import load_script

        load_script(script)
    rows = {
        Kind.workloads: _workload_rows,
        Kind.optimizers: _optimizer_rows,
        Kind.tables: paper.rows,
        Kind.studies: study.rows,
    }[kind]()
    if as_json:
        print(json.dumps(rows))
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")  # a name is never cut, at no width
    table.add_column(overflow="fold")
    for row in rows:
        name, what = list(row.values())[:2]
        table.add_row(escape(name), escape(what))
        table.add_row("", f"[dim]{escape(DETAILS[kind].format(**row))}[/dim]")
    Console().print(table, highlight=False)


def _workload_rows() -> list[dict[str, Any]]:
    from adan_bench.workloads.registry import workloads

    return [
        {
            "name": w.name,
            "what": w.summary,
            "metric": f"{w.metric} {'≥' if w.higher_is_better else '≤'} {w.target:g}",
            "steps": w.steps,
            "batch": w.batch_size,
            "data": ", ".join(w.needs) or "bundled",
            "scales": ", ".join(w.scales),
        }
        for w in workloads().values()
    ]


def _optimizer_rows() -> list[dict[str, Any]]:
    from adan_bench.studies.comparison import learning_rates
    from adan_bench.training.optimizers import known

    rows = []
    for spec in known().values():
        low, high = learning_rates(spec, 2)
        choices = "; ".join(f"{key}={value}" for choice in spec.choices for key, value in choice.items())
        rows.append(
            {
                "name": spec.name,
                "from": spec.target,
                "lr": f"{low:g} … {high:g}",
                "then": choices or "more rates",
                "passes": spec.passes,
            }
        )
    return rows


@app.command()
@run_flags(without=("cluster",))
def run(
    workload: Annotated[str, typer.Argument(help="See: adan-bench list workloads.")],
    optimizer: Annotated[str, typer.Option(help="See: adan-bench list optimizers.")] = "adan",
    set_: Set = None,
    out: Out = None,
    resume: Resume = False,
    time_limit: TimeLimit = None,
    as_json: Json = False,
    *,
    chosen: RunConfig,
) -> None:
    """Train one workload with one optimizer."""
    until = deadline(time_limit)
    from adan_bench.cli.progress import showing
    from adan_bench.studies.competitors import competitors
    from adan_bench.training.configure import configure
    from adan_bench.training.interrupts import Interruptible, on_ctrl_c, say_finishing
    from adan_bench.training.jobs import Event, Job
    from adan_bench.training.worker import attempt
    from adan_bench.workloads.registry import get_workload

    (competitor,) = competitors(optimizer, set_ or [], flag="--optimizer", most=1)
    config = configure(get_workload(workload, chosen.scale), competitor.spec, chosen, competitor.settings)
    config = replace(config, label=competitor.label)
    path = records_in(out, workload, competitor.folder, f"seed-{config.seed}", resume=resume)
    if others := [file.parent for file in path.rglob("config.json") if file.parent != path]:
        raise UsageError(f"--out {path}: it already holds other runs, for example {others[0]}; name another folder")
    pause = Interruptible(time=until)
    job = Job(config, path, resume, pause)

    def press() -> None:
        if pause.pressed or not pause.stepped:
            raise KeyboardInterrupt
        pause.pressed = True
        say_finishing()

    def tell(progress: Progress) -> None:
        try:
            show(Event(job, 0, 1, progress=progress))
        except BrokenPipeError as error:  # as of `--json | head`: the run has not failed
            raise KeyboardInterrupt from error

    first = config.parallel is None or os.environ["RANK"] == "0"
    console = Console(quiet=not first)
    listening = on_ctrl_c(press) if config.parallel is None else nullcontext()  # torchrun ends its ranks itself
    with listening, showing(console, as_json and first) as show:
        result = attempt(job, tell)
        show(Event(job, 1, 1, result=result))
    if result["status"] == "unfinished":
        if pause.pressed:
            raise KeyboardInterrupt
        raise TimeLimitReached(f"time limit reached at step {result['step']}")
    if result["status"] == "failed":
        raise typer.Exit(_complain(f"{result['error']}; what was recorded is kept; {how_to_continue()}", EXIT_FAILED))
    if not as_json:
        console.print(f"{result['status']}; record: {path}", markup=False, soft_wrap=True, highlight=False)
    raise typer.Exit(EXIT_DIVERGED if result["status"] == "diverged" else 0)


@app.command()
@run_flags(without=("seed", "parallel"))
def compare(
    workloads: Workloads = None,
    optimizers: Optimizers = "adan,adamw,adam,sgd-momentum,lamb",
    seeds: Seeds = 3,
    tune: Annotated[int, typer.Option(min=0, help="Tuning trials per optimizer; 0 uses the stored settings.")] = 0,
    tuned: Annotated[Path | None, typer.Option(help="The settings that adan-bench tune saved to this file.")] = None,
    halving: Halving = 1,
    batch_sizes: Annotated[
        str | None, typer.Option(help="A sweep, e.g. 32,64,128: lr by the square-root rule.")
    ] = None,
    set_: Set = None,
    jobs: Jobs = 1,
    out: Out = None,
    resume: Resume = False,
    time_limit: TimeLimit = None,
    as_json: Json = False,
    *,
    chosen: RunConfig,
) -> None:
    """Run optimizers side by side and write the report."""
    if tune and tuned is not None:
        raise UsageError(
            f"--tune {tune} and --tuned {tuned}: the settings are searched or read; leave out one of the two"
        )
    if halving > 1 and not tune:
        raise UsageError(f"--halving {halving}: it stops trials of a search; add --tune K, or leave it out")
    if batch_sizes and chosen.batch_size:
        raise UsageError(
            f"--batch-size {chosen.batch_size} and --batch-sizes {batch_sizes}: leave out one of the two, or add "
            f"{chosen.batch_size} to the list"
        )
    more = {"tuned": tuned, "batch_sizes": numbers(batch_sizes, "--batch-sizes")}
    with _comparison(chosen, workloads, optimizers, out, resume, time_limit, as_json, set_, **more) as comparison:
        comparison.make(tune, halving, seeds)
    write_and_show([comparison.out], comparison.out, as_json)


@app.command()
@run_flags(without=("seed", "parallel"))
def tune(
    workloads: Workloads = None,
    optimizers: Optimizers = "adan,adamw,adam,sgd-momentum,lamb",
    trials: Annotated[int, typer.Option(min=1, help="The same number for every optimizer.")] = 8,
    halving: Halving = 1,
    save: Annotated[
        Path | None, typer.Option(help="A JSON file to merge the chosen settings into.", callback=check_file)
    ] = None,
    jobs: Jobs = 1,
    out: Out = None,
    resume: Resume = False,
    time_limit: TimeLimit = None,
    as_json: Json = False,
    *,
    chosen: RunConfig,
) -> None:
    """Tune every optimizer with the same number of trials."""
    from adan_bench.studies.comparison import read_tuned

    with _comparison(chosen, workloads, optimizers, out, resume, time_limit, as_json) as comparison:
        file = save or comparison.out / "best.json"
        if file.exists():
            read_tuned(file, "--save")
        comparison.make(trials, halving)
    comparison.save(file)
    write_and_show([comparison.out], comparison.out, as_json, comparison, file)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS_DIR...", help="Folders of records, or packed files.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the report; the first RUNS_DIR unless given.", callback=check_folder)
    ] = None,
    as_json: Json = False,
) -> None:
    """Write one report of the runs in one or more folders or packed files."""
    folder = out or runs[0]
    if folder.is_file() or folder / ARCHIVE in runs:
        raise UsageError(f"{folder}: the report needs a folder other than that of {ARCHIVE}; give --out DIR")
    if folder.exists() and not os.access(folder, os.W_OK):
        raise UsageError(f"{folder}: the report cannot be written there; give --out DIR")
    write_and_show(runs, folder, as_json)


@app.command()
def humaneval(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A run that was made with --keep-weights.")],
    yes: Annotated[
        bool, typer.Option("--yes-run-generated-code", help="Confirm that code written by the model may be run.")
    ] = False,
    data: Annotated[Path | None, typer.Option(envvar="ADAN_DATA", help="The folder of the data sets.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Answers to each problem.")] = 20,
    k: Annotated[str, typer.Option(help="Comma-separated k of pass@k, at most --samples.")] = "1,10",
    temperature: Annotated[float, typer.Option(min=0.01, help="Sampling temperature; the paper's is 0.8.")] = 0.8,
    tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens per answer.")] = 256,
    problems: Annotated[int | None, typer.Option(min=1, help="Only the first N problems.")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Time limit per answer.")] = 10.0,
    memory: Annotated[int, typer.Option(min=64, help="Memory limit per answer in MiB.")] = 1024,
    jobs: Annotated[int, typer.Option(min=1, help="Answers run at a time.")] = 1,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    seed: int = 0,
    as_json: Json = False,
) -> None:
    """Measure a run's pass@k on HumanEval; runs the code that its model writes, in processes with limits."""
    from adan_bench.studies.humaneval import pass_at_k

    if not yes:
        raise UsageError("humaneval runs code that a model wrote, in limited processes: add --yes-run-generated-code")

    def show(task: str, right: int, count: int) -> None:
        event = {"event": "problem", "task": task, "right": right, "samples": count}
        print(json.dumps(event) if as_json else f"{task}: {right} of {count}", flush=True)

    result = pass_at_k(
        run_dir,
        data,
        samples,
        numbers(k, "--k"),
        temperature=temperature,
        tokens=tokens,
        problems=problems,
        seconds=seconds,
        memory=memory << 20,
        jobs=jobs,
        device=device,
        seed=seed,
        on_problem=show,
    )
    shown = {key: value for key, value in result.items() if key.startswith("pass@")}
    text = ", ".join(f"{key} {value:.4f}" for key, value in shown.items())
    print(json.dumps({"event": "humaneval", **shown}) if as_json else f"{text} ({result['problems']} problems)")


@contextmanager
def _comparison(
    chosen: RunConfig,
    workloads: list[str] | None,
    optimizers: str,
    out: Path | None,
    resume: bool,
    time_limit: str | None,
    as_json: bool,
    pairs: list[str] | None = None,
    **more: Any,
) -> Iterator[Any]:
    from adan_bench.cli.progress import showing
    from adan_bench.studies.comparison import Comparison
    from adan_bench.studies.competitors import competitors
    from adan_bench.workloads.registry import workloads as known

    if not workloads:
        raise UsageError(f"no workload was named; there are: {', '.join(known())}")
    who, more["deadline"] = competitors(optimizers, pairs or []), deadline(time_limit)
    comparison = Comparison(workloads, who, chosen, out=records_in(out, resume=resume), resume=resume, **more)
    with comparison, showing(Console(), as_json) as comparison.on_event:
        yield comparison


def main() -> None:
    """Run the command line; whatever the user got wrong is one line on standard error and exit code 2."""
    try:
        code = app(standalone_mode=False)
        if code == EXIT_INTERRUPTED:  # typer's own answer to Ctrl-C
            _complain(f"interrupted; {how_to_continue()}", code)
    except UsageError as error:
        code = _complain(str(error), EXIT_USAGE)
    except TimeLimitReached as limit:
        code = _complain(f"{limit}; {how_to_continue()}", EXIT_TIME_LIMIT)
    except OSError as error:
        code = _complain(f"{error}; {_after_failure(error)}", EXIT_FAILED)
    except (KeyboardInterrupt, EOFError):
        code = _complain(f"interrupted; {how_to_continue()}", EXIT_INTERRUPTED)
    except Exception as error:
        # typer brings its own copy of click in some releases, so its usage errors are known by what they can do.
        if not hasattr(error, "format_message"):
            if type(error).__name__ == "Abort":
                sys.exit(_complain(f"interrupted; {how_to_continue()}", EXIT_INTERRUPTED))
            raise
        code = _complain(_usage_line(error), EXIT_USAGE)
    finally:
        remove_unused()
    sys.exit(code if isinstance(code, int) else 0)


def _after_failure(error: OSError) -> str:
    """What there is to do after the operating system has refused something."""
    further = how_to_continue()
    if further.startswith("continue"):
        return f"what was recorded before is kept; {further}"
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return f"{further}; give a folder that can be written to with --out"
    return further


def _usage_line(error: Any) -> str:
    text = " ".join(str(error.format_message()).split())
    context = getattr(error, "ctx", None)
    if context is None:
        return text
    if getattr(error, "option_name", None):
        names = [option for p in context.command.params for option in p.opts if option.startswith("--")]
        return (
            f"{text.split('(Possible')[0].split('. Did')[0].strip(' .')}; {context.info_name} has: {', '.join(names)}"
        )
    for option in getattr(getattr(error, "param", None), "opts", ()):
        if option in sys.argv[:-1]:
            return f"{option} {sys.argv[sys.argv.index(option) + 1]}: {text.partition(': ')[2] or text}"
    commands = getattr(context.command, "commands", None)
    return f"{text.rstrip('.') or 'no command was given'}; there are: {', '.join(commands)}" if commands else text


def _complain(text: str, code: int) -> int:
    print(f"adan-bench: {text}", file=sys.stderr)
    return code
