"""Evaluation: one pass over a set that keeps loss parts, depths, and what the task's scorer wants of every batch."""
