"""Evaluations as work of a cluster: which checkpoints, which actors, where the results lie. The numbers come from `jobs.evaluation`."""
