"""Workloads, a file per family: metric, targets, budgets, sizes. A new file here is found without being named."""
