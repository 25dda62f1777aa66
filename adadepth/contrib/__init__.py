"""Optional packages that extend the framework through entry points, as any installed package can (docs/plugins.md).

Each folder can be deleted. Its modes, datasets and sweepers are then unknown, and everything else works as before.
"""
