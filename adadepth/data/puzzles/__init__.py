"""Puzzle data: the answer to a grid is its complete solution, which counts as right only if all cells are right."""
