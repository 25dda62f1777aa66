"""Execution of layers for the rows and tokens that still run: subsets, caches, the loop with exits, and the runner."""
