"""What workloads are made of: networks and tasks. Here torch is imported; a workload's own file imports it late."""
