"""Looped language models, which apply the same decoder layers (the core) several times."""
