"""The command line: its commands, and what happens to their errors."""

from __future__ import annotations

import errno
import os
import sys
from importlib import metadata
from typing import Annotated, Any

import typer

from adan_bench.cli import theory
from adan_bench.cli.common import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_TIME_LIMIT, EXIT_USAGE, Invocation, complain
from adan_bench.cli.compare import compare, pack, report, suggest, tune
from adan_bench.cli.humaneval import humaneval
from adan_bench.cli.listing import list_
from adan_bench.cli.memory import memory
from adan_bench.cli.paper import reproduce, speed
from adan_bench.cli.run import run
from adan_bench.cli.study import study
from adan_bench.errors import TimeLimitReached, UsageError, unknown
from adan_bench.records.environment import COMMAND

app = typer.Typer(
    name="adan-bench",
    help="Compare optimizers on real workloads. "
    "Exit codes: 0 done, 1 a run failed, 2 a wrong name, option or value, 3 every run diverged, 4 the time limit was "
    "reached, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("list")(list_)
for _command in (run, compare, tune, suggest, study, report, pack, reproduce, speed, memory, humaneval):
    app.command()(_command)
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


def main() -> None:
    """Run the command line; whatever the user got wrong is one line on standard error and exit code 2."""
    call = Invocation(sys.argv[1:])
    os.environ[COMMAND] = str(call)
    try:
        code = app(call.words, standalone_mode=False, obj=call)
        if code == EXIT_INTERRUPTED:  # typer's own answer to Ctrl-C
            raise KeyboardInterrupt
    except UsageError as error:
        code = complain(str(error), EXIT_USAGE)
    except TimeLimitReached as limit:
        code = complain(f"{limit}; {call.how_to_continue()}", EXIT_TIME_LIMIT)
    except OSError as error:
        text = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        code = complain(f"{text}; {_after_failure(error, call)}", EXIT_FAILED)
    except (KeyboardInterrupt, Exception) as error:
        # typer brings its own copy of click in some releases, so its errors are known by name or by what they can do.
        if isinstance(error, (KeyboardInterrupt, EOFError)) or type(error).__name__ == "Abort":
            code = complain(f"interrupted; {call.how_to_continue()}", EXIT_INTERRUPTED)
        elif hasattr(error, "format_message"):
            code = complain(_usage_line(error, call), EXIT_USAGE)
        else:
            raise
    finally:
        call.remove_unused()
    sys.exit(code if isinstance(code, int) else 0)


def _after_failure(error: OSError, call: Invocation) -> str:
    """What there is to do after the operating system has refused something."""
    further = call.how_to_continue()
    if further.startswith("continue"):
        return f"what was recorded before is kept; {further}"
    if isinstance(error, (PermissionError, FileNotFoundError)) or error.errno == errno.EROFS:
        return f"{further}; give a folder that can be written to with --out"
    return further


#: typer's words for a value of the wrong kind or size, some of them pydantic's, and plainer ones.
_PLAINER = {
    "Value error, ": "",
    "Input should be": "must be",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}


def _usage_line(error: Any, call: Invocation) -> str:
    text = " ".join(str(error.format_message()).split())
    for theirs, ours in _PLAINER.items():
        text = text.replace(theirs, ours)
    context = getattr(error, "ctx", None)
    if context is None:
        return text
    if hasattr(error, "possibilities") and hasattr(error, "option_name"):  # of an option that does not exist
        names = [option for p in context.command.params for option in p.opts if option.startswith("--")]
        see = f"adan-bench {context.info_name} --help"
        return str(unknown("option", error.option_name, names, of=context.info_name, see=see))
    for option in getattr(getattr(error, "param", None), "opts", ()):
        if (value := call.value_of(option)) is not None:
            return f"{option} {value}: {text.partition(': ')[2] or text}"
    commands = getattr(context.command, "commands", None)
    if not commands:
        return f"{text.rstrip('.')}; see: adan-bench {context.info_name} --help" if "Missing" in text else text
    begin = f"{text} There" if text.endswith("?") else f"{text.rstrip('.') or 'no command was given'}; there"
    return f"{begin} are: {', '.join(commands)}"
