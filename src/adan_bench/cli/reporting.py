"""Commands that make runs, or read some: how far they have come, and the report at the end."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from adan_bench.cli.common import EXIT_DIVERGED, EXIT_FAILED, Invocation, say
from adan_bench.config import SHORT, RunConfig


def make_and_show(
    groups: Sequence[Sequence[Any]], chosen: RunConfig, folder: Path, call: Invocation, as_json: bool
) -> set[str]:
    """Make the runs of arms, and show how far they have come; the errors of failed runs that were printed."""
    from adan_bench.cli.progress import showing
    from adan_bench.studies.arms import make

    errors: set[str] = set()
    with showing(Console(), as_json, errors) as on_event:
        make(groups, chosen, folder, call.resume, call.until, on_event)
    return errors


def write_and_show(
    runs: Sequence[Path],
    folder: Path,
    as_json: bool,
    printed: Collection[str] = (),
    tuned: Mapping[tuple[str, str], Any] | None = None,
    file: Path | None = None,
) -> None:
    """Write the report of the runs under some folders into one of them or another, and show it.

    printed: errors that the user has read above. tuned: the arms of a comparison with trials; file: where its settings
    were saved.
    """
    from adan_bench.cli.progress import show_summaries, show_tuning
    from adan_bench.records.archive import read_records
    from adan_bench.reports.comparison import write_report, write_tuning

    records, damaged = read_records(*runs)
    suggested: Mapping[Path, Any] = {}
    if any(record.config.origin.kind == SHORT for record in records):
        from adan_bench.studies.suggest import suggestions  # which imports torch

        suggested = suggestions(records)
    folder.mkdir(parents=True, exist_ok=True)
    trials = tuned is not None or {record.config.role for record in records} == {"tune"}
    if trials:
        notes = [text for s in suggested.values() for text in (s.summary(), *s.doubts())]
        page, summaries = write_tuning(records, folder, damaged, notes)
    else:
        page, summaries = write_report(records, folder, damaged)
    failed = [record for record in records if record.status == "failed"]
    found = {key: arm for key, arm in (tuned or {}).items() if arm.found}
    untuned = [" ".join(key) for key in tuned or () if key not in found]
    if as_json:
        for (workload, name), arm in found.items():
            short = suggested.get(arm.folder)
            told = {"event": "best", "settings": arm.base.settings} if short is None else {"event": "suggestion"}
            told |= {} if short is None else short.to_json()
            print(json.dumps({**told, "workload": workload, "optimizer": name}))
        facts: dict[str, Any] = {"event": "report", "path": str(page)}
        if tuned is not None:
            facts |= {"saved": str(file) if found else None, "untuned": untuned}
        facts |= {"failed": [str(record.path) for record in failed], "damaged": [str(error) for error in damaged]}
        print(json.dumps(facts))
    else:
        console = Console()
        for s in suggested.values():
            say(console, f"\n{s.tried[0].config.workload}: {s}")
        errors = {(record.result or {}).get("error") for record in failed}
        if len(records) == len(failed) > 1 == len(errors):  # there is nothing to compare
            error = errors.pop()
            how = " with the error above" if error in printed else f": {error}"
            say(console, f"all {len(failed)} runs failed{how}", style="bold red")
        else:
            (show_tuning if trials else show_summaries)(console, summaries)
            for i, record in enumerate(failed[:5]):
                error = (record.result or {}).get("error")
                again = error in [(other.result or {}).get("error") for other in failed[:i]]
                say(console, f"failed: {record.path}: {'the same error' if again else error}")
        if failed:
            say(console, "Once the cause is fixed, repeat the failed runs with --resume.")
        lost = [f"left out: {error}" for error in damaged]
        lost += [f"nothing saved for {who}: no trial of it has a final value to choose settings by" for who in untuned]
        for text in lost:
            say(console, text, style="bold red")
        if found:
            say(console, f"settings: {file}; compare with them: --tuned {file}")
        say(console, f"\nreport: {page.resolve().as_uri()}")
    if failed or damaged or untuned:
        raise typer.Exit(EXIT_FAILED)
    raise typer.Exit(EXIT_DIVERGED if records and all(record.diverged for record in records) else 0)
