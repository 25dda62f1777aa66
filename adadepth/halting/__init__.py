"""Halting: how depth is allocated and traced. Pure tensor code that knows no model, configuration or logger."""
