"""Adalayers: a small head on the states of a frozen transformer, weighted by a learned distribution over layers."""
