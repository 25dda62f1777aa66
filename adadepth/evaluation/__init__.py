"""Evaluation: one pass over a data set that accumulates losses, depth statistics and the task's metrics."""
