"""Names, the file of records, and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
RUNS = ROOT / "results" / "evidence" / "runs.jsonl"
NAMES = {"adan": "Adan", "adamw": "AdamW", "adam": "Adam", "lamb": "LAMB", "sgd": "SGD", "adabelief": "AdaBelief"}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *map(list, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
