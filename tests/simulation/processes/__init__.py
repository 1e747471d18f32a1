"""The simulated client processes: the real client core with a random workload, which checks every reply."""
