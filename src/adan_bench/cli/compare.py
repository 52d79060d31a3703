"""The commands `compare`, `tune`, `suggest`, `report`, which writes what they end with, and `pack`, which keeps it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from adan_bench.cli.common import Invocation, Json, Seeds, Set, check_file, check_folder, numbers, run_flags
from adan_bench.cli.reporting import make_and_show, write_and_show
from adan_bench.config import RunConfig
from adan_bench.errors import UsageError
from adan_bench.records.store import ARCHIVE, write_bytes

Workloads = Annotated[
    list[str] | None,
    typer.Argument(metavar="WORKLOAD...", help="Names from `adan-bench list`. Default: all of --script."),
]
Optimizers = Annotated[
    str,
    typer.Option(
        help="Names from `adan-bench list optimizers`, separated by commas; variants such as adan:state_format=8bit; "
        "or 'all'."
    ),
]
Save = Annotated[
    Path | None,
    typer.Option(
        help="Where to save the settings, for --tuned; others in the file are kept. Default: in --out.",
        callback=check_file,
    ),
]


@run_flags(without=("seed",))
def compare(
    workloads: Workloads = None,
    optimizers: Optimizers = "adan,adamw,adam,sgd-momentum,lamb",
    seeds: Seeds = 3,
    tune: Annotated[
        int,
        typer.Option(min=0, help="Trials to search every optimizer's settings first; 0 takes the bundled ones."),
    ] = 0,
    tuned: Annotated[
        Path | None, typer.Option(help="A file of settings that `adan-bench tune` or `suggest` saved.")
    ] = None,
    batch_sizes: Annotated[
        str | None, typer.Option(help="Compare at these batch sizes, e.g. 32,64,128; lr scales with their square root.")
    ] = None,
    set_: Set = None,
    as_json: Json = False,
    *,
    chosen: RunConfig,
    call: Invocation,
) -> None:
    """Compare optimizers on workloads over several seeds, and write a report."""
    if tune and tuned is not None:
        raise UsageError(f"--tune {tune} and --tuned {tuned}: settings are searched or read; leave out one")
    if batch_sizes and chosen.batch_size:
        size = chosen.batch_size
        raise UsageError(f"--batch-size {size} and --batch-sizes {batch_sizes}: leave out one, or add {size} to them")
    more: dict[str, Any] = {"tuned": tuned, "batch_sizes": numbers(batch_sizes, "--batch-sizes")}
    arms, folder = _compared(call, chosen, workloads, optimizers, set_, trials=tune, seeds=seeds, **more)
    errors = make_and_show([[*arms.values()]], chosen, folder, call, as_json)
    write_and_show([folder], folder, as_json, errors)


@run_flags(without=("seed",))
def tune(
    workloads: Workloads = None,
    optimizers: Optimizers = "adan,adamw,adam,sgd-momentum,lamb",
    trials: Annotated[int, typer.Option(min=1, help="Trials to search the settings of each optimizer.")] = 8,
    save: Save = None,
    set_: Set = None,
    as_json: Json = False,
    *,
    chosen: RunConfig,
    call: Invocation,
) -> None:
    """Search the settings of every optimizer with the same number of trials, and save the best."""
    arms, folder = _compared(call, chosen, workloads, optimizers, set_, trials=trials)
    _search(arms, folder, save or folder / "best.json", chosen, call, as_json)


@run_flags(without=("seed", "parallel", "stop_after", "eval_every"))
def suggest(
    workloads: Workloads = None,
    optimizers: Optimizers = "adan",
    save: Save = None,
    set_: Set = None,
    as_json: Json = False,
    *,
    chosen: RunConfig,
    call: Invocation,
) -> None:
    """Suggest settings from six short runs, together at most a quarter of a full run, which needs 480 steps or more."""
    from adan_bench.studies.suggest import TRIALS, shorten

    arms, folder = _compared(call, chosen, workloads, optimizers, set_, trials=TRIALS)
    shorten(arms)
    _search(arms, folder, save or folder / "suggested.json", chosen, call, as_json)


def _search(arms: dict[Any, Any], folder: Path, file: Path, chosen: RunConfig, call: Invocation, as_json: bool) -> None:
    """Make the trials of arms and merge the settings they find into a file, which is checked first if it exists."""
    from adan_bench.studies.comparison import read_tuned, save_tuned

    if file.exists():
        read_tuned(file, "--save")
    errors = make_and_show([[*arms.values()]], chosen, folder, call, as_json)
    save_tuned(arms, file)
    write_and_show([folder], folder, as_json, errors, arms, file)


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS_DIR...", help="Folders of records, or packed files.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the report. Default: the first of those read.", callback=check_folder),
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


def pack(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS...", help="Folders of records, or packed files.")],
    into: Annotated[Path, typer.Option(help="The file to write.", callback=check_file)],
) -> None:
    """Pack runs into one file that `report` reads like a folder: configurations, results, curves of 60 points."""
    from adan_bench.records import archive
    from adan_bench.reports.conclusions import count

    records, damaged = archive.read_records(*runs)
    if damaged:
        raise UsageError(f"{damaged[0]}; nothing was packed")
    if into.exists():
        try:
            archive.read_archive(into)
        except UsageError as error:
            raise UsageError(f"--into {into}: it exists and is not a packed file; name another") from error
    into.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(into, archive.pack(records).encode())
    print(f"{into}: {count(len(records), 'run')}")


def _compared(
    call: Invocation,
    chosen: RunConfig,
    workloads: list[str] | None,
    optimizers: str,
    pairs: list[str] | None,
    **more: Any,
) -> tuple[dict[tuple[str, str], Any], Path]:
    """The arms of a comparison, and the folder of its records."""
    from adan_bench.studies.comparison import compared
    from adan_bench.studies.competitors import competitors

    who, folder = competitors(optimizers, pairs or []), call.records_in()
    return compared(workloads or [], who, chosen, out=folder, **more), folder
