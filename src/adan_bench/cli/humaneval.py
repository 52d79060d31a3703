"""The command `humaneval`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from adan_bench.cli.common import Json, numbers
from adan_bench.errors import UsageError


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

    asked: dict[str, Any] = {"temperature": temperature, "tokens": tokens, "problems": problems, "seed": seed}
    limits: dict[str, Any] = {"seconds": seconds, "memory": memory << 20, "jobs": jobs, "device": device}
    result = pass_at_k(run_dir, data, samples, numbers(k, "--k"), **asked, **limits, on_problem=show)
    shown = {key: value for key, value in result.items() if key.startswith("pass@")}
    text = ", ".join(f"{key} {value:.4f}" for key, value in shown.items())
    print(json.dumps({"event": "humaneval", **shown}) if as_json else f"{text} ({result['problems']} problems)")
