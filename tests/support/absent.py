"""`adan-bench` where some packages are not installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: For a sitecustomize.py, which every Python process imports as it starts: packages that cannot be found.
FINDER = """
import sys
from importlib.machinery import PathFinder

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {absent!r} else PathFinder.find_spec(name, path, target)

sys.meta_path[:] = [Finder if finder is PathFinder else finder for finder in sys.meta_path]
"""


def packages(*extras: str) -> set[str]:
    """Those that extras of pyproject.toml name."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.findall(r"^(\w+) = \[(.*?)\]$", text, re.DOTALL | re.MULTILINE)
    entries = [entry for name, listed in found if name in extras for entry in re.findall(r'"(.+?)"', listed)]
    return {re.split(r"[\[>=<;]", entry)[0] for entry in entries}


def without(absent: Iterable[str], folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command run in a folder, where neither it nor its worker processes can import these packages."""
    (folder / "sitecustomize.py").write_text(FINDER.format(absent=sorted(absent)), encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "adan_bench.cli", *words]
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False)
