"""The command `suggest`: settings for a full run, measured by short ones."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console

from adan_bench.cli.common import EXIT_FAILED, Json, Set, run_flags, say
from adan_bench.cli.compare import Optimizers, Save, Workloads, comparing
from adan_bench.cli.invocation import Invocation
from adan_bench.cli.reporting import say_failed
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
    """Suggest a learning rate and what goes with it, measured by short runs: a quarter of one full run in all.

    In place of a workload, a TOML file of a study may stand.
    """
    from adan_bench.records.archive import read_records
    from adan_bench.records.suggestion import judged
    from adan_bench.reports.tuning import write_suggestions
    from adan_bench.studies.comparison import read_tuned
    from adan_bench.studies.suggest import add_study, suggest, suggestions

    studies = [name for name in workloads or () if name.endswith(".toml")]
    others = [name for name in workloads or () if name not in studies]
    with comparing(call, chosen, others, optimizers, as_json, set_, needed=not studies) as comparison:
        for name in studies:
            add_study(comparison, name, chosen)
        file = save or comparison.out / "suggested.json"
        if file.exists():
            read_tuned(file, "--save")
        suggest(comparison, share, trials)
    comparison.save(file)
    found = suggestions(comparison)
    records, _ = read_records(comparison.out)
    page = write_suggestions(found, [judged(record) for record in records], comparison.out)
    failed = [record for record in records if record.status == "failed"]
    missing = [f"{workload} {name}" for workload, name in comparison.untuned]
    if as_json:
        for (workload, name), s in found.items():
            facts: dict[str, Any] = {"event": "suggestion", "workload": workload, "optimizer": name}
            facts |= {"settings": s.settings, "steps": s.steps, "warmup_steps": s.warmup_steps, "share": s.share}
            facts["short_runs"] = asdict(s.rate)
            print(json.dumps({**facts, "doubts": s.doubts(), "code": s.code()}))
        saved = str(file) if found else None
        print(json.dumps({"event": "report", "path": str(page), "saved": saved, "untuned": missing}))
    else:
        console = Console()
        for (workload, _), s in found.items():
            say(console, f"\n{workload}: {s}")
        say_failed(console, failed)
        for who in missing:
            say(console, f"nothing for {who}: no short run of it has a result to choose by", style="bold red")
        if found:
            say(console, f"\nsettings: {file}; compare with them: --tuned {file}")
        say(console, f"report: {page.resolve().as_uri()}")
    raise typer.Exit(EXIT_FAILED if failed or missing else 0)
