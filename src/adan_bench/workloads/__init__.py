"""One file per workload: data, model, loss, metric, target, budget. A new file here is found without being named."""
