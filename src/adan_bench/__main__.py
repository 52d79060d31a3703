"""`python -m adan_bench`, which is `adan-bench`."""

from adan_bench.cli import main

main()
