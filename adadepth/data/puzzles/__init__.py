"""Puzzles: the answer to a grid is its solution, and counts only if all cells are right."""
