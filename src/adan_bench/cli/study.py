"""The command `study`: what a file of data declares, planned, searched, run and reported."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from adan_bench.cli.common import Invocation, Json, run_flags
from adan_bench.cli.reporting import make_and_show, write_and_show
from adan_bench.config import RunConfig

Names = Annotated[
    list[str], typer.Argument(metavar="STUDY...", help="Names from `adan-bench list studies`, or your own TOML files.")
]


def rows() -> list[dict[str, Any]]:
    """Every bundled study: what it is, on which workload, with whom."""
    from adan_bench.reports.conclusions import count
    from adan_bench.studies.study import library, parse

    studies = [parse(file) for file in library().values()]
    return [
        {
            "name": s.name,
            "what": s.summary,
            "on": f"the settings of {s.follows}" if s.follows else s.workload,
            "who": ", ".join(s.optimizers or dict.fromkeys(v.optimizer for v in s.variants)) or "all of them",
            "trials": f"{count(s.trials, 'trial')} each" if s.trials else "no trials",
            "seeds": "the tuning seed" if s.judged_by_validation else count(len(s.seeds), "seed"),
            "file": str(s.file),
        }
        for s in studies
    ]


@run_flags(
    "data", "script", "device", "graph", "threads", "checkpoint_every", "ranks", "parallel", "cluster", "tensorboard"
)
def study(names: Names, as_json: Json = False, *, chosen: RunConfig, call: Invocation) -> None:
    """Run studies that TOML files describe: an equal search for every optimizer, then several seeds."""
    from adan_bench.studies.study import arms, find, read

    studies, wanted = read(names), [find(name).stem for name in names]
    folder = call.records_in()
    groups = arms(studies, wanted, chosen, folder)
    errors = make_and_show(groups, chosen, folder, call, as_json)
    write_and_show([folder], folder, as_json, errors)
