"""Adalayers: a small head on a frozen transformer that reads a learned weighted average of all its layers."""
