"""`adan-bench`: wiring only. app: the command and its entry point; paper, theory: their sub-commands."""

from adan_bench.cli.app import main

__all__ = ["main"]
