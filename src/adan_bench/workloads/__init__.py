"""One file a workload: data, model, loss, metric, target, budget. A new file here is found without being named."""
