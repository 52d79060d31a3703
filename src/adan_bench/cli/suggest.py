"""The command `suggest`: settings for a full run, measured by short ones."""

from __future__ import annotations

from typing import Annotated

import typer

from adan_bench.cli.common import Json, Set, run_flags
from adan_bench.cli.compare import Optimizers, Save, Workloads, comparing
from adan_bench.cli.invocation import Invocation
from adan_bench.cli.reporting import write_and_show
from adan_bench.config import RunConfig


@run_flags(without=("seed", "parallel", "stop_after", "eval_every"))
def suggest(
    workloads: Workloads = None,
    optimizers: Optimizers = "adan",
    share: Annotated[float, typer.Option(min=0.005, max=0.06, help="What a short run makes of the full one.")] = 0.04,
    trials: Annotated[int, typer.Option(min=4, max=16, help="Short runs per optimizer.")] = 6,
    save: Save = None,
    set_: Set = None,
    as_json: Json = False,
    *,
    chosen: RunConfig,
    call: Invocation,
) -> None:
    """Suggest a learning rate and what goes with it, measured by short runs: a quarter of one full run in all."""
    from adan_bench.studies.comparison import read_tuned
    from adan_bench.studies.suggest import suggest, suggestions

    with comparing(call, chosen, workloads, optimizers, as_json, set_) as comparison:
        file = save or comparison.out / "suggested.json"
        if file.exists():
            read_tuned(file, "--save")
        suggest(comparison, share, trials)
    comparison.save(file)
    write_and_show([comparison.out], comparison.out, as_json, comparison, file, suggestions(comparison))
