"""What benchmarks/tuning.py still reads."""
