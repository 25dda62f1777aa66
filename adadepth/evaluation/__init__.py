"""Evaluation: one pass over a set that accumulates losses, depth statistics and the metrics of the task's scorer."""
