"""Packages that are built on the framework and join it by entry points, as anybody's package does (docs/plugins.md).

A folder here can be deleted: its modes, data and sweepers are then unknown, and everything else works as before.
"""
