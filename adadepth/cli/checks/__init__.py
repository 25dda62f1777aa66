"""Checks of an experiment, grouped by subject. Each check yields one line per mistake."""
