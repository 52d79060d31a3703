"""benchmarks/ times, counts and writes pages; whatever trains a model on data is a run of adan-bench."""

import re
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_which_benchmarks_have_what_a_training_loop_needs():
    """Two go a few steps through a model of random tokens or numbers; a third times the harness's own loop."""
    loops = re.compile(r"\.backward\(|\bTrainer\(")
    found = {path.name for path in BENCHMARKS.glob("*.py") if loops.search(path.read_text(encoding="utf-8"))}
    assert found == {"memory.py", "others.py", "field_time.py"}
