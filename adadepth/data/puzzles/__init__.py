"""Puzzles: a grid is given, its solution is the answer, and all of its cells have to be right."""
