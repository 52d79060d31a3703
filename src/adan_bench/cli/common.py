"""What the modules of the command line share."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

EXIT_FAILED, EXIT_USAGE, EXIT_DIVERGED = 1, 2, 3

Json = Annotated[bool, typer.Option("--json", help="JSON lines on standard output.")]


def new_folder() -> Path:
    return Path("runs") / datetime.now().strftime("%Y-%m-%d-%H%M%S")
