"""Pages as tests look for sentences in them."""

from pathlib import Path

ROOT = Path(__file__).parents[2]


def flat(path: str) -> str:
    """The text of a page in one line."""
    return " ".join((ROOT / path).read_text(encoding="utf-8").split())
