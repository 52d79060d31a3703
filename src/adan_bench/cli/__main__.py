"""`python -m adan_bench.cli`, which is what torchrun starts."""

from adan_bench.cli import main

main()
