"""The command `humaneval`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from adan_bench.cli.common import Json, numbers
from adan_bench.errors import UsageError


def humaneval(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The folder of a run with --keep-weights.")],
    yes: Annotated[
        bool, typer.Option("--yes-run-generated-code", help="Confirm that code written by the model may be run.")
    ] = False,
    data: Annotated[Path | None, typer.Option(envvar="ADAN_DATA", help="Folder of the data sets.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Answers per problem.")] = 20,
    k: Annotated[
        str, typer.Option(help="Values of k for pass@k, separated by commas; each at most --samples.")
    ] = "1,10",
    tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens per answer.")] = 256,
    jobs: Annotated[int, typer.Option(min=1, help="Answers to run at the same time.")] = 1,
    device: Annotated[str, typer.Option(help="Where the model runs: cpu, cuda or cuda:N.")] = "cpu",
    as_json: Json = False,
) -> None:
    """Measure pass@k of a run's model on HumanEval. This runs code that the model writes, in limited processes."""
    from adan_bench.studies.humaneval import pass_at_k

    if not yes:
        raise UsageError("humaneval runs code that a model wrote, in limited processes: add --yes-run-generated-code")

    def show(task: str, right: int, count: int) -> None:
        event = {"event": "problem", "task": task, "right": right, "samples": count}
        print(json.dumps(event) if as_json else f"{task}: {right} of {count}", flush=True)

    how: dict[str, Any] = {"tokens": tokens, "jobs": jobs, "device": device}
    result = pass_at_k(run_dir, data, samples, numbers(k, "--k"), **how, on_problem=show)
    shown = {key: value for key, value in result.items() if key.startswith("pass@")}
    text = ", ".join(f"{key} {value:.4f}" for key, value in shown.items())
    print(json.dumps({"event": "humaneval", **shown}) if as_json else f"{text} ({result['problems']} problems)")
