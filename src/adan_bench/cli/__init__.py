"""`adan-bench`: wiring only. `app` has the entry point, and each other module the commands that it is named after."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line, or say in one line what it lacks."""
    try:
        from adan_bench.cli.app import main as run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("adan"):
            raise
        print(f"adan-bench: the package {error.name} is missing; run: pip install '.[bench]'", file=sys.stderr)
        sys.exit(2)
    run()
