"""Pages as tests look for sentences in them, and for programs."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def flat(path: str) -> str:
    """The text of a page in one line."""
    return " ".join((ROOT / path).read_text(encoding="utf-8").split())


def blocks(page: Path, language: str) -> list[str]:
    """The blocks of code of a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
