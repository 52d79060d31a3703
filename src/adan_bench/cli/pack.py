"""The command that packs runs into one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adan_bench.cli.common import check_file
from adan_bench.errors import UsageError


def pack(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS...", help="Folders of records, or files packed before.")],
    into: Annotated[Path, typer.Option(help="The file to write.", callback=check_file)],
) -> None:
    """Pack runs into one file: configurations, results, curves of 60 points. `report` reads it as it does a folder."""
    from adan_bench.records import archive
    from adan_bench.records.store import write_bytes

    records, damaged = archive.read_records(*runs)
    if damaged:
        raise UsageError(f"{damaged[0]}; nothing was packed")
    into.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(into, archive.pack(records).encode())
    print(f"{into}: {len(records)} runs")
