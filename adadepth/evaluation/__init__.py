"""Evaluation of a model: one pass over a data set, which accumulates losses, depth statistics and task metrics."""
