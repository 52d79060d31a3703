"""What workloads are made of: networks and tasks, imported with torch when a workload is built."""
