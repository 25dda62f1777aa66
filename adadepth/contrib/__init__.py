"""Packages that extend the framework through entry points, as any installed package can (docs/plugins.md).

A folder here can be deleted: its modes, data and sweepers are then unknown, and everything else works as before.
"""
