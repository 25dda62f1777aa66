"""Checks of an experiment's configuration, grouped by subject. Each check yields one error line per mistake."""
