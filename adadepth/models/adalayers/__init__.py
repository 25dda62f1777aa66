"""Adalayers: a learned distribution over the layers of a frozen transformer feeds a small head."""
