"""Architectures: what a search chooses, and networks compared."""
