"""Halting: rules that allocate depth and traces that record it, in pure tensor code without models or loggers."""
