"""Checks of a configuration: each yields a line for every mistake it finds."""
