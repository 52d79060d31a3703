"""What the modules of the command line share: flags of every run, derived from its configuration, and exit codes."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from typer.models import ArgumentInfo

from adan_bench.config import TUNING_SEED, Budget, Execution, Provenance, RunConfig
from adan_bench.errors import UsageError

EXIT_FAILED, EXIT_USAGE, EXIT_DIVERGED, EXIT_TIME_LIMIT, EXIT_INTERRUPTED = 1, 2, 3, 4, 130


def check_folder(param: typer.CallbackParam, value: Path | None) -> Path | None:
    """Refuse a folder to write to, before any work, where a file has its name or that of one above it."""
    return None if value is None else _check_folders(param, value, [value, *value.parents])


def check_file(param: typer.CallbackParam, value: Path | None) -> Path | None:
    """Refuse a file to write to, before any work, where a folder has its name, or it would lie in a file."""
    if value is not None and value.is_dir():
        raise UsageError(f"{param.opts[0]} {value}: it is a folder; name another file")
    return None if value is None else _check_folders(param, value, value.parents)


def _check_folders(param: typer.CallbackParam, value: Path, folders: Sequence[Path]) -> Path:
    there = [path for path in folders if path.exists()]
    for path in there:
        if not path.is_dir():
            raise UsageError(f"{param.opts[0]} {value}: {path} is a file, not a folder; give another path")
    if there and not os.access(there[0], os.W_OK | os.X_OK):
        raise UsageError(f"{param.opts[0]} {value}: {there[0]} cannot be written to; give another path")
    return value


Json = Annotated[bool, typer.Option("--json", help="Print JSON lines instead of text.")]
Workload = Annotated[
    str, typer.Argument(help="A name from `adan-bench list`. Default: that of --script.", show_default=False)
]
Out = Annotated[
    Path | None, typer.Option(help="Folder for the records. Default: a new one under runs/.", callback=check_folder)
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue what was interrupted; name its folder with --out.")]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at the same time; with --cluster and --device cuda, per GPU.")]
TimeLimit = Annotated[
    str | None, typer.Option(metavar="TIME", help="Pause after 90s, 25m, 2h, …, with checkpoints for --resume.")
]
Seeds = Annotated[
    int, typer.Option(min=1, max=TUNING_SEED, help="Number of seeds, from 0 on; confidence intervals need at least 3.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="An optimizer's setting, e.g. lr=0.003, or adan.lr=0.003 for adan alone; repeatable.",
    ),
]


#: Flags of a command that makes runs. All but `jobs` reach it through its `Invocation`.
SESSION = {"jobs": (Jobs, 1), "out": (Out, None), "resume": (Resume, False), "time_limit": (TimeLimit, None)}

#: The parts of a `RunConfig`, and what their flags have above them in --help.
PANELS = {Budget: "Length and schedule", Execution: "Execution", Provenance: "Model and data"}

#: Arguments that name the subject of a command; a --script can provide the default.
NAMED = ("workloads", "workload", "model")


def grid(title: str, head: Iterable[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table on the terminal, or in a log of 80 columns, that cuts nothing off; its text is no markup."""
    columns = [Column(escape(name), overflow="fold") for name in head]
    table = Table(*columns, title=escape(title), title_justify="left")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print text as it is: no markup, no colors of numbers, no wrapping that would cut a path."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def complain(text: str, code: int) -> int:
    """Print why a command ends. If that stopped all ranks of torchrun, only the first of them prints it."""
    if code not in (EXIT_TIME_LIMIT, EXIT_INTERRUPTED) or os.environ.get("RANK", "0") == "0":
        print(f"adan-bench: {text}", file=sys.stderr)
    return code


class Invocation:
    """A command under way: the words after the program's name, and the folder of its records.

    `app.main` makes one and hands it to typer, which gives it to every command as `context.obj`.

    out, resume, until: flags of a command that makes runs; until: the Unix time at which its time limit ends.
    """

    out: Path | None = None
    resume = False
    until: float | None = None

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self.records: Path | None = None
        self._new: Path | None = None

    def __str__(self) -> str:
        return " ".join(["adan-bench", *self.words])

    def value_of(self, option: str) -> str | None:
        """The word after an option; None where it is not among the words, or the last."""
        return self.words[self.words.index(option) + 1] if option in self.words[:-1] else None

    def new_folder(self) -> Path:
        """Create a folder under runs/, named after the time; of several in one second, the later ones have a number."""
        runs, now, number = Path("runs"), datetime.now().strftime("%Y-%m-%d-%H%M%S"), 1
        runs.mkdir(exist_ok=True)
        while True:
            folder = runs / (now if number == 1 else f"{now}-{number}")
            try:
                folder.mkdir()
            except FileExistsError:
                number += 1
            else:
                self._new = folder
                return folder

    def remove_unused(self) -> None:
        """Remove the folder that was created where nothing was written into it."""
        if self._new is not None:
            with contextlib.suppress(OSError):  # it holds something, or is gone
                self._new.rmdir()
                self._new.parent.rmdir()

    def records_in(self, *parts: str) -> Path:
        """The folder of the records of a command that can be resumed: the one that was given, else a new one."""
        if self.resume and self.out is None:
            raise UsageError("--resume: name the folder of what was interrupted with --out")
        self.records = self.out or self.new_folder().joinpath(*parts)
        return self.records

    def how_to_continue(self) -> str:
        """The command that goes on from what is recorded, for the end of a message."""
        if self.records is None or not any(self.records.rglob("*")):
            return "nothing was recorded"
        words = [word for word in self.words if word != "--resume"]
        if not any(word == "--out" or word.startswith("--out=") for word in words):
            words += ["--out", str(self.records)]
        program, nodes = ["adan-bench"], os.environ.get("GROUP_WORLD_SIZE", "1")
        if "RANK" in os.environ:
            ranks = os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1"))
            # torchrun does not tell a rank its rendezvous options; with c10d's, the command is the same on every node.
            meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", os.environ.get("MASTER_ADDR", "HOST")]
            several = [] if nodes == "1" else ["--nnodes", nodes, *meet]
            program = ["torchrun", *several, "--nproc-per-node", ranks, "-m", "adan_bench.cli"]
        begin = "continue with" if nodes == "1" else f"continue on each of the {nodes} nodes with"
        return f"{begin}: {shlex.join([*program, *words, '--resume'])}"


def run_flags(*names: str, without: Sequence[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags of a `RunConfig`, all or those named; it receives them as one object, `chosen`.

    Where it has an argument `call`, it receives the `Invocation` too, and has the flags of a session.
    """
    flags = [
        _flag(f, panel)
        for part, panel in PANELS.items()
        for f in dataclasses.fields(part)
        if f.metadata["help"] and f.name not in without and (f.name in names or not names)
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        asked = inspect.signature(command, eval_str=True).parameters
        only = inspect.Parameter.KEYWORD_ONLY
        own = [p for p in asked.values() if p.name not in ("chosen", "call")]
        named = [p.name for p in own if p.name in NAMED and isinstance(get_args(p.annotation)[-1], ArgumentInfo)]
        names = [name for name in SESSION if "call" in asked and name not in without]
        own += [inspect.Parameter(n, only, annotation=SESSION[n][0], default=SESSION[n][1]) for n in names]
        context = inspect.Parameter("context", only, annotation=typer.Context)

        @wraps(command)
        def wrapper(context: typer.Context, **values: Any) -> None:
            from adan_bench.training.distributed import launched
            from adan_bench.training.scripts import load_script

            flag_values = {flag.name: values.pop(flag.name) for flag in flags}
            chosen = RunConfig(**{name: value for name, value in flag_values.items() if value is not None})
            parallel, ranks = launched(chosen.parallel, context.obj.words, flag_values.get("ranks"))
            chosen = dataclasses.replace(chosen, parallel=parallel, ranks=ranks, jobs=values.pop("jobs", 1))
            source = context.get_parameter_source("schedule")
            if source is not None and source.name == "COMMANDLINE":
                chosen = dataclasses.replace(chosen, own_schedule=False)
            registered: list[str] = []
            if chosen.script is not None:
                registered = load_script(chosen.script)
                if "workloads" in values:
                    values["workloads"] = values["workloads"] or registered
                for name in ("model", "workload"):
                    if len(registered) == 1 and not values.get(name, "no such option"):
                        values[name] = registered[0]
            if absent := [name for name in named if not values[name]]:
                raise _unnamed(absent[0], chosen.script, registered)
            if "call" in asked:
                call = values["call"] = context.obj
                call.out, call.resume = values.pop("out"), values.pop("resume")
                call.until = deadline(values.pop("time_limit", None))
            command(chosen=chosen, **values)

        parameters = [context, *(p.replace(kind=only) for p in (*own, *flags))]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapper

    return decorate


def _unnamed(name: str, script: Path | None, registered: Sequence[str]) -> UsageError:
    """The error for a command whose subject was not named and has no default."""
    if registered and script is not None:
        return UsageError(f"{script.name} registers {' and '.join(registered)}: name one")
    if name == "model":
        return UsageError("no model was named; give a number of parameters such as 7B, a workload, or --script FILE")
    return UsageError("no workload was named; see: adan-bench list, or give --script FILE with your own")


def _flag(f: dataclasses.Field[Any], panel: str) -> inspect.Parameter:
    """The flag of a field. A default that the flag itself would not accept means that none was given."""
    about = f.metadata
    kind: Any = get_type_hints(RunConfig)[f.name]
    spelling = [f"--{f.name.replace('_', '-')}"] if kind is bool else []
    limits = {name: about[name] for name in ("min", "max") if about[name] is not None}
    unset = about["min"] is not None and f.default < about["min"]
    text = typer.Option(*spelling, help=about["help"], envvar=about["env"], rich_help_panel=panel, **limits)
    return inspect.Parameter(
        f.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None if unset else f.default,
        annotation=Annotated[kind | None if unset else kind, text],
    )


def numbers(text: str | None, flag: str) -> list[int]:
    """Whole numbers from 1 on with commas between."""
    parts = text.split(",") if text else []
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise UsageError(f"{flag} {text}: write whole numbers from 1 on with commas between, for example 1,10,100")
    return [int(part) for part in parts]


def deadline(time_limit: str | None) -> float | None:
    """The Unix time at which a time limit that begins now ends."""
    if time_limit is None:
        return None
    parts = re.findall(r"(\d+(?:\.\d+)?)([smh])", time_limit)
    seconds = sum(float(number) * {"s": 1, "m": 60, "h": 3600}[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != time_limit or seconds <= 0:
        raise UsageError(f"--time-limit {time_limit}: write a time such as 90s, 25m, 2h or 1h30m")
    return time.time() + seconds
