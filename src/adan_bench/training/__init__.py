"""Making runs: one training loop, the optimizers and schedules it takes, ranks that share a run, a pool of workers."""
