"""Labelled examples from tables: their splits, labels and batches for each kind of task."""
