"""Checks of an experiment by subject; each yields one line for every mistake."""
